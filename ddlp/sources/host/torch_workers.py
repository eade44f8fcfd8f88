"""User code that can't travel: torch's own DataLoader workers prepare it, with keyed draws for each sample."""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL, signal_handling
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ddlp import decode
from ddlp.process.finalizers import when_dropped
from ddlp.sampling.checkpoint import Resume
from ddlp.sampling.torch_loader import collates
from ddlp.schedule.ledger import Side
from ddlp.schedule.rates import Rates
from ddlp.sources.host.memories import memory_of
from ddlp.sources.workers.channel import take
from ddlp.sources.workers.context import WorkerContext
from ddlp.sources.workers.fetching import FetchHooks, NoBatch, TimedFetcher, Took
from ddlp.stats.report import Counts
from ddlp.transfer.to_device import MoveAndTransform

_LOOK_UP_S = 1.0  # after so long without a batch, workers that do not begin are looked for


_postponed_in_all_workers = False


@functools.cache
def postpone_in_workers_of_streams() -> None:
    """Have images postponed in DataLoader workers that this process forks from now on, if they read an `IterableDataset`.

    A library's loader of streams (WebDataset's) is not swapped by importing `DDLPLoader` in DataLoader's place. For other data
    sets a DataLoader stays as it is until a `DDLPLoader` is made: people compare the two.
    """
    decode.in_forks(_postponed_here)


def postpone_in_workers() -> None:
    """Have images postponed in all DataLoader workers that this process forks from now on, whoever starts them."""
    global _postponed_in_all_workers
    _postponed_in_all_workers = True
    postpone_in_workers_of_streams()


def _postponed_here() -> bool:
    info = get_worker_info()
    return info is not None and (_postponed_in_all_workers or isinstance(info.dataset, IterableDataset))


def samples_in(batch: Any) -> int:
    """Return how many samples a batch of any structure has: the rows of its first tensor or array; 1 if it has none."""
    try:
        return _rows_of(batch)
    except Exception:  # the user's batch may be any object: an error while it is counted must not lose it
        return 1


