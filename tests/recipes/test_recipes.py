"""The table of recipes: its list, the trials, and the page that is made from them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision.transforms import ToTensor

from ddlp import DDLPLoader, ImageArrays
from ddlp.errors import DDLPError
from ddlp.process.cores import family
from tests.recipes import table
from tests.recipes.command import main
from tests.recipes.compare import BY_ONE, difference
from tests.recipes.listing import RECIPES
from tests.recipes.trial import Outcome, how_it_goes

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"

_OPERATORS = """ColorJitter, RandomGrayscale, GaussianBlur, RandomRotation, RandomAffine, RandomPerspective, RandomPosterize,
RandomSolarize, RandomEqualize, RandomAutocontrast, RandomInvert, RandomAdjustSharpness, FiveCrop, TenCrop, AutoAugment,
RandAugment, TrivialAugmentWide, AugMix"""
# Each name of what people train with, once. The recipes must cover all of them.
NAMES = {
    "operators, v1 and v2": [f"{name} {version}" for name in re.split(r",\s+", _OPERATORS) for version in ("v1", "v2")],
    "v2 on tensors": ["ToImage first", "ToImage first, evaluation"],
    "torchvision's presets": [
        "reference preset, train", "reference preset, RandAugment", "reference preset, TrivialAugmentWide",
        "reference preset, AutoAugment", "reference preset, AugMix", "reference preset, tensor backend",
        "reference preset, eval", "reference preset, eval v2", "preset with ColorJitter 0.4",
        "weights.transforms()", "weights.transforms(), bicubic",
    ],
    "timm": [
        "create_transform, evaluation", "create_transform, training", "rand-m9-mstd0.5-inc1 + re_prob 0.25",
        "timm RandAugment variant", "timm AutoAugment", "timm AugMix", "RandomResizedCropAndInterpolation", "MaybeToTensor",
        "timm Posterize", "timm RandomErasing",
    ],
    "several views": ["SimCLR", "BYOL", "DINO multi-crop", "MoCo"],
    "the cut": [
        "albumentations on arrays", "lambda", "own class", "own code on tensors", "load_operators", "load_operators, identity",
    ],
    "user code": [
        "CSV + Pillow + torchvision", "user data set with albumentations", "user data set, evaluation", "samples as dicts",
        "Hugging Face, Arrow bytes", "Hugging Face, files", "WebDataset's own pipeline", "LMDB", "parquet",
    ],
    "torchvision's data sets": [
        "ImageFolder", "ImageFolder subclass", "DatasetFolder subclass", "ImageNet", "Imagenette", "Food101", "OxfordIIITPet",
        "Caltech101", "Caltech256", "Flowers102", "Places365", "StanfordCars", "FGVCAircraft", "DTD", "EuroSAT", "Country211",
        "SUN397", "INaturalist", "LFWPeople", "CelebA", "GTSRB", "STL10", "SVHN", "CIFAR10", "CIFAR100", "MNIST",
        "FashionMNIST", "KMNIST", "EMNIST", "USPS", "FER2013",
        "loader= of torchvision's decoder", "loader= of torchcodec", "PNG", "WebP",
    ],
    "others that travel": [
        "timm's ImageDataset", "timm's ImageDataset, tar", "ddlp.TarImages", "ddlp.ImageFiles", "targets of any type: dicts",
        "targets of any type: texts", "__ddlp__", "ddlp.ImageArrays",
    ],
    "ten beside the classification of images": [
        "VOC, detection", "VOC, segmentation", "COCO, detection to one size", "Oxford pets, trimaps",
        "Penn-Fudan, the tutorial's data set", "WAV files, spectra", "TensorDataset", "rows of a table, as dicts",
        "texts of unlike lengths, padded", "Hugging Face, a table of numbers",
    ],
}  # fmt: skip


# -- the list --------------------------------------------------------------------------------------------------------


def test_every_name_has_a_recipe_and_every_recipe_a_name() -> None:
    covered = Counter(name for recipe in RECIPES for name in recipe.covers)
    assert {name: count for name, count in covered.items() if count > 1} == {}
    assert set(covered) == {name for names in NAMES.values() for name in names}
    assert len(NAMES["ten beside the classification of images"]) == 10


def test_names_are_unique_and_groups_stand_together() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    groups = [recipe.group for recipe in RECIPES]
    begun = [group for k, group in enumerate(groups) if k == 0 or groups[k - 1] != group]
    assert len(set(begun)) == len(begun)


def test_what_a_recipe_needs_is_in_the_extra() -> None:
    extra = (ROOT / "setup.cfg").read_text().partition("\nrecipes =\n")[2].split("\n#")[0].split()
    assert {package for recipe in RECIPES for package in recipe.needs} <= set(extra)
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {package for package in extra if not package.startswith("%")} <= pinned


# -- the page --------------------------------------------------------------------------------------------------------


def test_page_has_a_row_for_every_recipe_in_order() -> None:
    made = PAGE.read_text().partition(table.BEGIN)[2].partition(table.END)[0]
    rows = [line.split(" | ")[0].removeprefix("| ").replace("\\|", "|") for line in made.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row not in ("recipe", "---")] == [recipe.name for recipe in RECIPES]
    assert re.findall(r"^### (.*)$", made, re.MULTILINE) == list(dict.fromkeys(recipe.group for recipe in RECIPES))


def test_page_is_written_between_its_marks_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n")
    table.write(page, "new")
    assert page.read_text() == f"above\n{table.BEGIN}\n\nnew\n\n{table.END}\nbelow\n"
    page.write_text("no marks\n")
    with pytest.raises(DDLPError, match="has no table of recipes"):
        table.write(page, "new")
    assert page.read_text() == "no marks\n"


def test_a_part_of_the_table_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    before = PAGE.read_text()
    assert main(["--only", "ImageNet", "--write", str(PAGE)]) == 2
    assert "leave out --only" in capsys.readouterr().err and PAGE.read_text() == before


def test_rows_say_what_was_found() -> None:
    recipes = [SimpleNamespace(name=name, group="G") for name in ("fast", "wrong", "broken", "missing", "late")]
    outcomes = {
        "fast": Outcome("fast", goes="whole", bits="equal", theirs=[100.0, 200.0, 100.0], ours=[400.0, 400.0, 450.0]),
        "wrong": Outcome("wrong", goes="whole", bits="batch 0[0]: 3 of 9 values differ", theirs=[1.0], ours=[0.5]),
        "broken": Outcome("broken", error="ValueError: a | b"),
        "missing": Outcome("missing", missing=["timm"]),
    }
    shown = table.shown(recipes, outcomes)  # type: ignore[arg-type]
    assert "| fast | yes | whole | equal | 100 | 400 | 4.00 (2.00 .. 4.50) |" in shown
    assert "| wrong | no: wrong bits | whole | batch 0[0]: 3 of 9 values differ" in shown
    assert "| broken | no: ValueError: a \\| b |" in shown
    assert "| missing | not tried: pip install timm |" in shown and "| late | not tried |" in shown
    said = table.summary(list(outcomes.values()))
    assert said.startswith("4 recipes: 1 work, 1 not tried") and "1 equal, 1 wrong" in said
    assert "wrong (0.50)" in said and "Do not work: wrong, broken." in said


# -- the trials ------------------------------------------------------------------------------------------------------


def test_batches_are_compared_to_the_bit() -> None:
    same = {"x": torch.tensor([1.0, float("nan")]), "y": ["a", torch.tensor([1, 2])]}
    again = {"x": torch.tensor([1.0, float("nan")]), "y": ["a", torch.tensor([1, 2])]}
    assert difference(same, again) is None
    again["y"][1][0] = 7  # type: ignore[index]
    assert difference(same, again, "batch 0") == "batch 0['y'][1]: 1 of 2 values differ, by 6 at most"
    assert difference(same, again, values=False) is None
    doubles = torch.ones(2, dtype=torch.float64)
    assert difference(torch.ones(2), doubles, values=False) == "batch: float64 (2,), not float32 (2,)"
    assert difference([1, 2], (1, 2)) == "batch: tuple, not list"
    assert difference({"a": 1}, {"b": 1}) == "batch: keys ['b'], not ['a']"
    assert difference([1, 2], [1]) == "batch: 1 of them, not 2"
    assert difference(["a"], ["b"]) == "[0]: 'b', not 'a'"


def test_one_of_255_in_few_values_is_told_apart() -> None:
    plain = torch.zeros(3, 100, 100)
    for scale in (1.0, 0.224):
        near = plain.clone()
        near[0, 3, 3] = 1 / 255 / scale
        assert difference([plain, plain], [near, plain]) == f"[0]: {BY_ONE}"
        assert "by 6 at most" in str(difference([plain, plain], [near, plain + 6]))  # a larger difference is not hidden by it
        near[0, 3, 3] *= 2
        assert "1 of 30,000 values differ" in str(difference(plain, near))
    assert "30,000 of 30,000" in str(difference(plain, plain + 1 / 255))


def test_how_a_loader_goes_is_read_from_what_it_explains() -> None:
    images = ImageArrays(np.zeros((4, 8, 8, 3), np.uint8), range(4), ToTensor())
    assert how_it_goes(DDLPLoader(images, 2).explain()) == "whole"
    assert how_it_goes(DDLPLoader(TensorDataset(torch.zeros(4, 2)), 2).explain()) == "host"
    cut = "strategy   cpu\ntravels    RandomResizedCrop\n---------- cut here: what is above runs in ddlp's kernel"
    assert how_it_goes(cut) == how_it_goes("travels    Resize\nown steps  Warm -> ToTensor") == "prefix"


def test_a_name_that_no_recipe_has_is_an_error_with_those_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "ColorJiter v1"]) == 2
    assert "Near it: ColorJitter v1" in capsys.readouterr().err


OWN = '''
import os, sys, time
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import Dataset
import ddlp
from tests.recipes import fakes
from tests.recipes.command import main
from tests.recipes.datasets import Described
from tests.recipes.listing import RECIPES
from tests.recipes.pipelines import train

class Wrong(Described):
    """Describes the same files in another order: each image has its neighbour's label."""
    def __ddlp__(self):
        return ddlp.ImageFiles(self.paths[1:] + self.paths[:1], self.targets, self.transform)

