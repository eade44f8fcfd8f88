"""The user's own operators on real engines: the same bits from either side, and every way in which they can be missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from torchvision import transforms as T

import ddlp
from csd_engine.errors import EngineRefused
from csd_engine.prepare.operator_file import content_hash
from ddlp.sources.engine.source import DifferentBits
from tests.ddlp.faults.scene import BATCH, Truth, device, make_loader, train

MY_OPS = Path(__file__).parents[2] / "my_ops.py"


def chain(ops):
    """The operators before and after crops and flips, in each container, at another size, and with a mask at the end."""
    return T.Compose([
        ops.letterbox(48).sized(48, 48),
        T.RandomResizedCrop(32),
        T.RandomApply([ops.vignette(strength=0.9)], p=0.6),
        T.RandomChoice([ops.invert(), T.RandomHorizontalFlip(), T.Compose([ops.noise(20), T.RandomVerticalFlip()])]),
        T.RandomOrder([ops.noise(3), T.RandomHorizontalFlip(), ops.vignette()]),
        T.ToTensor(),
        T.RandomErasing(p=0.5),
    ])  # fmt: skip


def with_transform(paths, transform):
    return ddlp.ImageFiles(paths, list(range(len(paths))), transform)


@pytest.fixture(scope="module")
def ops():
    return ddlp.load_operators(MY_OPS)


@pytest.fixture(scope="module")
def own(ops, paths):
    """80 images with the user's operators, and the bits that each must have."""
    data = with_transform(paths[:80], chain(ops))
    return data, Truth(data)


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "operators"
    path.mkdir(mode=0o700)
    return path


def copy_to(directory, source=MY_OPS):
    """Copy the operator file, as deploy does over SSH."""
    path = directory / f"{content_hash(source.read_bytes())}.py"
    shutil.copyfile(source, path)
    path.chmod(0o600)
    return path


def write(path, text):
    path.write_text(text)
    return ddlp.load_operators(path)


def epochs_with_the_device(loader, truth, wanted):
    """Check whole epochs until the device has taken part in `wanted` of them; at least two."""
    had = 0
    for epoch in range(20):
        truth.check(train(loader, 0.02), epoch)
        had += bool(loader.report().batches_csd)
        if epoch and had >= wanted:
            return
    raise AssertionError(f"the device had its part in {had} of 20 epochs")


def small(paths, operator):
    return with_transform(paths[:40], T.Compose([T.CenterCrop(32), operator, T.ToTensor()]))


def test_one_machine_needs_no_step(leaves_nothing, own, told):
    data, truth = own
    epochs_with_the_device(make_loader(data, "ordered", num_workers=2), truth, 1)
    assert not len(told), list(told)


def test_an_engine_with_the_file(engines, own, told, images, directory):
    data, truth = own
    copy_to(directory)
    loader = make_loader(data, "wrr", csd=device(engines("--root", str(images), "--operators", str(directory))))
    epochs_with_the_device(loader, truth, 2)
    assert not len(told), list(told)
    assert os.listdir(directory) == [f"{content_hash(MY_OPS.read_bytes())}.py"]


def test_a_resume_in_mid_epoch(leaves_nothing, own):
    data, truth = own
    loader = make_loader(data, "wrr")
    iterator = iter(loader)
    first = [next(iterator) for _ in range(7)]
    state = loader.state_dict()
    del iterator
    again = make_loader(data, "csd")
    again.load_state_dict(state)
    truth.check(first + list(again))


def test_an_engine_without_the_file_says_how_it_gets_there(engines, own, images, directory):
    data, truth = own
    engine = engines("--root", str(images), "--operators", str(directory))
    name = rf"my_ops.py \({content_hash(MY_OPS.read_bytes())[:8]}\)"
    for strategy in ("csd", "wrr"):
        with pytest.raises(EngineRefused, match=f"does not have {name}: `ddlp deploy ... --operators FILE`"):
            train(make_loader(data, strategy, csd=device(engine)), 0.2)
    copy_to(directory)  # the engine needs no restart
    truth.check(train(make_loader(data, "csd", csd=device(engine))))


