"""`ddlp.load_operators`: what an operator file may contain, its operators in torchvision pipelines, and their translation."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

import ddlp
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import OperatorFileError
from csd_engine.prepare.operator_file import content_hash
from ddlp.translate.transforms import translate
from ddlp.translate.user_operators import by_name, operator_files, read_operators
from tests.small_images import image

MY_OPS = Path(__file__).parents[2] / "my_ops.py"


@pytest.fixture
def ops():
    return ddlp.load_operators(MY_OPS)


def write(tmp_path, text):
    path = tmp_path / "my_ops.py"
    path.write_text(text)
    return path


# -- the file ------------------------------------------------------------------------------------------------------------


def test_it_says_what_it_has(ops):
    assert dir(ops) == ["invert", "letterbox", "moody", "noise", "vignette"]
    assert content_hash(MY_OPS.read_bytes()) in repr(ops)
    assert "noise(scale=8.0)" in repr(ops.noise) and ops.noise.__doc__ == "Normal noise on each value."
    assert repr(ops.letterbox(32, fill=(1, 2, 3)).sized(32, 32)) == (
        "letterbox(fill=(1, 2, 3), side=32).sized(32, 32) of my_ops.py"
    )
    for name in ("np", "math", "Image", "_private", "nothing"):
        with pytest.raises(AttributeError):
            getattr(ops, name)
    with pytest.raises(AttributeError, match="my_ops.py has no function 'blur'; its functions are: vignette, noise"):
        ops.blur()


@pytest.mark.parametrize(
    "text, match",
    [
        ("import numpy as np\nimport torch", "my_ops.py, line 2 imports torch, which a device does not have"),
        ("def f(image):\n    from cv2 import blur\n    return image", "line 2 imports cv2"),
        ("try:\n    import cv2\nexcept ImportError:\n    cv2 = None", "line 2 imports cv2"),
        ("import torchvision.transforms as T", "imports torchvision"),
        ("from . import other", "imports from its own package"),
        ("import my_other_file", "line 1 imports my_other_file.*one file travels alone"),
        ("x = open(__file__)", "line 1 uses __file__"),
        ("def f(image)\n    pass", "my_ops.py, line 1: expected ':'"),
        ("x = '\0'", "my_ops.py.*null bytes"),
        ("x = [1][2]", "my_ops.py, line 1, fails as it is loaded: IndexError"),
        ("#" * (1 << 20) + "\n", "larger than 1048576 bytes"),
    ],
)
def test_files_that_could_not_run_on_a_device_are_refused_here(tmp_path, text, match):
    with pytest.raises(OperatorFileError, match=match):
        ddlp.load_operators(write(tmp_path, text))


def test_a_missing_file(tmp_path):
    with pytest.raises(OperatorFileError, match=f"{tmp_path}/none.py can't be read: No such file"):
        ddlp.load_operators(tmp_path / "none.py")


def test_what_only_type_checkers_import_is_no_obstacle(tmp_path):
    text = (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport numpy.random, PIL.Image\n"
        "import typing\nif TYPE_CHECKING:\n    import torch\nif typing.TYPE_CHECKING:\n    import cv2\nelse:\n    import json\n"
        "def f(image: torch.Tensor, rng: numpy.random.Generator): return image"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dir(ddlp.load_operators(write(tmp_path, text))) == ["f"]
    with pytest.raises(OperatorFileError, match="line 4 imports cv2"):
        read_operators(write(tmp_path, "from typing import TYPE_CHECKING\nif TYPE_CHECKING: pass\nelse:\n    import cv2"))


@pytest.mark.parametrize(
    "imports, call, name",
    [
        ("import numpy as np", "np.random.uniform()", "numpy.random.uniform"),
        ("import numpy.random as r", "r.default_rng(1)", "numpy.random.default_rng"),
        ("from numpy import random", "random.rand()", "numpy.random.rand"),
        ("import random", "random.random()", "random.random"),
        ("from random import gauss as g", "g(0, 1)", "random.gauss"),
        ("import os", "os.urandom(1)", "os.urandom"),
    ],
)
def test_draws_from_elsewhere_are_told(tmp_path, imports, call, name):
    path = write(tmp_path, f"{imports}\ndef f(image):\n    {call}\n    return image")
    with pytest.warns(UserWarning, match=rf"my_ops.py, line 3 calls {name}: .* parameter named rng") as caught:
        ddlp.load_operators(path)
    assert caught[0].filename == __file__


def test_what_was_loaded_counts_though_the_file_changes(tmp_path):
    path = write(tmp_path, "def f(image, by=1): return image.point(lambda v: v // 2)")
    old = ddlp.load_operators(path).f()
    write(tmp_path, "def f(image): return image")
    new = ddlp.load_operators(path).f()
    assert old(image()).tobytes() != image().tobytes() == new(image()).tobytes()
    digests = {translate(v1.Compose([v1.CenterCrop(8), one, v1.ToTensor()])).pipeline.digest for one in (old, new)}
    assert len(digests) == 2
    path.unlink()
    assert pickle.loads(pickle.dumps(old))(image()).tobytes() == old(image()).tobytes()


# -- the operators -------------------------------------------------------------------------------------------------------


def test_they_are_transforms_anywhere(ops):
    """They draw from torch's generator, like torchvision's own."""
    for compose in (v1.Compose, v2.Compose):
        chain = compose([ops.letterbox(32).sized(32, 32), v1.RandomApply([ops.noise(20)], p=0.9), ops.invert(), v1.ToTensor()])
        torch.manual_seed(3)
        first, second = chain(image()), chain(image())
        torch.manual_seed(3)
        assert torch.equal(chain(image()), first) and not torch.equal(first, second)
        assert first.shape == (3, 32, 32)


@pytest.mark.parametrize(
    "wrong, kind, match",
    [
        (lambda ops: ops.noise(image()), TypeError, r"called with an image; write noise\(\) to make the transform first"),
        (lambda ops: ops.noise()(torch.zeros(3, 4, 4)), TypeError, "takes a PIL image, got Tensor; put it before ToTensor"),
        (lambda ops: ops.noise(1, 2), TypeError, r"my_ops.py: noise\(scale=8.0\): too many positional"),
        (lambda ops: ops.noise(strength=1), TypeError, "unexpected keyword argument 'strength'"),
        (lambda ops: ops.noise(rng=1), TypeError, "unexpected keyword argument 'rng'"),
        (lambda ops: ops.letterbox(), TypeError, "missing a required argument: 'side'"),
        (lambda ops: ops.noise(np.ones(3)), ValueError, "noise with .*expected numbers, texts"),
        (lambda ops: ops.noise(float("nan")), ValueError, "expected a number from"),
        (lambda ops: ops.noise().sized(0, 3), ValueError, "expected an integer from 1"),
    ],
)
def test_mistakes_are_named_where_they_are_made(ops, wrong, kind, match):
    with pytest.raises(kind, match=match):
        wrong(ops)


def test_they_pickle_and_copy(ops):
    one = ops.noise(scale=np.float32(4)).sized(41, 50)
    for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert again.to_data() == one.to_data() and again.parameters == {"scale": 4.0}
    assert dir(pickle.loads(pickle.dumps(ops))) == dir(ops)


class Samples(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.transform(image(40 + index))


def test_they_go_to_torchs_workers(ops, not_forked):
    data = Samples(v1.Compose([ops.letterbox(16).sized(16, 16), ops.noise(), v1.ToTensor()]))
    for method in ("fork", not_forked):
        loader = DataLoader(data, 3, num_workers=1, multiprocessing_context=method)
        assert [batch.shape for batch in loader] == [(3, 3, 16, 16)] * 2


def test_in_user_code_of_ours_the_samples_key_decides(ops):
    """For a data set that can't travel, torch's own workers run the operators, with keyed draws."""
    data = Samples(v1.Compose([v1.CenterCrop(16), ops.noise(), v1.ToTensor()]))
    one, two = ([batch.clone() for batch in ddlp.DDLPLoader(data, 3, num_workers=n, seed=5)] for n in (0, 2))
    assert all(map(torch.equal, one, two)) and not torch.equal(one[0], one[1])


# -- translation ---------------------------------------------------------------------------------------------------------


def ours(transform, source, mode="RGB"):
    translation = translate(transform, mode)
    plan = translation.pipeline.draw(source.size, Keyed(0, 0, 0, 0))
    out = np.empty((1, *plan.shape), dtype=np.uint8)
    translation.pipeline.apply(source, plan, out[0])
    boxes = torch.tensor([plan.boxes], dtype=torch.int32) if translation.pipeline.boxes else None
    return translation.epilogue(torch.from_numpy(out), boxes)[0]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_what_ddlp_runs_is_what_torchvision_runs(ops, mode):
    """The bits are equal if nothing is drawn."""
    chain = v1.Compose([
        ops.letterbox(32, fill=(9, 8, 7)).sized(32, 32), v1.CenterCrop(28), ops.invert(), v1.RandomApply([ops.invert()], p=1.0),
        v1.RandomHorizontalFlip(1.0), ops.invert(), v1.ToTensor(), v1.Normalize([0.5], [0.25]),
    ])  # fmt: skip
    assert torch.equal(ours(chain, image(mode=mode), mode), chain(image(mode=mode)))


def test_the_data_hold_the_hash_and_no_code(ops):
    chain = v1.Compose([v1.CenterCrop(24), v1.RandomChoice([ops.vignette(0.3), ops.noise(scale=2)]), v1.ToTensor()])
    pipeline = translate(chain).pipeline
    digest = content_hash(MY_OPS.read_bytes())
    assert pipeline.to_data()["ops"][1]["groups"] == [
        [{"op": "User", "file": digest, "function": "vignette", "parameters": {"strength": 0.3}, "size": None}],
        [{"op": "User", "file": digest, "function": "noise", "parameters": {"scale": 2}, "size": None}],
    ]
    (file,) = operator_files(pipeline)
    assert file.source == MY_OPS.read_bytes()
    assert by_name(f"no {digest}.py there", [file]) == f"no my_ops.py ({digest[:8]}) there"


def test_a_subclass_is_not_taken_for_one_of_them(ops):
    class Other(ddlp.translate.user_operators.UserOperator):
        pass

    file = ops.noise().file
    with pytest.raises(ddlp.Untranslatable, match="not one of the operators.*ddlp.load_operators"):
        translate(v1.Compose([Other(file, "noise", {}), v1.ToTensor()]))
    with pytest.raises(ddlp.Untranslatable, match="call it to make a transform"):
        translate(v1.Compose([ops.noise, v1.ToTensor()]))


@pytest.mark.parametrize("to_tensor", [v1.ToTensor(), v2.ToImage()])
def test_behind_a_tensor_it_cannot_stand(ops, to_tensor):
    with pytest.raises(ddlp.Untranslatable, match=r"noise\(\) of my_ops.py.*takes a PIL image and comes after.*move it before"):
        translate(v2.Compose([v2.CenterCrop(8), to_tensor, ops.noise()]))


def test_explain_names_them(ops, tmp_path, capsys):
    image().save(tmp_path / "x.png")
    data = ddlp.ImageFiles([str(tmp_path / "x.png")], [0], v1.Compose([v1.CenterCrop(8), ops.noise(), v1.ToTensor()]))
    text = ddlp.DDLPLoader(data).explain()
    assert "CenterCrop -> noise: the same code" in text
    assert f"yours      noise of my_ops.py ({content_hash(MY_OPS.read_bytes())})" in text
    assert "ddlp deploy ... --operators my_ops.py" in text and text in capsys.readouterr().out
