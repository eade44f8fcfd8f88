"""`LocalPool(cache=)`: the same batches, and engines that keep what is the same in every epoch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

from csd_engine.cache.shelves import Shelves
from ddlp import Cache, DDLPLoader, ImageFiles, LocalPool
from tests.both_sides import until_both
from tests.engine_process import make_jpegs, until

TRANSFORM = v2.Compose([v2.Resize(28), v2.CenterCrop(24), v2.RandomHorizontalFlip(), v2.ToTensor()])


def test_epochs_are_those_without_it(tmp_path: Path) -> None:
    files = [str(tmp_path / path) for path in make_jpegs(tmp_path, np.random.default_rng(5))]
    for path in files:
        os.utime(path, ns=(10**18, 10**18))

    def make(**arguments: Any) -> DDLPLoader:
        return DDLPLoader(ImageFiles(files, range(24), TRANSFORM), 2, shuffle=True, num_workers=1, seed=3, **arguments)

    def images(batches: list[Any]) -> dict[int, torch.Tensor]:
        return {int(label): image for images, labels in batches for image, label in zip(images, labels, strict=True)}

    torch.manual_seed(0)
    expected = images(list(make()))
    cache = Cache(tmp_path / "cache", "1G")
    loaders = [make(strategy=strategy, pool=LocalPool(1, cache=cache)) for strategy in ("wrr", "ordered", "wrr")]
    for loader in loaders:  # the engine is the same one
        for batches in until_both(loader):
            found = images(batches)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[label], expected[label]) for label in expected)
    shelves = Shelves(cache.directory, 0)
    kept = "what the engine's last job has kept"  # written behind the epoch's end
    (shelf,) = until(lambda: [one for one in shelves.summaries() if one.samples], 20, kept)
    assert shelf.about["samples"] == 24
