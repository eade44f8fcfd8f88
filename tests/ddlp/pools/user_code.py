"""A data set, a transform and collate functions that only their own code can make, for the tests of user code on a pool."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, default_collate

from ddlp import DDLPLoader
from ddlp.sources.usercode.tree import encode

SEED, BATCH, SAMPLES = 3, 4, 60


class Jitter:
    """Draws from all three generators."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(()) + np.random.rand() + random.random()


class Records(Dataset[Any]):
    """Samples that are dicts. Each sample takes a while, so that both sides get some."""

    def __init__(self, samples: int = SAMPLES, seconds: float = 0.005) -> None:
        self.samples, self.seconds, self.transform = samples, seconds, Jitter()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"index": index, "name": f"record {index}", "x": self.transform(torch.full((3, 2), float(index)))}


class Raises(Records):
    """Sample 17 is bad."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 17:
            raise OSError("record 17 is damaged")
        return super().__getitem__(index)


class Images(Records):
    """Opens an image of 30,000 pixels for sample 17, and one of 70,000 for sample 33."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        for index, size in ((17, (300, 100)), (33, (700, 100))):
            Image.new("L", size).save(f"{directory}/{index}.png")

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in (17, 33):
            Image.open(f"{self.directory}/{index}.png").close()
        return super().__getitem__(index)


class Here(Records):
    """What it gives depends on its process."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "process": os.getpid()}


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


class Sums(dict):
    """No plain dict."""


def ragged(samples: list[Any]) -> tuple[Any, ...]:
    """A collate_fn that draws."""
    return [one["name"] for one in samples], torch.stack([one["x"] for one in samples]) * torch.rand(()), None, b"end"


def own_type(samples: list[Any]) -> Any:
    return Sums(default_collate(samples))


def sometimes_own_type(samples: list[Any]) -> Any:
    batch = default_collate(samples)
    return Sums(batch) if int(batch["index"][0]) % 3 == 2 else batch


def make_loader(dataset: Any, strategy: str | None = "ordered", **options: Any) -> DDLPLoader:
    return DDLPLoader(dataset, BATCH, **{"num_workers": 1, "seed": SEED, "strategy": strategy, **options})


def check(batches: list[Any], dataset: Any, epoch: int = 0, in_order: bool = True, **options: Any) -> None:
    """Assert that the batches are those that torch's workers make without a pool, each once, bit for bit."""
    host = make_loader(dataset, None, **options)
    host.set_epoch(epoch)
    made, truth = ([(one.header, *map(bytes, one.buffers)) for one in map(encode, some)] for some in (batches, host))
    assert (made if in_order else sorted(made)) == (truth if in_order else sorted(truth))