def test_a_file_edited_between_epochs(engines, paths, told, images, directory, tmp_path):
    """The device works only with the file that the host runs. Until it has that, the host works alone and says so once."""
    path = tmp_path / "mine.py"
    old = write(path, "def f(image, by=3):\n    return image.point(lambda v: v // by)\n")
    engine = engines("--root", str(images), "--operators", str(directory))
    copy_to(directory, path)
    data = small(paths, old.f())
    loader = make_loader(data, "csd", csd=device(engine))
    Truth(data).check(train(loader))
    assert loader.report().batches_csd == len(loader)
    new = write(path, "def f(image, by=3):\n    return image.point(lambda v: 255 - v // by)\n")
    data.transform = small(paths, new.f()).transform
    Truth(data).check(train(loader), 1)
    assert not loader.report().batches_csd
    (text,) = told
    assert "the host prepares its batches" in text and "does not have mine.py" in text
    copy_to(directory, path)
    Truth(data).check(train(loader), 2)
    assert loader.report().batches_csd == len(loader) and len(told) == 1


def test_a_changed_file_on_the_device(engines, own, images, directory):
    engine = engines("--root", str(images), "--operators", str(directory))
    copy_to(directory).write_text("def letterbox(image, side): return image\n")
    with pytest.raises(EngineRefused, match=r"my_ops.py \([0-9a-f]{8}\) on the device is not used: .* Deploy it again"):
        train(make_loader(own[0], "csd", csd=device(engine)))


def test_a_function_that_fails_on_the_device_only(engines, paths, images, directory, tmp_path, monkeypatch):
    monkeypatch.setenv("ONLY_HERE", "1")
    mine = tmp_path / "mine.py"
    ops = write(mine, "import os\ndef f(image):\n    assert os.environ.get('ONLY_HERE'), 'not here'\n    return image\n")
    copy_to(directory, mine)
    monkeypatch.delenv("ONLY_HERE")
    engine = engines("--root", str(images), "--operators", str(directory))
    monkeypatch.setenv("ONLY_HERE", "1")
    with pytest.raises(
        EngineRefused, match=r"can't run an operator, which this host can: .*line 3, in f: AssertionError: not here"
    ):
        train(make_loader(small(paths, ops.f()), "csd", csd=device(engine)))


def test_a_function_with_draws_of_its_own_is_found_by_the_probe(leaves_nothing, paths, tmp_path):
    # A new draw for each value: a single draw would be equal on both sides once in 256 times.
    text = "import random\ndef f(image):\n    return image.point(lambda value: random.randrange(256))\n"
    with pytest.warns(UserWarning, match="line 3 calls random.randrange"):
        ops = write(tmp_path / "mine.py", text)
    named = r"(?s)What differs is f\(\), which is yours .*See that mine.py draws from rng alone"
    with pytest.raises(DifferentBits, match=named):
        train(make_loader(small(paths, ops.f()), "csd"))


def test_a_function_that_raises_is_reported_in_its_batchs_place(leaves_nothing, ops, paths, told):
    """The host raises the user's own exception, with a note of file, line and function. All other batches come."""
    data = small(paths, ops.moody())
    loader = make_loader(data, "wrr")
    iterator, good, errors = iter(loader), [], []
    for _ in range(len(loader)):
        try:
            good.append(next(iterator))
        except ValueError as error:
            assert str(error) == "not in the mood"  # the user's own
            errors.append(" ".join(error.__notes__))
    assert next(iterator, None) is None
    assert errors and good and len(errors) + len(good) == 40 / BATCH
    line = 1 + [text.lstrip()[:6] for text in MY_OPS.read_text().splitlines()].index("raise ")
    for text in errors:
        assert (
            f"cannot be prepared: my_ops.py, line {line}, in moody: ValueError: not in the mood. Correct the operator" in text
        )
    assert not [text for text in told if f"{content_hash(MY_OPS.read_bytes())}.py" in text]


def test_prints_leave_the_engine_at_work(leaves_nothing, paths, tmp_path):
    ops = write(tmp_path / "mine.py", 'def f(image):\n    print(\'{"say": "ready"}\' * 50, flush=True)\n    return image\n')
    data = small(paths, ops.f())
    loader = make_loader(data, "csd")
    Truth(data).check(train(loader))
    assert loader.report().batches_csd == len(loader)
