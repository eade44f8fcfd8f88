"""The user's data set, asked batch by batch, with keyed draws for each sample.

A sample's random draws come from the global generators of torch, numpy and random. To seed all three takes as long as some
data sets need for ten samples. So all three are seeded for the first few samples. After that, only those are seeded from which
samples have drawn. The others are watched: if one has moved after a batch, the batch is made again, with that one seeded too.
Transforms with generators of their own (albumentations') are seeded before each sample.

A map-style data set with ``state_dict`` and ``load_state_dict`` goes on where it was. Its state travels beside the batch after
which it was taken, since the worker's copy is ahead of training by the prepared batches.
"""

from __future__ import annotations

import operator
import pickle
import reprlib
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Subset, get_worker_info

from csd_engine.arithmetic.keyed import KeyedRows
from ddlp.sampling.checkpoint import is_stateful
from ddlp.sampling.keyed_generators import GENERATORS, places
from ddlp.sampling.own_generators import own_generators
from ddlp.sources.workers import mark
from ddlp.sources.workers.fetching import Maker

__all__ = ["Before", "KeyedBatch", "KeyedSamples"]

Before = list[tuple[Any, Any]] | None
"""For each worker: the state with which its data set begins, and the positions (a stream: the number) of its batches since."""

_SLOW_S = 5e-6  # a mark takes a fiftieth of it
_TRIED = 8  # so many samples, and collated batches, are watched to find the generators that are drawn from
_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_OF_COLLATE = 0x9E3779B97F4A7C15  # makes the key of a batch's collate_fn different from its first sample's key


class KeyedBatch(NamedTuple):
    """A request to the data set, with the numbers from which its samples' keys are made. It holds no sample.

    ``indices``: the batch's indices, or the single index of a loader without batches. ``items``: (index, occurrence) of each
    sample. None: the indices are integers, and each comes for the first time. ``again``: batches to make before it
    and to drop. ``takes_state``: the data set's state is wanted after it.
    """

    indices: Any
    items: list[tuple[int, int]] | None
    seed: int
    epoch: int
    again: tuple[KeyedBatch, ...] = ()
    takes_state: bool = False

    def at(self, place: int) -> str:
        """Return the words for the sample at this place; -1: it is not known which."""
        if not isinstance(self.indices, list):
            return f"at sample {self.indices}"
        return f"at sample {self.indices[place]}" if place >= 0 else f"at one of the samples {reprlib.repr(self.indices)}"

    def keys(self, batched: bool) -> list[int]:
        """Return the 64-bit key of each sample."""
        items = self.items
        if items is None:
            items = [(index, 0) for index in (self.indices if batched else (self.indices,))]
        numbers = np.array([index & _MASK64 for index, _ in items], np.uint64)
        occurrences = np.array([occurrence for _, occurrence in items], np.int64)
        keys: list[int] = KeyedRows(self.seed, self.epoch, numbers, occurrences).u64().tolist()
        return keys


