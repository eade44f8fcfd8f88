"""A worker claims several short batches at a time. Nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

import ddlp.epoch.monitor
from ddlp import DDLPLoader, ImageArrays
from ddlp.schedule.claim_chunks import ClaimChunker
from tests.ddlp.dropin.small_sets import by_target, numbered

SAMPLES = 600


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    """Make all batches count as short. Returns the number of batches of each claim."""
    seen: list[int] = []

    class Seen(ClaimChunker):
        def claim(self, now: float) -> list[tuple[int, int]]:
            run = super().claim(now)
            seen.append(len(run))
            return run

    monkeypatch.setattr(ddlp.epoch.monitor, "ClaimChunker", partial(Seen, run_s=60.0))
    return seen


@pytest.fixture(scope="module")
def images() -> ImageArrays:
    array = np.random.default_rng(8).integers(0, 256, (SAMPLES, 9, 9, 3), dtype=np.uint8)
    moves = transforms.Compose([transforms.RandomCrop(8), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    return ImageArrays(array, list(range(SAMPLES)), moves)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("strategy", ["cpu", "mte", "ordered", "wrr"])
@pytest.mark.some(3)
def test_the_same_batches(images, engine, lengths, strategy, workers):
    spool = None if strategy == "cpu" else engine
    loader = DDLPLoader(images, 2, shuffle=True, seed=3, num_workers=workers, strategy=strategy, spool=spool, timeout=20)
    for epoch in range(2):
        batches = list(loader)
        plain = DDLPLoader(images, 50, seed=3)
        plain.set_epoch(epoch)
        expected = by_target(list(plain))
        found = by_target(batches)
        assert sorted(found) == list(range(SAMPLES)) and len(batches) == SAMPLES // 2
        assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert max(lengths) > 1, "no claim took several batches"


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unreadable_file_raises_in_its_place(paths, tmp_path, lengths, workers):
    several = [shutil.copy(path, tmp_path / f"{turn}-{k}.jpg") for turn in range(4) for k, path in enumerate(paths)]
    for k in (30, 31, 66):
        with open(several[k], "r+b") as stream:
            stream.write(b"\0" * 50)
    data = numbered(several, transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()]))

    def told(loader: DataLoader) -> Iterator[type | int]:
        iterator = iter(loader)
        for _ in range(len(loader)):
            try:
                yield len(next(iterator))
            except OSError as error:
                yield type(error)

    assert list(told(DDLPLoader(data, 1, num_workers=workers))) == list(told(DataLoader(data, 1)))
    assert max(lengths) > 1
