"""torch's own DataLoader, to the bit, whose batches are measured: the baseline that ddlp is compared with.

Data set, sampler, collate_fn, generators, workers and the way of their batches are torch's. Each batch brings the time that it
took along (`ddlp.sources.workers.fetching`), and nothing else is added.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from ddlp.sampling.checkpoint import Resume
from ddlp.sampling.torch_loader import as_torch_reads
from ddlp.schedule.rates import Rates
from ddlp.sources.host.memories import UserCodeMemory
from ddlp.sources.host.torch_workers import _Processes, _Single, counts_of
from ddlp.sources.workers.fetching import Took, WorkerStart, timed
from ddlp.transfer.to_device import MoveAndTransform

__all__ = ["PlainIterator", "iterate_plain"]

PlainIterator = _Single | _Processes
_AS_IT_IS = MoveAndTransform(None, None)


class _PlainMemory(UserCodeMemory):
    """That of a loader as it is but for what marks its workers' fetchers."""

    def __init__(self, loader: DataLoader) -> None:
        self.known_base_seed, self.base_seed, self.postpone = None, 0, False
        start = WorkerStart(loader.worker_init_fn, postpone=False)
        self.torch = as_torch_reads(loader, collate_fn=timed(loader), worker_init_fn=start)
        self._delivered = 0

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume) -> None:
        """As `UserCodeMemory.next_epoch`: torch reads the sampler itself."""
        self.ended = False

    def deliver(self, number: int, took: Took) -> int:
        """As `UserCodeMemory.deliver`."""
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
    iterator: PlainIterator = kind(_PlainMemory(loader), counts_of(rates, epoch, Resume()), _AS_IT_IS)
    return iterator