class KeyedSamples(Maker):
    """Makes batches of the data set by the collate_fn.

    ``kept``: is asked in the data set's place, and told each epoch before (`ddlp.caching.kept_samples`); None: there is none.
    ``before``: where the worker's data set goes on, if it has a state of its own.

    The generators that are drawn from are seeded before each sample (before each batch, if the data set has ``__getitems__``)
    and before collate_fn. In the training process they are put back after each batch.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, kept: Any = None, before: Before = None
    ) -> None:
        self.dataset, self.kept, self._begins_with = dataset, kept, before
        self.collate_fn = collate_fn
        self._batched = batched
        self._many = batched and kept is None and _fetches_batches(dataset)
        self._watched = list(GENERATORS)
        self._seeded: list[str] = []
        self._before: dict[str, Any] = {}  # states of the generators before the batch
        self._places: tuple[Any, ...] | None = None  # where they were then, if that is known
        self._own: list[Any] = []  # the objects with generators of their own
        self._looked_at: int | None = None  # the epoch in which they were looked for
        self._samples_to_try = self._collates_to_try = _TRIED
        self._slow = True  # a sample takes long beside what it takes to mark it

    def same_as(self, other: Any) -> bool:
        """As `Maker.same_as`: it holds the very same objects."""
        ours, theirs = ((samples.dataset, samples.collate_fn, samples.kept, samples.postpone) for samples in (self, other))
        return all(map(operator.is_, ours, theirs))

    def fetch(self, request: KeyedBatch) -> Any:
        """Return the finished batch."""
        if self._begins_with is not None:
            info = get_worker_info()
            (state, _), self._begins_with = self._begins_with[0 if info is None else info.id], None
            if state is not None:
                self.dataset.load_state_dict(state["dataset"])
        for batch in request.again:
            self._keyed(batch)
        batch = self._keyed(request)
        self.state = pickle.dumps({"dataset": self.dataset.state_dict()}) if request.takes_state else None
        return batch

    def _keyed(self, batch: KeyedBatch) -> Any:
        here = get_worker_info() is None
        self._look(batch.epoch)
        if here or not self._before:  # in a worker, only the batches' own code moves the generators
            now = places()
            if now is None or now != self._places:
                self._before = {name: GENERATORS[name].state() for name in (*self._watched, *self._seeded)}
                self._places = now if self._watched else None
        try:
            while True:
                try:
                    result = self._make(batch)
                except Exception:
                    if not self._others_moved():
                        raise
                else:
                    if not self._others_moved():
                        return result
        finally:
            if here and self._seeded:
                self._put_back(self._seeded)

    def by_own_generators(self, batch: KeyedBatch) -> Any:
        """Return the finished batch. Only draws from the transforms' own generators are keyed."""
        self._look(batch.epoch)
        samples = []
        for index, key in zip(batch.indices if self._batched else (batch.indices,), batch.keys(self._batched), strict=True):
            self._seed_own(key)
            samples.append(self.dataset[index])
        return self.collate_fn(samples if self._batched else samples[0])

    def begin_worker(self, init: Callable[[], None]) -> None:
        """As `Maker.begin_worker`. A generator that it moves is left alone from then on."""
        before = {name: GENERATORS[name].state() for name in self._watched}
        init()
        self._watched = [name for name in self._watched if GENERATORS[name].state() == before[name]]

    def _look(self, epoch: int) -> None:
        """Find what draws in this epoch, if that is not known yet: the user may replace transforms between two epochs."""
        if self._looked_at == epoch:
            return
        self._own, self._looked_at = own_generators((self.dataset, self.collate_fn)), epoch
        if is_stateful(self.dataset):  # no batch may be made twice, so all generators are seeded
            self._seeded, self._watched = [*self._seeded, *self._watched], []
        if self.kept is not None:
            self.kept.begin_epoch(epoch)

    def _seed_own(self, key: int) -> None:
        for transform in self._own:
            transform.set_random_seed(key & _MASK32)

    def _make(self, batch: KeyedBatch) -> Any:
        indices, dataset = batch.indices, self.dataset if self.kept is None else self.kept
        wanted = self._seeded or self._own or self._samples_to_try or self._collates_to_try
        keys = batch.keys(self._batched) if wanted else []
        first = keys[0] if keys else 0
        if not self._batched:
            samples = self._ask(first, operator.getitem, dataset, indices)
        elif self._many:
            samples = self._ask(first, dataset.__getitems__, indices)
        elif mark.here is not None and self._slow:
            samples = self._marked(dataset, indices, keys, mark.here.numbers)
        elif keys:
            samples = [self._ask(key, operator.getitem, dataset, index) for index, key in zip(indices, keys, strict=True)]
        else:
            samples = [dataset[index] for index in indices]
        if self._collates_to_try:
            if self._others_moved():  # checked here, since `_try` puts them back
                return self._make(batch)
            self._collates_to_try -= 1
            return self._try(first ^ _OF_COLLATE, self.collate_fn, samples)
        self._seed(self._seeded, first ^ _OF_COLLATE)
        return self.collate_fn(samples)

    def _marked(self, dataset: Any, indices: Any, keys: list[int], numbers: memoryview) -> list[Any]:
        """Return the samples. The worker's mark tells which one is made."""
        began_s, samples = time.monotonic(), []
        for place, index in enumerate(indices):
            numbers[1] = place
            samples.append(self._ask(keys[place], operator.getitem, dataset, index) if keys else dataset[index])
        numbers[1] = -1
        self._slow = time.monotonic() - began_s > _SLOW_S * len(samples)
        return samples

    def _ask(self, key: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the data set's answer, with its draws keyed."""
        self._seed_own(key)
        if self._samples_to_try:
            self._samples_to_try -= 1
            return self._try(key, call, *arguments)
        self._seed(self._seeded, key)
        return call(*arguments)

    def _try(self, key: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """Do the call with all generators seeded. Those that it moves were drawn from."""
        self._seed((*self._watched, *self._seeded), key)
        fresh = {name: GENERATORS[name].state() for name in self._watched}
        try:
            return call(*arguments)
        finally:
            moved = [name for name in self._watched if GENERATORS[name].state() != fresh[name]]
            self._seeded += moved
            self._watched = [name for name in self._watched if name not in moved]
            self._put_back(self._watched)

    def _others_moved(self) -> bool:
        """Whether a generator has moved that was not seeded. Such a generator is put back, and seeded from now on."""
        if self._places is not None and not self._seeded and places() == self._places:
            return False
        moved = [name for name in self._watched if GENERATORS[name].state() != self._before[name]]
        if moved:
            self._put_back(moved)
            self._seeded += moved
            self._watched = [name for name in self._watched if name not in moved]
        return bool(moved)

    def _put_back(self, names: Iterable[str]) -> None:
        for name in names:
            GENERATORS[name].put_back(self._before[name])

    @staticmethod
    def _seed(names: Iterable[str], key: int) -> None:
        for name in names:
            GENERATORS[name].seed(key)


def _fetches_batches(dataset: Any) -> bool:
    """True if the user's data set has ``__getitems__``. Subset has one too, which only passes the call on."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
