"""Worker processes that run the user's code batch by batch, each asked by a thread of the training process.

They run torch's own worker loop, with torch's guarantees. What they run is a `Maker`: the user's own steps behind a cut
(`ddlp.sources.host.own_steps`), or whole batches beside a pool's nodes (`ddlp.sources.usercode.host`).
"""

from __future__ import annotations

import functools
import inspect
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, _DatasetKind, _utils

from csd_engine.kernels import kernel
from ddlp.process.finalizers import when_dropped
from ddlp.sources.workers.channel import take
from ddlp.sources.workers.context import WorkerContext
from ddlp.sources.workers.fetching import Maker, TimedCollate, WorkerStart
from ddlp.sources.workers.hand_over import Ring
from ddlp.stats.thread_cpu import ELSEWHERE

__all__ = ["WorkerEpoch", "WorkerProcess", "WorkerProcesses", "worker_processes"]

_TAKES_A_LIST = "dataset_holder" in inspect.signature(_utils.worker._worker_loop).parameters  # since torch 2.13
_LOOK_UP_S = 0.2  # so often it is looked whether the epoch is over
_ENDS_S = 5.0  # a process has so long to end by itself before it is terminated


class WorkerEpoch:
    """An epoch for which processes work. Any thread may ask them.

    Attributes:
        workers: the processes.
        closed: it is over.
    """

    def __init__(self, workers: WorkerProcesses, persistent: bool) -> None:
        self.workers, self._persistent, self.closed = workers, persistent, False
        self._free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for process in workers.all:
            self._free.put(process)

    def ask(self, message: Any) -> Any:
        """Return a free process's answer to a message, once there is one.

        Raises the user's error as torch's workers do; RuntimeError if the process died, or the epoch is closed.
        """
        process = self._free.get()
        try:
            return process.ask(self, message)
        finally:
            self._free.put(process)

    def close(self) -> None:
        """Drop the batches in work. End the processes unless they are left to the next epoch."""
        self.closed = True
        if not self._persistent:
            self.workers.end()


class Wanted(NamedTuple):
    """What worker processes are made of.

    Attributes:
        maker: the user's code.
        number: how many processes.
        context: the loader's multiprocessing context; None: torch.multiprocessing, with Python's default.
        init: the user's worker_init_fn, or None.
        base_seed: the base seed of the loader's epoch. The processes' generators begin like those of DataLoader's workers.
    """

    maker: Maker
    number: int
    context: Any
    init: Callable[[int], None] | None
    base_seed: int


class WorkerProcesses:
    """torch's worker processes with the user's code."""

    def __init__(self, wanted: Wanted) -> None:
        kernel()  # found and checked once here, so that forked processes have it
        self._made_of = wanted
        self._pid = os.getpid()
        self._epoch: weakref.ref[WorkerEpoch] | None = None  # the last one that they work for, which holds this object
        self.all: list[WorkerProcess] = []
        try:
            for number in range(wanted.number):
                self.all.append(WorkerProcess(wanted, number))
        except BaseException:
            self.end()
            raise
        when_dropped(self, functools.partial(_end, self.all))  # by the loader and by the epoch's iterator

    def begin(self, persistent: bool) -> WorkerEpoch:
        """Return a new epoch, for which they work from now on. ``persistent``: it leaves them to the next one."""
        epoch = WorkerEpoch(self, persistent)
        self._epoch = weakref.ref(epoch)
        return epoch

    @property
    def in_use(self) -> bool:
        """Whether an epoch of this process uses them."""
        epoch = None if self._epoch is None else self._epoch()
        return self._pid == os.getpid() and epoch is not None and not epoch.closed

    def fit(self, wanted: Wanted) -> bool:
        """Return whether they can go on with this: no epoch uses them, all are alive, and nothing has changed.

        A loader that a fork has does not get its parent's. The base seed is another one once a state was loaded.
        """
        if self._pid != os.getpid() or self.in_use or self._made_of[1:] != wanted[1:]:
            return False
        ours, alive = self._made_of.maker, [process.alive for process in self.all]
        return type(ours) is type(wanted.maker) and ours.same_as(wanted.maker) and alive == [True] * wanted.number

    def end(self) -> None:
        """End the processes. Batches in work are dropped."""
        if self._pid != os.getpid():
            return
        epoch = None if self._epoch is None else self._epoch()
        if epoch is not None:
            epoch.closed = True
        _end(self.all)


def _end(processes: list[WorkerProcess]) -> None:
    ending, processes[:] = list(processes), []
    for process in ending:
        process.begin_end()
    for process in ending:
        process.end()


class WorkerProcess:
    """One of them. One thread at a time asks it."""

    def __init__(self, wanted: Wanted, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()  # a thread of the epoch before may still be here
        self._asked = False  # it has something to answer
        self._context = workers = WorkerContext(wanted.context, first=number)
        self._answers = workers.Queue()
        self._requests = workers.Queue()
        self._requests.packed = Ring(workers.blocks.token).packed
        maker = wanted.maker
        self._process = workers.Process(
            target=_utils.worker._worker_loop,
            args=(
                _DatasetKind.Map, [maker] if _TAKES_A_LIST else maker, self._requests, self._answers, workers.Event(), True,
                TimedCollate(), False, wanted.base_seed, WorkerStart(wanted.init, maker.postpone), number, wanted.number, False,
                None,
            ),
        )  # fmt: skip
        try:
            self._process.start()
        finally:
            workers.started()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def ask(self, epoch: WorkerEpoch, message: Any) -> Any:
        """As `WorkerEpoch.ask`."""
        with self._lock:
            if self._asked:  # in an epoch that was broken off
                self._answer(epoch)
            self._requests.put((0, message))
            self._asked = True
            answer = self._answer(epoch)
        if isinstance(answer, ExceptionWrapper):
            answer.reraise()
        batch, took = answer
        ELSEWHERE.seconds += took.cpu_s
        ELSEWHERE.queued_s += took.queued_s
        return batch

    def _answer(self, epoch: WorkerEpoch) -> Any:
        """Wait for the batch in work, in an epoch that needs it or the process; a wrapped error if a sample failed."""
        while not epoch.closed:
            answer, ended = take(self._answers, _LOOK_UP_S, self._context.look)
            if ended and not epoch.closed:
                raise self._context.died(self._number)
            if answer is not None and not ended:
                self._asked = False
                return answer[1]
        raise RuntimeError("this iteration was closed")

    def begin_end(self) -> None:
        """Tell the process to end as soon as it can."""
        self._requests.close()

    def end(self) -> None:
        """Wait until the process has ended. Terminate it if it takes too long."""
        with self._lock:  # a thread that waits here sees that its epoch is over
            self._answers.close()
        self._process.join(_ENDS_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_ENDS_S)


class Keeps(Protocol):
    """What keeps a loader's processes from epoch to epoch."""

    own_processes: WorkerProcesses | None


def worker_processes(loader: DataLoader, keeps: Keeps, maker: Maker, base_seed: int) -> WorkerEpoch:
    """Return an epoch of a loader's worker processes. It leaves them to the next one if they persist."""
    wanted = Wanted(maker, loader.num_workers, loader.multiprocessing_context, loader.worker_init_fn, base_seed)
    kept = keeps.own_processes if loader.persistent_workers else None
    if kept is not None and kept.fit(wanted):
        return kept.begin(persistent=True)
    workers = WorkerProcesses(wanted)
    stays = loader.persistent_workers and (kept is None or not kept.in_use)  # another iterator may use those of the loader
    if stays:
        if kept is not None:
            kept.end()
        keeps.own_processes = workers
    return workers.begin(persistent=stays)