def dies(root, photos):
    os._exit(3)

def sleeps(root, photos):
    time.sleep(600)

by_name = {recipe.name: recipe for recipe in RECIPES}
right = by_name["__ddlp__ in one line"]
recipes = [
    by_name["ImageFolder"],
    by_name["CSV, Pillow, torchvision"],
    by_name["RandAugment v1"],
    replace(right, name="wrong", opened=Wrong),
    replace(right, name="dies", files=dies),
    replace(right, name="fails alone", opened=lambda root, transform: 1 / 0),
    replace(right, name="missing", needs=("no_such_package",)),
    *([replace(right, name="hangs", files=sleeps)] if "hangs" in sys.argv[-1:] else []),
]
sys.exit(main(sys.argv[1:], recipes))
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "own.py").write_text(OWN)
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp"), "PYTHONWARNINGS": "ignore"}


def test_recipes_are_tried_and_what_is_wrong_is_told(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("skimage", reason="the sample photographs are missing: pip install -e '.[quickstart]'")
    command = [sys.executable, str(tmp_path / "own.py"), "--rounds", "1", "--photos", "20", "--quick", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr  # one of them is wrong
    found = {one["name"]: one for one in json.loads(done.stdout)["recipes"]}
    for name, goes in (("ImageFolder", "whole"), ("CSV, Pillow, torchvision", "host")):
        one = found[name]
        assert (one["works"], one["goes"], one["bits"]) == (True, goes, "equal"), one
        assert len(one["theirs"]) == len(one["ours"]) == 1 and min(one["theirs"] + one["ours"]) > 0
    assert (found["RandAugment v1"]["works"], found["RandAugment v1"]["bits"]) == (True, "not compared")
    wrong = found["wrong"]
    assert not wrong["works"] and re.match(r"batch 0\[0\]: [\d,]+ of [\d,]+ values differ, by ", wrong["bits"])
    assert found["dies"]["error"] == "its process ended with status 3: it printed nothing"
    assert found["fails alone"]["error"] == "without ddlp: ZeroDivisionError: division by zero"
    assert found["missing"]["missing"] == ["no_such_package"] and not found["missing"]["error"]
    assert "missing" in done.stderr and "pip install no_such_package" in done.stderr
    left = list((tmp_path / "tmp").iterdir())
    assert left == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_what_was_started_and_shows_what_was_found(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals, status: int
) -> None:
    pytest.importorskip("skimage", reason="the sample photographs are missing: pip install -e '.[quickstart]'")
    chosen = ["--photos", "4", "--only", "missing", "--only", "hangs"]
    command = [sys.executable, str(tmp_path / "own.py"), *chosen]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout and running.stderr
        for line in running.stderr:
            if "1/2  missing" in line:
                break
        deadline = time.monotonic() + 60
        while not (children := family(running.pid)[1:]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert children
        running.send_signal(number)
        shown, said = running.communicate(timeout=60)
    assert running.returncode == status and "stopped after 1 of 2" in said and "Traceback" not in said
    assert "| missing | not tried: pip install no_such_package |" in shown
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_recipe_that_hangs_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("skimage", reason="the sample photographs are missing: pip install -e '.[quickstart]'")
    hangs = dataclasses.replace(RECIPES[0], name="hangs", needs=(), files=lambda *_: time.sleep(600))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["--photos", "4", "--limit", "0.5", "--json"], [hangs]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads(capsys.readouterr().out)["recipes"][0]["error"] == "not finished within 0.5 s"
