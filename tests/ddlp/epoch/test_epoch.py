"""How an epoch begins: what is drawn in which order, and what is left where it can't."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays
from tests.engine_process import until

COUNT, BATCH = 22, 4


def data() -> ImageArrays:
    images = np.random.default_rng(1).integers(0, 256, (COUNT, 12, 12, 3), np.uint8)
    return ImageArrays(images, range(COUNT), transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))


class Drawing:
    """A batch sampler that draws its order when it is begun, before its first batch is asked for."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return -(-COUNT // BATCH)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(COUNT, generator=self.generator).tolist()
        return iter([order[k : k + BATCH] for k in range(0, COUNT, BATCH)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_sampler_is_begun_before_the_base_seed_is_drawn(workers: int, persistent: bool) -> None:
    """As in torch's own iterators: else both, the order and the seeds of workers, would be others."""
    if persistent and not workers:
        pytest.skip("DataLoader keeps workers only if there are some")
    found = []
    for kind in (DataLoader, DDLPLoader):
        generator = torch.Generator().manual_seed(3)
        loader = kind(
            data(),
            batch_sampler=Drawing(generator),
            generator=generator,
            num_workers=workers,
            persistent_workers=persistent,
        )
        epochs = []
        for _ in range(3):
            iterator = iter(loader)
            labels = torch.cat([labels for _, labels in iterator]).tolist()
            epochs.append((labels, int(iterator._base_seed), generator.get_state().tolist()))
        found.append(epochs)
    assert found[0] == found[1]


class Fails(Drawing):
    """A batch sampler whose third batch is an error: DataLoader with two workers asks for four when the epoch begins."""

    def __iter__(self) -> Iterator[list[int]]:
        yield [0, 1]
        yield [2, 3]
        raise ValueError("no third batch")


def test_an_epoch_that_can_not_begin_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    loader = DDLPLoader(data(), batch_sampler=Fails(torch.Generator()), num_workers=2)
    with pytest.raises(ValueError, match="no third batch"):
        iter(loader)
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("ddlp-")]
    until(lambda: not any(thread.is_alive() for thread in left), 30, "the end of its threads")
