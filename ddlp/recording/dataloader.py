"""`MeasuredDataLoader`: torch's own DataLoader, to the bit, with a report and recordings like `DDLPLoader`'s."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from csd_engine.machine.computer import cpus
from ddlp.errors import DDLPError
from ddlp.process.ranks import here
from ddlp.recording.recorder import Recorder
from ddlp.recording.user_code import user_code_recording
from ddlp.schedule.strategies import DATALOADER
from ddlp.sources.host.plain import PlainIterator, iterate_plain
from ddlp.stats.live import Life, counted, length
from ddlp.stats.report import EpochReport

__all__ = ["MeasuredDataLoader", "measured_epoch"]


def measured_epoch(
    loader: DataLoader, life: Life, record: str | os.PathLike[str] | Recorder | None, kept: PlainIterator | None
) -> PlainIterator:
    """Begin an epoch of torch's own DataLoader. Its batches are counted in ``life``, and recorded.

    Args:
        loader: the DataLoader.
        life: its numbers.
        record: as in `DDLPLoader`; None: nothing is recorded.
        kept: the previous epoch's iterator, if its workers persist.

    Raises OSError if nothing can be recorded.
    """
    epoch = life.total().epochs
    if kept is not None:
        kept.watch(None)  # its epoch may have been broken off
    recording = user_code_recording(record, loader, epoch, DATALOADER)
    try:
        iterator = iterate_plain(loader, life.rates, epoch, kept)
    except BaseException:
        if recording is not None:
            recording.closed()
        raise
    iterator.counts.strategy = DATALOADER
    iterator.watch(recording)
    life.began(iterator.counts)
    return iterator


class MeasuredDataLoader(DataLoader):
    """`torch.utils.data.DataLoader`, whose batches are measured: the baseline for `DDLPLoader`.

    Batches, their order, random draws and workers are DataLoader's, to the bit. Each batch brings along how long it took and
    how much processor time. All other arguments are DataLoader's.

    Args:
        record: a directory, or a `Recorder`, as in `DDLPLoader`. None: nothing is recorded.
    """

    def __init__(self, *args: Any, record: str | os.PathLike[str] | Recorder | None = None, **kwargs: Any) -> None:
        self.record = record
        self._life = Life()
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Any:
        """Begin an epoch, as DataLoader does. Raises OSError if it can't be recorded."""
        keeps = self.persistent_workers and self.num_workers > 0
        kept: Any = self._iterator if keeps else None
        iterator = measured_epoch(self, self._life, self.record, kept)
        if keeps:
            self._iterator = iterator
        return iterator

    def report(self) -> EpochReport:
        """Return the report of the last epoch, or of the current one so far. Raises DDLPError before the first epoch.

        Without workers, ``waiting_s`` is the time in which the training thread prepared batches itself.
        """
        now, ranks = counted(self._life.last, self._life.total(), length(self)), here()
        if not now.total.epochs:
            raise DDLPError("report(): no epoch has begun; iterate over the loader first")
        processors = max(1, cpus() // (1 if ranks is None else ranks.local_ranks))
        return replace(now.report, workers=self.num_workers, processors=processors)
