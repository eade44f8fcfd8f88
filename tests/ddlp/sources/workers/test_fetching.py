"""What torch's own workers tell about each batch: its times, its worker, its processor seconds."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from ddlp import DDLPLoader
from ddlp.schedule.rates import Rates
from ddlp.sources.workers.fetching import FetchHooks, Took
from ddlp.stats.report import Counts

SAMPLES, BATCH, SLEEP_S = 11, 4, 0.01
BURNT_S = 0.02

pytestmark = pytest.mark.usefixtures("hard_limit")


class Sleeps(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLEEP_S)
        return torch.tensor(index)


class Burns(Sleeps):
    """Takes processor time."""

    def __getitem__(self, index: int) -> Any:
        until = time.thread_time() + BURNT_S
        while time.thread_time() < until:
            pass
        return torch.tensor(index)


class Counting(Sleeps):
    """Has a state of its own."""

    asked = 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = state["asked"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for number in range(get_worker_info() is None and SAMPLES or SAMPLES // 2):
            time.sleep(SLEEP_S)
            yield torch.tensor(number)


def asleep(number: int) -> Any:
    time.sleep(SLEEP_S)
    return torch.tensor(number)


class Nested(Sleeps):
    """Makes loaders of its own for each sample: torch's and ddlp's."""

    def __getitem__(self, index: int) -> Any:
        inner = [kind(Sleeps(), SAMPLES) for kind in (DataLoader, DDLPLoader)]
        first, second = (batch for loader in inner for batch in loader)
        assert torch.equal(first, second)
        return first.sum()


class Watching(FetchHooks):
    def __init__(self) -> None:
        self.made: list[tuple[Took, int, int, int]] = []
        self.calls: list[str] = []

    def began(self) -> None:
        self.calls.append("began")

    def delivered(self, took: Took, position: int, samples: int, asked_at: float, got_at: float, ready: int) -> None:
        assert asked_at <= got_at
        self.made.append((took, position, samples, ready))

    def exhausted(self, asked_at: float) -> None:
        self.calls.append("exhausted")

    def closed(self) -> None:
        self.calls.append("closed")


def watched(loader: DDLPLoader) -> tuple[Watching, Any]:
    hooks, iterator = Watching(), iter(loader)
    iterator.watch(hooks)
    return hooks, iterator


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("make", [Sleeps, Counting, Stream, lambda: IterableWrapper(range(SAMPLES)).map(asleep)])
def test_each_batch_has_its_times(make: Any, workers: int) -> None:
    began_at = time.monotonic()
    hooks, iterator = watched(DDLPLoader(make(), BATCH, num_workers=workers))
    batches = list(iterator)
    assert all(isinstance(batch, torch.Tensor) for batch in batches) and len(batches) == len(hooks.made)
    assert [position for _, position, _, _ in hooks.made] == list(range(len(batches)))
    for (took, _, samples, ready), batch in zip(hooks.made, batches, strict=True):
        assert samples == len(batch) and 0 <= ready <= max(0, 2 * workers)
        assert began_at <= took.began_at and took.ended_at - took.began_at >= samples * SLEEP_S  # sleep is never shorter
        assert took.ended_at <= time.monotonic() and 0 < took.cpu_s < 60 and took.read_s == 0
    assert {took.worker for took, *_ in hooks.made} == set(range(max(1, workers)))
    assert hooks.calls == ["began", "exhausted", "closed"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_report_has_rates_and_processor_seconds(workers: int) -> None:
    loader = DDLPLoader(Burns(), BATCH, num_workers=workers)
    for _ in range(2):
        list(loader)
        report = loader.report()
        assert report.host_cpu_s >= SAMPLES * BURNT_S
        assert 0 < report.rate_cpu <= max(1, workers) / BURNT_S  # no worker makes a sample in less
    assert loader.live().total.host_cpu_s >= 2 * SAMPLES * BURNT_S


def test_loaders_within_a_worker_are_left_alone() -> None:
    loader = DDLPLoader(Nested(), BATCH, num_workers=1)
    assert torch.cat(list(loader)).tolist() == [sum(range(SAMPLES))] * SAMPLES


def test_a_last_batch_counts_as_its_part() -> None:
    """Three samples take three quarters of a batch's time, and say the same of the rate."""
    counts = Counts(rates=Rates())
    for samples in (4, 4, 3):
        counts.made(samples, 0.1 * samples, 0.05 * samples)
    report = counts.report("cpu", counts.rates, counts.rates.full_batch, ())
    assert (report.rate_cpu, report.host_cpu_s) == (pytest.approx(10), pytest.approx(0.55))
    assert counts.rates.host_cpu.seconds == pytest.approx(0.2)


def test_an_epoch_that_is_broken_off_is_closed() -> None:
    hooks, iterator = watched(DDLPLoader(Sleeps(), BATCH))
    next(iterator)
    del iterator
    gc.collect()
    assert hooks.calls == ["began", "closed"]


def test_of_workers_that_persist_the_next_epoch_closes_the_one_before() -> None:
    loader = DDLPLoader(Sleeps(), BATCH, num_workers=1, persistent_workers=True)
    hooks, iterator = watched(loader)
    next(iterator)
    assert hooks.calls == ["began"]
    list(loader)
    assert hooks.calls == ["began", "closed"]
