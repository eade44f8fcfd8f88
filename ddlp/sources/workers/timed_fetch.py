"""How long torch's own workers take for each batch: their fetchers are wrapped, and the times travel beside the batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, _DatasetKind, get_worker_info

from csd_engine.prepare.read_time import READING
from ddlp.stats.thread_cpu import thread_queued_s

__all__ = ["FetchHooks", "TimedCollate", "TimedFetcher", "Took", "time_fetches", "timed"]


_QUICK_S = 1e-3


class Took(NamedTuple):
    """What it took to make a batch.

    Attributes:
        worker: the number of the worker that made it; 0 in the training process.
        began_at, ended_at: moments of the monotonic clock, which all processes of a computer share.
        read_s: seconds in which ddlp's own code has read files.
        cpu_s: processor seconds, user and system: of all threads of a worker process; in the training process of this thread.
        queued_s: seconds in which the thread that made it was ready to run and had no processor; 0: not known.
    """

    worker: int
    began_at: float
    ended_at: float
    read_s: float
    cpu_s: float
    queued_s: float


class FetchHooks:
    """The training thread calls these methods in an epoch that torch's own workers prepare. They do nothing."""

    def began(self) -> None:
        """The epoch is ready. Its workers may be at work already."""

    def delivered(self, took: Took, position: int, samples: int, asked_at: float, got_at: float, ready: int) -> None:
        """The training loop is about to get a batch, asked for and ready at these times. ``ready``: further ones in memory."""

    def exhausted(self, asked_at: float) -> None:
        """The training loop has asked for one more batch than the epoch has."""

    def closed(self) -> None:
        """The epoch is over, or its iterator is gone. It may be called again, and by any thread."""


class TimedFetcher:
    """One of torch's fetchers, which also tells what each batch took."""

    def __init__(self, fetcher: Any) -> None:
        self._fetcher = fetcher
        info = get_worker_info()
        self._worker = 0 if info is None else info.id
        self._quick = False
        self._cpu_s: Callable[[], float] = time.thread_time if info is None else time.process_time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, index: Any) -> tuple[Any, Took]:
        """Do what torch's fetcher does, and measure it. Of a quick batch only the time: the rest takes as long as it does."""
        began_at, read_s = time.monotonic(), READING.seconds
        if self._quick:
            batch = self._fetcher.fetch(index)
            ended_at = time.monotonic()
            cpu_s, queued_s = ended_at - began_at, 0.0
        else:
            cpu_s, queued_s = self._cpu_s(), thread_queued_s()
            batch = self._fetcher.fetch(index)
            cpu_s, queued_s = self._cpu_s() - cpu_s, thread_queued_s() - queued_s
            ended_at = time.monotonic()
        self._quick = ended_at - began_at < _QUICK_S
        return batch, Took(self._worker, began_at, ended_at, READING.seconds - read_s, cpu_s, queued_s)


class TimedCollate:
    """A collate_fn as it is. In a worker process it marks the fetcher that is to be timed."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        return self._collate(samples)


def timed(loader: DataLoader, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return this collate_fn; marked, if a loader has workers."""
    return TimedCollate(collate) if loader.num_workers else collate


def time_fetches() -> None:
    """Make torch's worker loop, in the worker process that calls this, use a `TimedFetcher`.

    Other loaders that the user's code makes in the process are left alone.
    """
    torchs, pid = _DatasetKind.create_fetcher, os.getpid()

    def create_fetcher(kind: Any, dataset: Any, auto_collation: bool, collate_fn: Any, drop_last: bool) -> Any:
        fetcher = torchs(kind, dataset, auto_collation, collate_fn, drop_last)
        return TimedFetcher(fetcher) if isinstance(collate_fn, TimedCollate) and os.getpid() == pid else fetcher

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]
