"""User code that can't travel: torch's own DataLoader workers prepare it, with keyed draws for each sample.

torch's iterators are given `KeyedSamples` instead of the data set, and a sampler that adds the numbers from which each sample's
key is made. So a sample's content does not depend on num_workers, or on the order in which workers make samples.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import BatchSampler, get_worker_info
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL, signal_handling
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ddlp import decode
from ddlp.process.finalizers import when_dropped
from ddlp.sampling import sampler_order as order
from ddlp.sampling.checkpoint import Resume, SamplerStart, save
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.sampling.generator_states import for_base_seed
from ddlp.sampling.torch_loader import OrderSource, as_torch_reads, collates, index_sampler_of
from ddlp.schedule.ledger import Side
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.rates import Rates
from ddlp.sources.workers.channel import Closed
from ddlp.sources.workers.context import WorkerContext
from ddlp.sources.workers.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.sources.workers.start import WorkerStart, as_it_is
from ddlp.sources.workers.timed_fetch import FetchHooks, TimedFetcher, Took, timed
from ddlp.stats.report import Counts
from ddlp.transfer.to_device import MoveAndTransform, pins

_LOOK_UP_S = 1.0  # after so long without a batch, workers that do not begin are looked for


class _KeyedSampler:
    """The loader's index sampler. It gives each batch with the numbers from which its samples' keys are made."""

    def __init__(self, memory: KeyedMemory, sampler: Any, batched: bool) -> None:
        self._memory, self._sampler, self._batched = memory, sampler, batched
        indices = getattr(sampler, "sampler", sampler) if batched else sampler  # without batches, a BatchSampler gives lists
        self._each_once = is_built_in(sampler) and order.gives_each_once(indices)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._keyed(self._memory.begin())  # iter() of the user's sampler is called now, as by torch's iterators

    def _keyed(self, items: Iterator[Any]) -> Iterator[KeyedBatch]:
        count = _Occurrences()
        for position, item in enumerate(self._memory.order_again(items)):
            indices, numbered = item, None
            if not self._each_once:
                with contextlib.suppress(TypeError):  # the batch is no list of indices: its worker raises the error
                    indices = list(item) if self._batched and iter(item) is item else item
                    numbered = count(indices if self._batched else (indices,))
            if self._memory.read(position):
                yield KeyedBatch(indices, numbered, self._memory.seed(), self._memory.epoch)
        self._memory.end()


class _Occurrences:
    """Counts how often each index came in an epoch."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._ordinal = 0

    def __call__(self, indices: Iterable[Any]) -> list[tuple[int, int]] | None:
        """Return (index, how often it came before) of each; None if all are integers that come for the first time."""
        indices, times = list(indices), self._times
        if set(map(type, indices)) == {int} and times.keys().isdisjoint(indices) and len(set(indices)) == len(indices):
            times.update(dict.fromkeys(indices, 1))
            self._ordinal += len(indices)
            return None
        return [self._numbered(index) for index in indices]

    def _numbered(self, index: Any) -> tuple[int, int]:
        self._ordinal += 1
        try:
            number = int(index)
        except (TypeError, ValueError):  # a data set with keys of its own: use the sample's place in the epoch
            return self._ordinal, 0
        before = self._times.get(number, 0)
        self._times[number] = before + 1
        return number, before


@functools.cache
def postpone_in_workers() -> None:
    """Have images postponed in all DataLoader workers that this process forks from now on, whoever starts them."""
    decode.in_forks(lambda: get_worker_info() is not None)


def _samples_of(loader: Any) -> KeyedSamples:
    """Return the loader's data set for torch's iterators.

    In the training process it is the same object for all epochs, since it has found out which generators are drawn from.
    """
    kept: KeyedSamples | None = loader._parts.samples
    same = kept is not None and kept.dataset is loader.dataset and kept.collate_fn is loader.collate_fn
    if kept is None or loader.num_workers or not same or kept.kept is not loader._parts.kept:
        kept = KeyedSamples(loader.dataset, loader.collate_fn, collates(loader), loader._parts.kept)
        loader._parts.samples = None if loader.num_workers else kept
    return kept


