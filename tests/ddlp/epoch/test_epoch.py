"""An epoch is described once, and its description and what lives in it are all that its executor needs: no loader."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays
from ddlp.epoch.begin import execute, host_of
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import Cpu
from ddlp.sources.base import Epoch, PreparedBatch, Resources
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.portable import portable
from tests.engine_process import until

COUNT, BATCH = 22, 4


def data() -> ImageArrays:
    images = np.random.default_rng(1).integers(0, 256, (COUNT, 12, 12, 3), np.uint8)
    return ImageArrays(images, range(COUNT), transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))


def described(number: int, workers: int = 2) -> Resources:
    loader = DataLoader(data(), BATCH)
    samples = portable(loader, None, None)
    plan = EpochPlan(loader.batch_sampler, samples.dataset, whole=True, batched=True)
    epoch = Epoch(samples, seed=5, number=number, workers=workers, batch_size=BATCH)
    return Resources(epoch, plan, samples.dataset.reader(), MemoryPool(4))


def delivered(resources: Resources) -> list[torch.Tensor]:
    """Run the epoch, and return its images in their order."""
    closed: list[bool] = []
    executor = execute(
        resources, None, host_of(resources, None), Cpu.make, Rates(), on_closed=lambda: closed.append(True)
    )
    batches: dict[int, PreparedBatch] = {}
    while (batch := executor.delivery.next_batch()) is not None:
        position, _, batches[position] = batch
    executor.close()
    assert closed == [True] and executor.report().batches_cpu == len(batches) == 6
    return [batches[position].images for position in range(len(batches))]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_runs_without_a_loader(workers: int) -> None:
    resources = described(3, workers)
    loader = DDLPLoader(data(), BATCH, seed=5)
    loader.set_epoch(3)
    for ours, (theirs, _) in zip(delivered(resources), loader, strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(delivered(described(4))[0], delivered(described(3))[0]), "another epoch draws other crops"


def test_a_description_does_not_change() -> None:
    epoch: Any = described(0).epoch
    with pytest.raises(dataclasses.FrozenInstanceError):
        epoch.seed = 6


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
