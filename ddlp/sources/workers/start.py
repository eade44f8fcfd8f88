"""What runs first in torch's worker loop, before the user's ``worker_init_fn``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import get_worker_info

from ddlp.sources.workers.timed_fetch import time_fetches

__all__ = ["OurSet", "WorkerStart", "as_it_is"]


@runtime_checkable
class OurSet(Protocol):
    """A data set of ddlp's around the user's, which torch's loop has in its place."""

    dataset: Any  #: the user's

    def begin_worker(self, init: Callable[[], None]) -> None:
        """Call ``init``, the user's worker_init_fn."""


class WorkerStart:
    """Sets ``get_worker_info().dataset`` to the user's own, and calls the user's worker_init_fn. Batches are timed."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        time_fetches()
        info = get_worker_info()
        ours: Any = None if info is None else info.dataset
        if isinstance(ours, OurSet):
            object.__setattr__(info, "dataset", ours.dataset)  # WorkerInfo refuses plain assignment
        if self._worker_init_fn is None:
            return
        if isinstance(ours, OurSet):
            ours.begin_worker(functools.partial(self._worker_init_fn, worker))
        else:
            self._worker_init_fn(worker)


def as_it_is(batch: Any) -> Any:
    """The collate_fn of torch's iterators, where our data set has called the user's own already."""
    return batch
