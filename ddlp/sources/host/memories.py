"""What torch's iterators read in an epoch of user code, and what of it was delivered: the epoch's state is made from it.

They are given a `Maker` instead of the data set, and a sampler that adds the numbers from which each sample's key is made. So a
sample's content does not depend on num_workers, or on the order in which workers make samples.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, IterDataPipe

from ddlp.sampling import sampler_order as order
from ddlp.sampling.checkpoint import Resume, SamplerStart, is_stateful, save
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.sampling.generator_states import capture, for_base_seed, put
from ddlp.sampling.torch_loader import OrderSource, as_torch_reads, collates, index_sampler_of
from ddlp.schedule.ranges import RangeSet
from ddlp.sources.host.stateful_workers import Workers, every, of_use, tell_of_again
from ddlp.sources.workers.fetching import Took, WorkerStart, timed
from ddlp.sources.workers.keyed_samples import Before, KeyedBatch, KeyedSamples
from ddlp.sources.workers.streams import StreamBatches, by_number
from ddlp.transfer.to_device import pins

__all__ = ["KeyedMemory", "StreamMemory", "UserCodeMemory", "memory_of"]


class UserCodeMemory:
    """What an epoch of user code has read and delivered. It outlives the iterator.

    ``torch``: the loader as torch's iterators read it, ``instead`` in the place of its own. ``iterator``: that of the last
    epoch, once there is one. ``workers``: what their data sets have given, if those have states of their own.
    """

    torch: Any
    iterator: weakref.ref[Any]
    workers: Workers | None = None
    ended = False

    def __init__(self, loader: Any, base_seed: int | None, **instead: Any) -> None:
        self.known_base_seed = base_seed  # None: torch's iterator draws it
        self.base_seed = 0  # that the iterator has, once there is one
        self.postpone = loader.postpone_decoding
        usual = {
            "collate_fn": timed(loader),
            "pin_memory": pins(loader),
            "generator": loader.generator if base_seed is None else for_base_seed(base_seed),
            "worker_init_fn": WorkerStart(loader.worker_init_fn, loader.postpone_decoding),
        }
        self.torch = as_torch_reads(loader, **{**usual, **instead})

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume) -> None:
        """Set the epoch for which the sampler, or the stream, is begun next."""
        raise NotImplementedError

    def deliver(self, number: int, took: Took) -> int:
        """Note that batch ``number`` of those sent to the workers was delivered, counted from 0; -1: the last one sent.

        Returns its position in the epoch.
        """
        raise NotImplementedError

    def state(self, by_count: bool) -> dict[str, Any] | None:
        """Return the epoch's state. None once it is over: all was delivered, and the iterator has told its end or is gone.

        ``by_count``: the caller counts batches, and takes the epoch for over once it has all.
        """
        raise NotImplementedError

    def between(self) -> dict[str, Any] | None:
        """Return the states with which the next epoch's data sets begin; None: they begin as the loader was given them."""
        return None


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


def _samples_of(loader: Any, before: Before) -> KeyedSamples:
    """Return the loader's data set for torch's iterators.

    In the training process it is the same object for all epochs, since it has found out which generators are drawn from.
    """
    kept: KeyedSamples | None = loader._parts.samples
    samples = KeyedSamples(loader.dataset, loader.collate_fn, collates(loader), loader._parts.kept, before)
    if kept is not None and not loader.num_workers and kept.same_as(samples):
        return kept
    loader._parts.samples = None if loader.num_workers else samples
    return samples