class KeyedMemory:
    """What an epoch of user code has read and delivered: its state is made from it. It outlives the iterator.

    ``torch``: the loader as torch's iterator reads it, with the keyed data set and sampler in place of its own.
    ``iterator``: that of the last epoch, once there is one.
    """

    iterator: weakref.ref[Any]

    def __init__(
        self, loader: Any, seed: int | None, epoch: int, resume: Resume, base_seed: int | None = None
    ) -> None:
        self._source = OrderSource(index_sampler_of(loader), loader.generator)
        self._built_in = is_built_in(index_sampler_of(loader))
        self.base_seed = 0  # that the iterator has, once there is one
        self._prefetch_batches = (loader.prefetch_factor or 2) * loader.num_workers
        self.known_base_seed = base_seed  # None: torch's iterator draws it
        self.postpone = loader.postpone_decoding
        self.torch = as_torch_reads(
            loader,
            dataset=_samples_of(loader),
            collate_fn=timed(loader, as_it_is),
            pin_memory=pins(loader),
            generator=loader.generator if base_seed is None else for_base_seed(base_seed),
            worker_init_fn=WorkerStart(loader.worker_init_fn),
            _index_sampler=_KeyedSampler(self, index_sampler_of(loader), collates(loader)),
        )
        # With workers, torch calls iter() of the sampler again after it has drawn its base seed, and reads that iterator.
        self.next_epoch(seed, epoch, resume, seed_drawn=loader.num_workers == 0)

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume, *, seed_drawn: bool) -> None:
        """Set the epoch for which the sampler is read next."""
        self._seed = seed
        self.epoch = epoch
        self.resume = resume
        self._start = SamplerStart(self._source, resume, seed_drawn)
        self.delivered = RangeSet(resume.delivered.ranges())
        self._batches = len(self._source._index_sampler) if self._built_in else None  # None: not known until the end
        self._sent: list[int] = []
        self._drawn = resume.drawn
        self.ended = False

    def seed(self) -> int:
        """Return the given seed, else the base seed."""
        return self.base_seed if self._seed is None else self._seed

    def begin(self) -> Iterator[Any]:
        """Return the sampler's iterator. torch's iterator calls this before it draws its base seed."""
        sampler = self._source._index_sampler
        if type(sampler) is BatchSampler and order.gives_each_once(sampler.sampler):
            return order.in_batches(sampler)
        return iter(self._start)

    def order_again(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the sampler's items, just before the first is asked for. On a resume they are the same as the first time."""
        source, resume = self._source, self.resume
        if self._built_in:
            self._start.keep_order()
        if resume.order is None or self._batches is None:
            return items
        delivered = self._batches if resume.finished else len(resume.delivered)
        with resume.order_restored(source) as caught_up:
            items = iter(source._index_sampler)
            head = list(itertools.islice(items, max(delivered, 1)))
            # torch draws some orders piece by piece, and a RandomSampler once more at its end.
            while not caught_up() and (item := next(items, None)) is not None:
                head.append(item)
            if not caught_up():  # others have drawn from it as well: only the draw at the end is still to come
                read = max(delivered + self._prefetch_batches, self._batches - 1, 1)
                with resume.order_restored(source):
                    items = iter(source._index_sampler)
                    head = list(itertools.islice(items, read))
        return itertools.chain(head, items)

    def read(self, position: int) -> bool:
        """Note that the sampler gave this position's batch. True if the batch is still to be delivered."""
        self._drawn = max(self._drawn, position + 1)
        if self.resume.finished or position in self.resume.delivered:
            return False
        self._sent.append(position)
        return True

    def end(self) -> None:
        """Note that the sampler has given all of its batches."""
        self._batches = self._drawn

    def deliver(self, number: int) -> int:
        """Note that batch ``number`` of those sent to the workers was delivered, counted from 0; -1: the last one sent.

        Returns its position in the epoch.
        """
        self.delivered.add(self._sent[number])
        return self._sent[number]

    def state(self) -> dict[str, Any] | None:
        """Return the epoch's state. None once it is over: all was delivered, and the iterator has told its end or is gone."""
        finished = self.resume.finished or len(self.delivered) == self._batches
        iterator = self.iterator()
        gone = iterator is None or getattr(iterator, "_shutdown", False)
        if self.ended or (finished and gone):
            return None
        return save(
            self.delivered,
            self._start.order,
            seed=self.seed(),
            base_seed=self.base_seed,
            epoch=self.epoch,
            seed_drawn=self._start.seed_drawn,
            drawn=0 if self._built_in else self._drawn,
            finished=finished,
        )


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
        return sum(one.nbytes for one in tree_flatten(batch)[0] if isinstance(one, torch.Tensor))
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

    def __init__(self, loader: Any, memory: Any, counts: Counts, finish: MoveAndTransform) -> None:
        self._finish = finish
        self._in_batches = collates(loader)
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
        position = self.memory.deliver(self._number())
        if self._hooks is not None:
            self._hooks.delivered(took, position, samples, asked_s, got_s, self._ready())
        return batch

    def _next_data(self) -> Any:
        """Return torch's next batch, and keep what it took."""
        batch, self._took = super()._next_data()  # type: ignore[misc]
        return batch

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
        return (type(self.memory) is not KeyedMemory or same) and self._base_seed == base_seed

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
        self.counts, self._handed = _counts(self.counts.rates, epoch, resume), None
        self._finish = finish
        self.memory.next_epoch(seed, epoch, resume, seed_drawn=False)
        self._reset(loader)  # type: ignore[attr-defined]


class _Single(_Finishing, _SingleProcessDataLoaderIter):
    def __init__(self, loader: Any, memory: Any, counts: Counts, finish: MoveAndTransform) -> None:
        super().__init__(loader, memory, counts, finish)
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

    def _number(self) -> int:
        # With in_order=False the batch that was received last is given; otherwise torch counts.
        return self._rcvd_idx - 1 if getattr(self, "_in_order", True) else self._received

    def _ready(self) -> int:
        came = sum(len(task) == 2 for task in self._task_info.values())  # before their turn
        queues = {id(one): one for one in (self._worker_result_queue, self._data_queue)}  # two, if batches are pinned
        try:
            return came + sum(one.qsize() for one in queues.values())
        except NotImplementedError:  # macOS
            return came


class _Multi(_Processes):
    def __init__(self, loader: Any, memory: Any, counts: Counts, finish: MoveAndTransform) -> None:
        self._context = WorkerContext(loader.multiprocessing_context, memory.postpone)
        memory.torch.multiprocessing_context = self._context
        self._blocks = self._context.blocks
        try:
            super().__init__(loader, memory, counts, finish)
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
            try:
                data = self._data_queue.get(timeout=min(left_s, _LOOK_UP_S))
                ended = [data[0].worker] if type(data[0]) is Closed else []
            except queue.Empty:
                data, ended = None, self._context.look()
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


def iterate_user_code(
    loader: Any, seed: int | None, epoch: int, resume: Resume, finish: MoveAndTransform, base_seed: int | None = None
) -> UserCodeIterator:
    """Return torch's own iterator over a loader whose data set has indices, with keyed samples.

    Args:
        seed: None: the base seed.
        finish: called with each batch, in the training thread.
        base_seed: that of the workers that these replace, or of a state; None: torch draws it.
    """
    kind = _Single if loader.num_workers == 0 else _Multi
    memory = KeyedMemory(loader, seed, epoch, resume, base_seed)
    return kind(loader, memory, _counts(loader._parts.life.rates, epoch, resume), finish)


def _counts(rates: Rates, epoch: int, resume: Resume) -> Counts:
    return Counts(epoch=epoch, before=len(resume.delivered), rates=rates)
