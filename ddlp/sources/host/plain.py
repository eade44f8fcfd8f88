"""torch's own DataLoader, to the bit, whose batches are measured: the baseline that ddlp is compared with.

Data set, sampler, collate_fn, generators, workers and the way of their batches are torch's. Each batch brings the time that it
took along (`ddlp.sources.workers.timed_fetch`), and nothing else is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from ddlp import decode
from ddlp.sampling.checkpoint import Resume
from ddlp.sampling.torch_loader import as_torch_reads
from ddlp.schedule.rates import Rates
from ddlp.sources.host.torch_workers import _counts, _Processes, _Single
from ddlp.sources.workers.timed_fetch import time_fetches, timed
from ddlp.transfer.to_device import MoveAndTransform

__all__ = ["PlainIterator", "iterate_plain"]

PlainIterator = _Single | _Processes
_AS_IT_IS = MoveAndTransform(None, None)


class _TimedStart:
    """Runs first in each worker: the worker measures its batches. Then it calls the user's worker_init_fn."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        time_fetches()
        decode.uninstall()
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker)


class _PlainMemory:
    """As `KeyedMemory`, of a loader as it is but for what marks its workers' fetchers."""

    known_base_seed: int | None = None  # torch's iterator draws it
    postpone = False
    ended = False

    def __init__(self, loader: DataLoader) -> None:
        start = _TimedStart(loader.worker_init_fn)
        self.torch = as_torch_reads(loader, collate_fn=timed(loader, loader.collate_fn), worker_init_fn=start)
        self._delivered = 0

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume, *, seed_drawn: bool) -> None:
        """As `KeyedMemory.next_epoch`: torch reads the sampler itself."""
        self.ended = False

    def deliver(self, number: int) -> int:
        """Return the position of batch ``number`` of those sent to the workers; -1: of the next one, without workers."""
        self._delivered += 1
        return self._delivered - 1 if number < 0 else number


def iterate_plain(loader: DataLoader, rates: Rates, epoch: int, kept: PlainIterator | None = None) -> PlainIterator:
    """Begin an epoch of a DataLoader.

    Args:
        loader: a DataLoader of any kind; its own iter() is not called.
        rates: how fast its workers and training are.
        epoch: the number of the epoch, for the report.
        kept: the previous epoch's iterator, if its workers persist.
    """
    if kept is not None:
        kept.restart(loader, None, epoch, Resume(), _AS_IT_IS)
        return kept
    kind: Any = _Processes if loader.num_workers else _Single
    if loader.num_workers:
        loader.check_worker_number_rationality()  # as DataLoader: it may warn
    iterator: PlainIterator = kind(loader, _PlainMemory(loader), _counts(rates, epoch, Resume()), _AS_IT_IS)
    return iterator
