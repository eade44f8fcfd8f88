"""What makes the batches in torch's worker loop, and in the training process without workers: a `Maker`.

torch's fetchers would ask a data set for samples and collate them. A `Maker` has the data set's place, and gives finished
batches. What each batch took travels beside it.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, _DatasetKind, get_worker_info

from csd_engine.prepare.read_time import READING
from ddlp import decode
from ddlp.stats.thread_cpu import thread_queued_s

__all__ = ["FetchHooks", "Maker", "NoBatch", "TimedCollate", "TimedFetcher", "Took", "WorkerStart", "timed"]


_QUICK_S = 1e-3


class Took(NamedTuple):
    """What it took to make a batch.

    Attributes:
        worker: the number of the worker that made it; 0 in the training process.
        began_at, ended_at: moments of the monotonic clock, which all processes of a computer share.
        read_s: seconds in which ddlp's own code has read files.
        cpu_s: processor seconds, user and system: of all threads of a worker process; in the training process of this thread.
        queued_s: seconds in which the thread that made it was ready to run and had no processor; 0: not known.
        state: the pickled state of the worker's data set after it, which only the worker's copy has; None: it was not taken.
    """

    worker: int
    began_at: float
    ended_at: float
    read_s: float
    cpu_s: float
    queued_s: float
    state: bytes | None


class NoBatch:
    """This class comes in a batch's place when a worker's stream has ended. The state is the one its next epoch begins with."""


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


class Maker:
    """Makes batches by the user's code.

    Attributes:
        dataset: the user's data set, for ``get_worker_info().dataset``.
        state: the pickled state of the data set after the last batch; None: it was not taken.
        postpone: whether `Image.open` gives it postponed images in a worker; None: as it does where the worker was forked.
    """

    dataset: Any
    state: bytes | None = None
    postpone: bool | None = None

    def fetch(self, request: Any) -> Any:
        """Return the batch."""
        raise NotImplementedError

    def begin_worker(self, init: Callable[[], None]) -> None:
        """Run the user's worker_init_fn."""
        init()

    def same_as(self, other: Any) -> bool:
        """Return whether ``other``, of the same class, would make the same."""
        return self is other


class TimedFetcher:
    """One of torch's fetchers, or the `Maker` that it has got for a data set, which also tells what each batch took."""

    def __init__(self, fetcher: Any) -> None:
        self._maker = fetcher.dataset if isinstance(fetcher.dataset, Maker) else None
        self._fetch = fetcher.fetch if self._maker is None else self._maker.fetch
        info = get_worker_info()
        self._worker = 0 if info is None else info.id
        self._quick = False
        self._cpu_s: Callable[[], float] = time.thread_time if info is None else time.process_time

    def fetch(self, request: Any) -> tuple[Any, Took]:
        """Return the batch, and measure it. Of a quick batch only the time: the rest takes as long as it does."""
        began_at, read_s = time.monotonic(), READING.seconds
        if self._quick:
            batch = self._fetch(request)
            ended_at = time.monotonic()
            cpu_s, queued_s = ended_at - began_at, 0.0
        else:
            cpu_s, queued_s = self._cpu_s(), thread_queued_s()
            batch = self._fetch(request)
            cpu_s, queued_s = self._cpu_s() - cpu_s, thread_queued_s() - queued_s
            ended_at = time.monotonic()
        self._quick = ended_at - began_at < _QUICK_S
        state = None if self._maker is None else self._maker.state
        return batch, Took(self._worker, began_at, ended_at, READING.seconds - read_s, cpu_s, queued_s, state)


class TimedCollate:
    """A collate_fn as it is. In a worker process it marks the fetcher that is to be timed. A `Maker` has no need of one."""

    def __init__(self, collate: Callable[[Any], Any] | None = None) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        return samples if self._collate is None else self._collate(samples)


def timed(loader: DataLoader) -> Callable[[Any], Any]:
    """Return a loader's collate_fn; marked, if the loader has workers."""
    return TimedCollate(loader.collate_fn) if loader.num_workers else loader.collate_fn


class WorkerStart:
    """Runs first in torch's worker loop. Its batches are timed, and ``get_worker_info().dataset`` is the user's own.

    Args:
        worker_init_fn: the user's, which it calls; None: there is none.
        postpone: as `Maker.postpone`.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None, postpone: bool | None) -> None:
        self._worker_init_fn, self._postpone = worker_init_fn, postpone

    def __call__(self, worker: int) -> None:
        if self._postpone is not None:
            (decode.install if self._postpone else decode.uninstall)()
        _time_fetches()
        init = (lambda: None) if self._worker_init_fn is None else functools.partial(self._worker_init_fn, worker)
        info = get_worker_info()
        maker: Any = None if info is None else info.dataset
        if isinstance(maker, Maker):
            object.__setattr__(info, "dataset", maker.dataset)  # WorkerInfo refuses plain assignment
            maker.begin_worker(init)
        else:
            init()


def _time_fetches() -> None:
    """Make torch's worker loop, in the worker process that calls this, use a `TimedFetcher`.

    Other loaders that the user's code makes in the process are left alone.
    """
    torchs, pid = _DatasetKind.create_fetcher, os.getpid()

    def create_fetcher(kind: Any, dataset: Any, auto_collation: bool, collate_fn: Any, drop_last: bool) -> Any:
        fetcher = torchs(kind, dataset, auto_collation, collate_fn, drop_last)
        return TimedFetcher(fetcher) if isinstance(collate_fn, TimedCollate) and os.getpid() == pid else fetcher

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]
