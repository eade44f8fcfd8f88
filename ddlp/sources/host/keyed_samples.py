"""A data set of the user's, asked batch by batch, with the draws of each sample keyed.

A sample's random draws come from the global generators of torch, numpy and random. To seed all three takes as long as some
data sets need for ten samples. So all are seeded for the first few samples, and from then on those that had been drawn from.
The others are watched: where one has moved after a batch, the batch is made once more, with that one seeded as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Subset, get_worker_info

from csd_engine.keyed import KeyedRows
from ddlp.sampling.checkpoint import is_stateful
from ddlp.sampling.keyed_generators import GENERATORS

__all__ = ["KeyedBatch", "KeyedSamples"]

_TRIED = 8  # samples, and batches put together, that tell what is drawn from
_MASK64 = (1 << 64) - 1
_OF_COLLATE = 0x9E3779B97F4A7C15  # tells the key of a batch's collate_fn from its first sample's


class KeyedBatch(NamedTuple):
    """What the data set is asked for, and what its samples' keys are made of.

    ``indices`` are the batch's, or the one of a loader without batches. ``items`` are (index, occurrence) of each sample; None:
    the indices themselves, which are integers, each for the first time.
    """

    indices: Any
    items: list[tuple[int, int]] | None
    seed: int
    epoch: int

    def keys(self, batched: bool) -> list[int]:
        """The 64-bit key of each sample."""
        items = self.items
        if items is None:
            items = [(index, 0) for index in (self.indices if batched else (self.indices,))]
        numbers = np.array([index & _MASK64 for index, _ in items], np.uint64)
        occurrences = np.array([occurrence for _, occurrence in items], np.int64)
        keys: list[int] = KeyedRows(self.seed, self.epoch, numbers, occurrences).u64().tolist()
        return keys


class KeyedSamples:
    """The data set and the collate_fn as torch's fetchers see them: one data set that gives finished batches.

    Before each sample (the batch, where the data set has ``__getitems__``) and before collate_fn the generators are seeded
    that they draw from. In the training process they are put back after each batch.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self._batched = batched
        self._many = batched and _fetches_batches(dataset)
        self._watched = list(GENERATORS)
        self._seeded: list[str] = []
        self._stateful = is_stateful(dataset)  # then no batch may be made once more, so all generators are seeded
        self._before: dict[str, Any] = {}  # states of the generators before the batch
        self._samples_to_try = self._collates_to_try = _TRIED

    def __getitems__(self, batch: KeyedBatch) -> Any:
        """The finished batch."""
        here = get_worker_info() is None
        if self._stateful and self._watched:
            self._seeded, self._watched = [*self._seeded, *self._watched], []
        if here or not self._before:  # in a worker nobody else moves them
            self._before = {name: GENERATORS[name].state() for name in (*self._watched, *self._seeded)}
        try:
            while True:
                try:
                    made = self._make(batch)
                except Exception:
                    if not self._others_moved():
                        raise
                else:
                    if not self._others_moved():
                        return made
        finally:
            if here:
                self._put_back(self._seeded)

    __getitem__ = __getitems__  # of a loader without batches

    def begin_worker(self, init: Callable[[], None]) -> None:
        """Run the user's worker_init_fn. A generator that it moves is left alone from there on."""
        before = {name: GENERATORS[name].state() for name in self._watched}
        init()
        self._watched = [name for name in self._watched if GENERATORS[name].state() == before[name]]

    def _make(self, batch: KeyedBatch) -> Any:
        indices, dataset = batch.indices, self.dataset
        keys = batch.keys(self._batched) if self._seeded or self._samples_to_try or self._collates_to_try else []
        first = keys[0] if keys else 0
        if not self._batched:
            made = self._ask(first, operator.getitem, dataset, indices)
        elif self._many:
            made = self._ask(first, dataset.__getitems__, indices)
        elif keys:
            made = [self._ask(key, operator.getitem, dataset, index) for index, key in zip(indices, keys, strict=True)]
        else:
            made = [dataset[index] for index in indices]
        if self._collates_to_try:
            if self._others_moved():  # to be seen before they are put back
                return self._make(batch)
            self._collates_to_try -= 1
            return self._try(first ^ _OF_COLLATE, self.collate_fn, made)
        self._seed(self._seeded, first ^ _OF_COLLATE)
        return self.collate_fn(made)

    def _ask(self, key: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the data set answers, with its draws keyed."""
        if self._samples_to_try:
            self._samples_to_try -= 1
            return self._try(key, call, *arguments)
        self._seed(self._seeded, key)
        return call(*arguments)

    def _try(self, key: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """The same with all generators seeded: those that move then were drawn from."""
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
        """Whether a generator has moved that was not seeded. It is put back, and seeded from now on."""
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
    """True where the user's data set has ``__getitems__``. Subset's own only passes on to it."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
