"""`strategy="auto"` with a pool that can grow and shrink: real engines, and an operator that sleeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Subset
from torchvision import transforms as T

from ddlp import DDLPLoader, ImageArrays, LocalPool, load_operators
from ddlp.pools.base import range_of
from scripts import auto_check

IMAGES = 4
MOST = 3
BATCHES = 4000


class Elastic(LocalPool):
    """Engines on this machine, as many as are asked for."""

    def __init__(self, least: int, most: int) -> None:
        self.min, self.max = least, most
        self.asked: list[int] = []
        super().__init__(least)
        self.asked.clear()

    def want(self, engines: int) -> None:
        assert self.min <= engines <= self.max
        self.asked.append(engines)
        super().want(engines)


def loader_of(pool: Any, batches: int) -> DDLPLoader:
    images = np.arange(IMAGES * 8 * 8 * 3, dtype=np.uint8).reshape(IMAGES, 8, 8, 3)
    prepare = load_operators(auto_check.OPERATOR).prepare(host_s=0.0)
    data = ImageArrays(images, range(IMAGES), T.Compose([prepare, T.PILToTensor()]))
    samples: Any = Subset(data, [number % IMAGES for number in range(batches)])
    return DDLPLoader(samples, 1, shuffle=True, strategy="auto", seed=0, pool=pool)


def test_a_pool_has_a_range_if_it_says_so():
    assert range_of(Elastic(1, 4)) == (1, 4)
    assert range_of(LocalPool(2)) is None and range_of(Elastic(2, 2)) is None


@pytest.mark.slow
def test_engines_join_as_training_waits_and_no_sample_is_lost(leaves_nothing, monkeypatch, tmp_path):
    """Both sides sleep for a batch, and training takes no time: it asks for all that there may be."""
    sleeps = Path(tmp_path) / "sleep"
    sleeps.write_text("0.03")
    monkeypatch.setenv("DDLP_SLEEP", str(sleeps))
    pool = Elastic(1, MOST)
    loader = loader_of(pool, BATCHES)
    seen, together = 0, 0
    for images, labels in loader:
        assert int(images.flatten()[0]) == int(labels[0]) * 192 % 256
        seen += 1
        together = max(together, sum(one.alive for one in loader.live().devices))
        if together == MOST:  # the rest need not take long
            (tmp_path / "no sleep").write_text("0.0")
            (tmp_path / "no sleep").replace(sleeps)
    assert seen == BATCHES
    assert pool.asked and pool.asked[-1] == MOST, (pool.asked, loader.decision)
    assert together == MOST, "they have joined the epoch under way"


@pytest.mark.slow
def test_a_pool_without_a_range_is_left_alone(leaves_nothing, monkeypatch, tmp_path):
    sleeps = Path(tmp_path) / "sleep"
    sleeps.write_text("0.01")
    monkeypatch.setenv("DDLP_SLEEP", str(sleeps))
    pool = Elastic(1, 1)
    for _ in loader_of(pool, 400):
        pass
    assert not pool.asked
