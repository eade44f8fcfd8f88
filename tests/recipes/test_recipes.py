"""Each recipe goes the way that docs/recipes.md says, with DataLoader's bits. The page is what the list gives."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import ddlp
from ddlp import DDLPLoader
from tests.recipes import RECIPES
from tests.recipes.__main__ import PAGE, written
from tests.recipes.datasets import Described
from tests.recipes.pipelines import STD
from tests.recipes.recipe import Recipe

QUICK = ("ImageFolder", "CSV, Pillow, torchvision", "RandAugment v1", "a lambda", "TensorDataset")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JPEG files, smooth as photographs are, of which the data sets are made."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(5)
    paths = []
    for number in range(20):
        size = tuple(random.integers(180, 520, 2).tolist())
        image = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
        paths.append(root / f"{number:05d}.jpg")
        image.save(paths[-1], subsampling=number % 3, progressive=number % 5 == 0)
    return paths


def loader(kind: Callable[..., Any], recipe: Recipe, root: Path) -> Any:
    torch.manual_seed(0)
    dataset = recipe.opened(root, recipe.transform(recipe.draws != "free"))
    return kind(dataset, recipe.batch, num_workers=1, **({} if recipe.stream else {"shuffle": False}), **recipe.options)


def way(explanation: str) -> str:
    """What `explain()` says of a loader, in one word: see `Recipe.way`."""
    travels = re.search(r"^travels +(.*)$", explanation, re.MULTILINE)
    if travels is None or travels[1].startswith("nothing:"):  # "nothing but decoding" travels
        return "host"
    return "prefix" if re.search(r"^own steps\b|\b(cut here|prefix)\b", explanation, re.MULTILINE) else "whole"


def check(recipe: Recipe, ours: Any, theirs: Any) -> None:
    """Types, keys, shapes and dtypes are the same, and so are values as far as the recipe's `bits` say."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, Mapping):
        assert list(ours) == list(theirs)
        for key in theirs:
            check(recipe, ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            check(recipe, *pair)
    elif not isinstance(theirs, torch.Tensor):
        assert ours == theirs
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if recipe.draws == "free":
            return
        unlike = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
        if recipe.blurs and theirs.is_floating_point() and unlike.any():
            steps = (ours - theirs).abs().max() * 255 * torch.tensor([1.0, *STD])
            assert ((steps - 1).abs() < 1e-3).any(), "the largest difference is not 1 of 255"
            assert unlike.sum() * 10_000 < theirs.numel()
        else:
            assert not unlike.any(), f"{unlike.sum()} of {theirs.numel()} values differ"


def trial(recipe: Recipe, root: Path, photos: Sequence[Path]) -> None:
    recipe.files(root, photos)
    expected = list(loader(DataLoader, recipe, root))
    ours = loader(DDLPLoader, recipe, root)
    assert way(ours.explain()) == recipe.way
    batches = list(ours)
    assert len(batches) == len(expected) > 0
    for pair in zip(batches, expected, strict=True):
        check(recipe, *pair)


@pytest.mark.parametrize(
    "recipe", [pytest.param(one, id=one.name, marks=() if one.name in QUICK else pytest.mark.slow) for one in RECIPES]
)
@pytest.mark.some(3)
def test_a_recipe(recipe: Recipe, photos: list[Path], tmp_path: Path, need_kernel: None) -> None:
    missing = [package for package in recipe.needs if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"pip install {' '.join(missing)}")
    trial(recipe, tmp_path, photos)


class Wrong(Described):
    """Describes the same files in another order: each image has its neighbour's label."""

    def __ddlp__(self) -> Any:
        return ddlp.ImageFiles(self.paths[1:] + self.paths[:1], self.targets, self.transform)


def test_another_image_is_seen(photos: list[Path], tmp_path: Path, need_kernel: None) -> None:
    (described,) = (recipe for recipe in RECIPES if recipe.opened is Described)
    with pytest.raises(AssertionError, match="values differ"):
        trial(replace(described, opened=Wrong), tmp_path, photos)


def test_the_page_is_what_the_list_gives() -> None:
    assert written(PAGE.read_text()) == PAGE.read_text(), "run python -m tests.recipes"


def test_names_are_unique_and_groups_stand_together() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    groups = [recipe.group for recipe in RECIPES]
    begun = [group for k, group in enumerate(groups) if k == 0 or groups[k - 1] != group]
    assert len(set(begun)) == len(begun)


def test_what_a_recipe_needs_is_in_the_extra() -> None:
    root = PAGE.parents[1]
    extra = (root / "setup.cfg").read_text().partition("\nrecipes =\n")[2].split("\n#")[0].split()
    assert {package for recipe in RECIPES for package in recipe.needs} <= set(extra)
    pinned = {line.partition("==")[0] for line in (root / "constraints.txt").read_text().splitlines()}
    assert {package for package in extra if not package.startswith("%")} <= pinned