class KeyedMemory(UserCodeMemory):
    """That of a data set with indices. torch's iterators have it for their sampler: its batches have the numbers of their keys.

    If the data set has a state of its own, a worker also makes again what it has delivered since that was taken.
    """

    def __init__(
        self, loader: Any, seed: int | None, base_seed: int | None, epoch: int, resume: Resume, snapshot_every_n_steps: int
    ) -> None:
        self._sampler, self._batched = index_sampler_of(loader), collates(loader)
        self._source = OrderSource(self._sampler, loader.generator)
        self._built_in = is_built_in(self._sampler)
        indices = getattr(self._sampler, "sampler", self._sampler) if self._batched else self._sampler  # else it gives lists
        self._each_once = self._built_in and order.gives_each_once(indices)
        self._count, self._stays = loader.num_workers, loader.persistent_workers
        self._prefetch_batches = (loader.prefetch_factor or 2) * loader.num_workers
        self._stateful = loader.dataset if is_stateful(loader.dataset) else None
        self._every = every(loader, snapshot_every_n_steps)
        # Without workers the data set has its state: `stateful_workers.load_here` was called.
        before = None if resume.workers is None or self._stateful is None or not self._count else resume.workers["states"]
        super().__init__(loader, base_seed, dataset=_samples_of(loader, before), _index_sampler=self)
        self.next_epoch(seed, epoch, resume)

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume) -> None:
        """As `UserCodeMemory.next_epoch`."""
        self._seed = seed
        self.epoch = epoch
        self.resume = resume
        # With workers, torch calls iter() of the sampler again after it has drawn its base seed, and reads that iterator.
        self._start = SamplerStart(self._source, resume, seed_drawn=not self._count)
        self.delivered = RangeSet(resume.delivered.ranges())
        self._batches = len(self._sampler) if self._built_in else None  # None: not known until the end
        self._sent: list[int] = []
        self._drawn = resume.drawn
        self.ended = False
        self._again: dict[int, int] = {}  # the worker that makes a delivered batch again, by position
        if self._stateful is not None:
            self.workers = Workers(self._count, resume.workers or self.between())
            self._again = {position: worker for worker, state in enumerate(self.workers.states) for position in state.since}

    def seed(self) -> int:
        """Return the given seed, else the base seed."""
        return self.base_seed if self._seed is None else self._seed

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[KeyedBatch]:
        """Begin the sampler. torch's iterator calls this before it draws its base seed."""
        if type(self._sampler) is BatchSampler and order.gives_each_once(self._sampler.sampler):
            return self._keyed(order.in_batches(self._sampler))
        return self._keyed(iter(self._start))

    def _keyed(self, items: Iterator[Any]) -> Iterator[KeyedBatch]:
        count, again = _Occurrences(), dict[int, list[KeyedBatch]]()
        for position, item in enumerate(self._order_again(items)):
            indices, numbered = item, None
            if not self._each_once:
                with contextlib.suppress(TypeError):  # the batch is no list of indices: its worker raises the error
                    indices = list(item) if self._batched and iter(item) is item else item
                    numbered = count(indices if self._batched else (indices,))
            self._drawn = max(self._drawn, position + 1)
            batch = KeyedBatch(indices, numbered, self.seed(), self.epoch)
            if position in self._again:
                again.setdefault(self._again[position], []).append(batch)
            elif not (self.resume.finished or position in self.resume.delivered):
                self._sent.append(position)
                yield batch if self.workers is None else self._going_on(batch, self.workers, again)
        self._batches = self._drawn

    def _going_on(self, batch: KeyedBatch, workers: Workers, again: dict[int, list[KeyedBatch]]) -> KeyedBatch:
        """Return the batch that was sent last, with what its worker makes before it, and whether a state is taken after it."""
        number, count = len(self._sent) - 1, len(workers.states)
        at_the_end = self._batches is not None and self._sent[-1] + count >= self._batches
        takes_state = bool(self._every) and (number // count % self._every == 0 or at_the_end)
        before = again.pop((workers.first + number) % count, ())
        return batch._replace(again=tuple(before), takes_state=takes_state)

    def _order_again(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the sampler's items, just before the first is asked for. On a resume they are the same as the first time."""
        resume = self.resume
        if self._built_in:
            self._start.keep_order()
        if resume.order is None or self._batches is None:
            return items
        delivered = self._batches if resume.finished else len(resume.delivered)
        with resume.order_restored(self._source) as caught_up:
            items = iter(self._sampler)
            head = list(itertools.islice(items, max(delivered, 1)))
            # torch draws some orders piece by piece, and a RandomSampler once more at its end.
            while not caught_up() and (item := next(items, None)) is not None:
                head.append(item)
            if not caught_up():  # others have drawn from it as well: only the draw at the end is still to come
                read = max(delivered + self._prefetch_batches, self._batches - 1, 1)
                with resume.order_restored(self._source):
                    items = iter(self._sampler)
                    head = list(itertools.islice(items, read))
        return itertools.chain(head, items)

    def deliver(self, number: int, took: Took) -> int:
        """As `UserCodeMemory.deliver`."""
        position = self._sent[number]
        self.delivered.add(position)
        if self.workers is not None:
            self.workers.deliver(took, position)
        return position

    def state(self, by_count: bool) -> dict[str, Any] | None:
        """As `UserCodeMemory.state`."""
        finished = self.resume.finished or len(self.delivered) == self._batches
        iterator = self.iterator()
        gone = iterator is None or getattr(iterator, "_shutdown", False)
        if self.ended or (finished and (gone or by_count)):
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
            workers=None if self.workers is None else self.workers.saved(),
        )

    def between(self) -> dict[str, Any] | None:
        """As `UserCodeMemory.between`."""
        if self._stateful is None:
            return None
        if not self._count:
            return {"num_workers": 0, "next": 0, "states": [[{"dataset": copy.deepcopy(self._stateful.state_dict())}, []]]}
        return self.workers.saved(between=True) if self.workers is not None and self._stays else None


class StreamMemory(UserCodeMemory):
    """That of a stream."""

    workers: Workers

    def __init__(
        self, loader: Any, base_seed: int | None, epoch: int, resume: Resume, snapshot_every_n_steps: int
    ) -> None:
        self._loader = weakref.ref(loader)  # weak, since the loader keeps this object: a cycle would keep the workers
        self.stream: StreamBatches | None = None
        instead: dict[str, Any] = {}
        if resume.order is not None:  # of an IterDataPipe, whose seed torch draws before its own
            instead["generator"] = torch.Generator()
            put(resume.order, {"sampler": instead["generator"]})
        if not isinstance(loader.dataset, IterDataPipe):  # torch's iterators shuffle and share those by their type
            before = resume.workers["states"] if resume.workers is not None and of_use(loader, resume) else None
            self.stream = instead["dataset"] = StreamBatches(loader, every(loader, snapshot_every_n_steps), before)
        super().__init__(loader, base_seed, **instead)
        self.next_epoch(None, epoch, resume)
        tell_of_again(loader, resume)

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume) -> None:
        """As `UserCodeMemory.next_epoch`."""
        self.epoch = epoch
        self.delivered = len(resume.delivered)  # number of batches
        self._order = resume.order
        if self._order is None and self.stream is None:
            drawn_from = self._loader().generator or torch.default_generator  # type: ignore[union-attr]
            self._order = {**capture({"sampler": drawn_from}, python=False), "sampler_epoch": None}
        last: Workers | None = vars(self).get("workers")
        states = resume.workers if of_use(self.torch, resume) else None
        if last is not None and states is None:
            states = last.after_the_end()
        self.workers = Workers(self.torch.num_workers, states, stream=True)
        self.ended = False

    def deliver(self, number: int, took: Took) -> int:
        """As `UserCodeMemory.deliver`."""
        if self.stream is not None:
            self.workers.deliver(took, self.delivered)
        self.delivered += 1
        return self.delivered - 1

    def state(self, by_count: bool) -> dict[str, Any] | None:
        """As `UserCodeMemory.state`, with that of each worker's stream."""
        if self.ended or (by_count and self._all_delivered()):
            return None
        workers: Any = self.workers.saved()
        if self.torch.num_workers == 0 and self.stream is not None and workers["states"][0][0] is None:
            begun = self.stream.begun
            first = {"dataset": None, "generators": self.stream.generators_then()} if begun is None else pickle.loads(begun)
            workers["states"][0][0] = first
        delivered = RangeSet([(0, self.delivered)] if self.delivered else [])
        return save(delivered, self._order, seed=self.base_seed, base_seed=self.base_seed, epoch=self.epoch, workers=workers)

    def _all_delivered(self) -> bool:
        """Return whether as many batches were delivered as the loader's length tells."""
        try:
            return self.delivered >= len(self._loader())  # type: ignore[arg-type]
        except TypeError:  # the loader has no length
            return False

    def between(self) -> dict[str, Any] | None:
        """As `UserCodeMemory.between`."""
        dataset = self._loader().dataset  # type: ignore[union-attr]
        if self.torch.num_workers == 0 and is_stateful(dataset) and not by_number(dataset):
            return {"num_workers": 0, "next": 0, "states": [[{"dataset": copy.deepcopy(dataset.state_dict())}, 0]]}
        return self.workers.after_the_end()


def memory_of(
    loader: Any, seed: int | None, base_seed: int | None, epoch: int, resume: Resume, snapshot_every_n_steps: int
) -> UserCodeMemory:
    """Return what an epoch of this loader's user code remembers."""
    if isinstance(loader.dataset, IterableDataset):
        return StreamMemory(loader, base_seed, epoch, resume, snapshot_every_n_steps)
    return KeyedMemory(loader, seed, base_seed, epoch, resume, snapshot_every_n_steps)
