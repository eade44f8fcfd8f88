"""Random operators, drawn at random: each of ddlp's ways gives a sample the same bits."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddlp import Cache, DDLPLoader
from tests.ddlp.dropin.beside import plain
from tests.ddlp.dropin.own_steps import Noise, Shift
from tests.ddlp.dropin.small_sets import numbered

KNOWN: dict[str, Callable[[random.Random], Any]] = {
    "resized crop": lambda draw: v1.RandomResizedCrop((24, 26), scale=(draw.choice([0.1, 0.5]), 1.0)),
    "crop": lambda draw: v2.RandomCrop((23, 22), padding=draw.choice([None, 3]), pad_if_needed=True),
    "flip": lambda draw: v1.RandomHorizontalFlip(draw.choice([0.3, 0.5])),
    "vertical flip": lambda draw: v2.RandomVerticalFlip(),
    "jitter": lambda draw: v1.ColorJitter(0.4, 0.3, draw.choice([0, 0.3]), draw.choice([0, 0.2])),
    "grey": lambda draw: v1.RandomGrayscale(0.4),
    "blur": lambda draw: v2.GaussianBlur(draw.choice([3, 5])),
    "rotation": lambda draw: v1.RandomRotation(30, v1.InterpolationMode.BILINEAR, fill=7),
    "affine": lambda draw: v1.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 5),
    "perspective": lambda draw: v2.RandomPerspective(0.4),
    "RandAugment": lambda draw: v1.RandAugment(draw.choice([1, 2]), 7),
    "TrivialAugmentWide": lambda draw: v2.TrivialAugmentWide(),
    "AutoAugment": lambda draw: v1.AutoAugment(),
    "applied": lambda draw: v1.RandomApply([v1.RandomPosterize(3, 0.5), v1.RandomSolarize(100, 0.5)], 0.6),
    "one of": lambda draw: v1.RandomChoice([v1.RandomInvert(), v1.RandomEqualize(), v1.RandomAutocontrast()]),
    "in any order": lambda draw: v1.RandomOrder([v1.RandomAdjustSharpness(2), v1.RandomInvert(0.3)]),
}
SIZED = (v1.Resize((20, 18)), v1.RandomCrop(16))


def first(image: Any) -> Any:
    """A step that ddlp does not know."""
    return image.rotate(3)


def drawn(seed: int) -> tuple[Any, str, str]:
    """Draw a transform. Returns it, its kind and its text."""
    draw = random.Random(seed)
    steps = [KNOWN[name](draw) for name in draw.sample(list(KNOWN), draw.randint(1, 4))]
    kind = draw.choice(["known", "known", "own steps", "own steps that draw", "user code"])
    if kind == "user code":
        steps = [v1.Lambda(first), *steps, *SIZED, v1.ToTensor()]
    elif kind == "known":
        erased = [v1.RandomErasing(0.7, (0.05, 0.2))] if draw.random() < 0.5 else []
        steps = [*steps, *SIZED, v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.25,) * 3), *erased]
    else:
        steps = [*steps, *SIZED, *([Noise()] if kind == "own steps that draw" else [Shift(), v1.ToTensor()])]
    return v1.Compose(steps), kind, f"seed {seed}: {steps}"


WAYS: dict[str, list[dict[str, Any]]] = {
    "known": [{"num_workers": 2}, {"strategy": "csd"}, {"strategy": "wrr", "num_workers": 2}, {"cache": True}],
    "own steps": [{"num_workers": 2}, {"num_workers": 2, "own_steps": "threads"}, {"strategy": "csd"},
                  {"strategy": "wrr", "num_workers": 1}, {"cache": True, "num_workers": 1}],
    "own steps that draw": [{"num_workers": 2}, {"strategy": "csd"}, {"strategy": "wrr", "num_workers": 1}, {"cache": True}],
    "user code": [{"num_workers": 1}, {"num_workers": 2, "postpone_decoding": False},
                  {"num_workers": 1, "persistent_workers": True}],
}  # fmt: skip


def samples(transform: Any, paths: list[str], **way: Any) -> list[Any]:
    """Two epochs' samples, each epoch's by target."""
    loader = DDLPLoader(numbered(paths, transform), 4, seed=5, **way)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            torch.manual_seed(len(found))  # the training's own draws are no sample's
            pairs = [pair for images, targets in loader for pair in zip(targets.tolist(), images, strict=True)]
            found.append({target: plain(image) for target, image in pairs})
    return found


def hold_all_ways_together(seed: int, paths: list[str], spool: str, directory: Path) -> None:
    transform, kind, text = drawn(seed)
    expected = samples(transform, paths)
    assert expected[0] != expected[1], text
    for way in WAYS[kind]:
        given = {**way, **({"spool": spool} if "strategy" in way else {})}
        if "cache" in way:
            given["cache"] = Cache(directory / str(seed), "100M")
        if samples(transform, paths, **given) != expected:
            pytest.fail(f"{way} makes other samples than num_workers=0, {text}")


@pytest.mark.parametrize("start", range(0, 20, 5))
@pytest.mark.some(1)
def test_all_ways_make_the_same(paths, engine, tmp_path, start):
    for seed in range(start, start + 5):
        hold_all_ways_together(seed, paths[:10], engine, tmp_path)


@pytest.mark.slow
def test_all_ways_make_the_same_by_fresh_seeds(paths, engine, tmp_path):
    """DDLP_TEST_SEED=N runs those from N on again."""
    start = int(os.environ.get("DDLP_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"DDLP_TEST_SEED={start}")
    for seed in range(start, start + 200):
        hold_all_ways_together(seed, paths, engine, tmp_path)