def _rows_of(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else 1  # not by shape, which a nested tensor does not have
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if not isinstance(batch, (tuple, list)) or not batch:
        return 1
    if isinstance(batch[0], (str, bytes, int, float)):  # a column of values that are not tensors
        return len(batch)
    return _rows_of(batch[0])


def bytes_in(batch: Any) -> int:
    """Return the bytes of a batch's tensors; 0 if it has none that torch can find."""
    try:
        return sum(leaf.nbytes for leaf in tree_flatten(batch)[0] if isinstance(leaf, torch.Tensor))
    except Exception:  # as above
        return 0


class _Finishing:
    """Mixed into torch's iterators: applies ddlp's last steps to each finished batch, and counts the delivered batches."""

    _sampler_iter: Any
    _num_yielded: int
    _num_workers: int
    _prefetch_factor: int | None
    _took: Took  # of the last batch
    _hooks: FetchHooks | None = None
    _closer: weakref.finalize[Any, Any]
    _handed: tuple[float, float] | None = None  # when training got its last batch, and that one's part of a full batch
    on_end: Callable[[], None] | None = None  # called when training has asked for a batch after the last one
    on_over: Callable[[], None] | None = None  # called once then: all is counted

    def __init__(self, memory: Any, counts: Counts, finish: MoveAndTransform) -> None:
        self._finish = finish
        self._in_batches = collates(memory.torch)
        self.counts = counts
        self.memory = memory
        memory.iterator = weakref.ref(self)
        super().__init__(memory.torch)  # type: ignore[call-arg]
        counts.rates.epoch_begins(max(1, self._num_workers), 0, 0)

    @property
    def _base_seed(self) -> Any:
        """The base seed. torch sets it to one that it has drawn, before it starts the workers."""
        return self.memory.base_seed

    @_base_seed.setter
    def _base_seed(self, drawn: Any) -> None:
        self.memory.base_seed = drawn if self.memory.known_base_seed is None else self.memory.known_base_seed

    def __next__(self) -> Any:
        counts = self.counts
        counts.asked_s = asked_s = time.monotonic()
        counts.ended_s = None
        if self._handed is not None:
            counts.rates.trained(asked_s - self._handed[0], self._handed[1])
            self._handed = None
        try:
            batch = self._given()
        except BaseException as error:
            counts.ended_s = time.monotonic()
            if isinstance(error, StopIteration):
                first, self.memory.ended = not self.memory.ended, True
                if first:
                    counts.over()
                if first and self.on_over is not None:
                    self.on_over()
                if self._hooks is not None:
                    self._hooks.exhausted(asked_s)
                    self._end_watch()
                if self.on_end is not None:
                    self.on_end()
            raise
        counts.ended_s = got_s = time.monotonic()  # for now: it is not told when an iteration is broken off
        took, samples = self._took, samples_in(batch) if self._in_batches else 1
        counts.delivered(0, Side.HOST, samples, asked_s, got_s)
        self._handed = got_s, counts.made(samples, took.ended_at - took.began_at, took.cpu_s)
        counts.queued_s += took.queued_s
        if counts.batch_bytes is None:
            counts.batch_bytes = bytes_in(batch)
        batch = self._finish(batch)
        position = self.memory.deliver(self._number(), took)
        if self._hooks is not None:
            self._hooks.delivered(took, position, samples, asked_s, got_s, self._ready())
        return batch

    def _next_data(self) -> Any:
        """Return torch's next batch, and keep what it took."""
        while True:
            batch, self._took = super()._next_data()  # type: ignore[misc]
            if batch is not NoBatch:
                return batch
            self.memory.workers.end(self._took)

    def watch(self, hooks: FetchHooks | None) -> None:
        """Have the epoch that begins now watched; None: nobody watches it."""
        self._end_watch()
        if hooks is not None:
            self._hooks, self._closer = hooks, when_dropped(self, hooks.closed)
            hooks.began()

    def _end_watch(self) -> None:
        if self._hooks is not None:
            self._closer.detach()
            self._hooks.closed()
            self._hooks = None

    def has(self, workers: int, prefetch_factor: int | None, base_seed: int | None) -> bool:
        """Return whether it has so many workers, with so many batches each, begun with this base seed.

        Data sets with states of their own have any number: other workers could not go on with those states.
        """
        same = (self._num_workers, self._prefetch_factor) == (workers, prefetch_factor)
        return (self.memory.workers is not None or same) and self._base_seed == base_seed

    def _ready(self) -> int:
        """Return how many batches are in memory, ready for the training thread."""
        return 0

    def _given(self) -> Any:
        """Return torch's next batch. Without a profiler, skip torch's mark for it: that takes 8 us, and a small batch 40 us."""
        length = self._IterableDataset_len_called  # type: ignore[attr-defined]  # torch warns if a stream gives more
        if self._sampler_iter is None or length is not None or torch.autograd._profiler_enabled():
            return super().__next__()  # type: ignore[misc]
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _number(self) -> int:
        """Return the number, from 0, of the batch that `__next__` has just given, among those sent to the workers."""
        raise NotImplementedError

    def restart(self, loader: Any, seed: int | None, epoch: int, resume: Resume, finish: MoveAndTransform) -> None:
        """Begin the next epoch with the same workers (persistent_workers=True)."""
        self.counts, self._handed = counts_of(self.counts.rates, epoch, resume), None
        self._finish = finish
        self.memory.next_epoch(seed, epoch, resume)
        self._reset(loader)  # type: ignore[attr-defined]


class _Single(_Finishing, _SingleProcessDataLoaderIter):
    def __init__(self, memory: Any, counts: Counts, finish: MoveAndTransform) -> None:
        super().__init__(memory, counts, finish)
        self._dataset_fetcher = TimedFetcher(self._dataset_fetcher)
        self._postponing = decode.Here(memory.postpone)

    def _next_data(self) -> Any:
        try:
            with self._postponing:
                return super()._next_data()
        except StopIteration:
            self._postponing.close()
            raise

    def _number(self) -> int:
        return -1  # it sends one at a time; torch does not count a batch that has failed


class _Processes(_Finishing, _MultiProcessingDataLoaderIter):
    _received = 0

    def _get_data(self) -> Any:
        data = super()._get_data()
        self._received = data[0]
        return data

    def _try_put_index(self) -> None:
        if self._send_idx == 0 and self.memory.workers is not None:  # on a resume, begin with the worker whose turn it was
            for _ in range(self.memory.workers.first):
                next(self._worker_queue_idx_cycle)
        super()._try_put_index()

    def _number(self) -> int:
        # With in_order=False the batch that was received last is given; otherwise torch counts.
        return self._rcvd_idx - 1 if getattr(self, "_in_order", True) else self._received

    def _ready(self) -> int:
        came = sum(len(task) == 2 for task in self._task_info.values())  # before their turn
        queues = {id(queue): queue for queue in (self._worker_result_queue, self._data_queue)}  # two, if batches are pinned
        try:
            return came + sum(queue.qsize() for queue in queues.values())
        except NotImplementedError:  # macOS
            return came


class _Multi(_Processes):
    def __init__(self, memory: Any, counts: Counts, finish: MoveAndTransform) -> None:
        self._context = WorkerContext(memory.torch.multiprocessing_context)
        memory.torch.multiprocessing_context = self._context
        self._blocks = self._context.blocks
        try:
            super().__init__(memory, counts, finish)
        finally:
            self._context.started()
        # torch's handler of signals would raise first, anywhere in the training, and knows no sample.
        signal_handling._remove_worker_pids(id(self))
        self._worker_pids_set = False

    def _try_get_data(self, timeout: float = MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        """Return (True, what has come); (False, None) if nothing has come in ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while True:
            left_s = max(0.0, until - time.monotonic())
            data, ended = take(self._data_queue, min(left_s, _LOOK_UP_S), self._context.look)
            for worker in ended:
                if self._workers_status[worker]:  # else its stream was at its end
                    error = self._context.died(worker)
                    self._mark_worker_as_unavailable(worker)
                    raise error
            if data is not None and not ended:
                return True, data
            if data is None and left_s <= _LOOK_UP_S:
                return False, None

    def _shutdown_workers(self) -> None:
        if not (getattr(self, "_shutdown", True) or hasattr(self, "_pin_memory_thread")):
            self._worker_result_queue.close()  # else a worker would wait until its answer is read
        super()._shutdown_workers()


if not hasattr(os, "fork"):  # Windows, whose pipes can't be polled: torch's queues are left
    _Multi = _Processes  # type: ignore[assignment,misc]

UserCodeIterator = _Single | _Multi


def iterate(
    loader: Any,
    seed: int | None,
    epoch: int,
    resume: Resume,
    finish: MoveAndTransform,
    snapshot_every_n_steps: int,
    base_seed: int | None = None,
) -> UserCodeIterator:
    """Return torch's own iterator over a loader, with keyed samples.

    Args:
        seed: None: the base seed.
        finish: called with each batch, in the training thread.
        snapshot_every_n_steps: after how many batches the states of the workers' data sets are taken, if they have any.
        base_seed: that of the workers that these replace, or of a state; None: torch draws it.
    """
    kind = _Single if loader.num_workers == 0 else _Multi
    memory = memory_of(loader, seed, base_seed, epoch, resume, snapshot_every_n_steps)
    iterator = kind(memory, counts_of(loader._parts.life.rates, epoch, resume), finish)
    if isinstance(loader.dataset, IterDataPipe):
        for _ in range(len(resume.delivered)):
            try:
                iterator._next_data()
            except StopIteration:
                break
    return iterator


def counts_of(rates: Rates, epoch: int, resume: Resume) -> Counts:
    """Return the counts of an epoch that begins, or goes on."""
    return Counts(epoch=epoch, before=len(resume.delivered), rates=rates)
