"""The batches of an epoch: what the sampler says, in the order in which it says it.

For torch's own samplers the whole epoch is drawn when it begins, from torch's generators in torch's own order, so that
batches can be leased from its end. Any other sampler is the user's code, may look at the training's state, and is read
no further ahead than DataLoader's prefetch would read it.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ddlp import order
from ddlp.translate.datasets import PortableSet

Item = tuple[int, int]
"""(source index, how often it came before in this epoch): with seed and epoch, what a sample's content depends on."""

_BUILT_IN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def is_built_in(sampler: Any) -> bool:
    """True for exactly torch's own samplers: their whole epoch may be drawn at its beginning."""
    if type(sampler) is BatchSampler:
        return type(sampler.sampler) in _BUILT_IN
    return type(sampler) in _BUILT_IN


def is_random(sampler: Any) -> bool:
    """True where the order is random anyway, so that another order of whole batches is none the worse."""
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is DistributedSampler:
        return sampler.shuffle
    return type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class EpochPlan:
    """The batches of one epoch, in the sampler's order; position 0 is the first.

    Args:
        sampler: gives a batch's indices (``batched``), or single indices; where it is read as it goes, its iterator.
        portable: resolves the data set's indices to source indices.
        whole: draw the whole epoch now (torch's own samplers only); else `read` draws batch by batch.
        skip: batches to leave out first: they were part of an epoch that is resumed.
    """

    def __init__(
        self,
        sampler: Any,
        portable: PortableSet,
        *,
        whole: bool,
        batched: bool,
        skip: int = 0,
    ) -> None:
        self._portable = portable
        self._batched = batched
        self._seen: Counter[int] = Counter()
        self._whole = np.zeros(0, dtype=np.int64)  # the data set's own indices, where the whole epoch was drawn
        self._size = 1  # samples of a batch of these
        self._sources = self._whole  # their source indices
        self._batches: list[np.ndarray] = []  # batches drawn one by one
        self._occurrences: dict[int, np.ndarray] = {}  # batches in which an index came again
        self.ended = False
        self.drawn = 0  # batches that the sampler has given, those left out included
        self._sampler_iter: Iterator[Any] = iter(())
        self._reads_to_end = 0  # after so many reads, batch by batch, the sampler would have ended
        if whole:
            self._read_whole(sampler)
        else:
            self._sampler_iter = iter(sampler)
            self.drawn = sum(1 for _ in itertools.islice(self._sampler_iter, skip))

    def __len__(self) -> int:
        return -(-len(self._whole) // self._size) + len(self._batches)

    def read(self) -> bool:
        """Draw one more batch from the sampler; False once it has ended."""
        if self.ended:
            return False
        try:
            batch = next(self._sampler_iter)
        except StopIteration:
            self.ended = True
            return False
        self.drawn += 1
        self.append(np.asarray(list(map(operator.index, batch if self._batched else [batch])), dtype=np.int64))
        return True

    def read_as_far_as(self, reads: int) -> None:
        """Where the whole epoch was drawn: DataLoader would have asked the sampler so many times by now.

        torch's RandomSampler draws from a generator of the user's once more when it ends, and an epoch that is broken
        off before must leave that generator where DataLoader leaves it.
        """
        if reads >= self._reads_to_end:
            for _ in self._sampler_iter:
                pass

    def append(self, indices: np.ndarray, occurrences: np.ndarray | None = None) -> None:
        """Add a batch of the data set's own indices; their occurrences are counted unless given (a resume)."""
        sources = self._portable.source(indices)
        if occurrences is None:
            occurrences = np.asarray([self._count(k) for k in sources.tolist()], dtype=np.int64)
        if occurrences.any():
            self._occurrences[len(self)] = occurrences
        self._batches.append(indices)

    @property
    def seen(self) -> dict[int, int]:
        """How often each source index was drawn, where the order is drawn as it goes."""
        return dict(self._seen)

    def go_on_after(self, seen: dict[int, int]) -> None:
        """Count on from what an epoch that is resumed had `seen`."""
        self._seen.update(seen)

    def _count(self, source: int) -> int:
        self._seen[source] += 1
        return self._seen[source] - 1

    def _read_whole(self, sampler: Any) -> None:
        size, drop_last = 1, False
        if type(sampler) is BatchSampler:
            sampler, size, drop_last = sampler.sampler, sampler.batch_size, sampler.drop_last
        n = len(sampler)
        wanted = n - n % size if drop_last else n
        self._sampler_iter = order.begin(sampler, wanted)
        pieces: list[np.ndarray] = []
        while sum(map(len, pieces)) < wanted and (piece := next(self._sampler_iter, None)) is not None:
            pieces.append(piece)
        flat = (pieces[0] if len(pieces) == 1 else np.concatenate([self._whole, *pieces]))[:wanted]
        self._whole, self._size = flat, size
        self._reads_to_end = len(self) + (0 if len(flat) % size else 1)
        self.drawn = len(self)
        self.ended = True
        sources = self._portable.source(flat)  # also sees that there is no index that the data set has not
        self._sources = sources
        if not (order.gives_each_once(sampler) and self._portable.each_once):
            self._count_all(sources)

    def _count_all(self, sources: np.ndarray) -> None:
        """How often each came before, by sorting."""
        if not len(sources) or np.bincount(sources).max() <= 1:
            return
        ranks = np.argsort(sources, kind="stable")
        ranked = sources[ranks]
        starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        before = np.empty(len(sources), dtype=np.int64)
        before[ranks] = np.arange(len(sources)) - np.repeat(starts, np.diff(np.r_[starts, len(sources)]))
        for position in set((np.flatnonzero(before) // self._size).tolist()):
            self._occurrences[position] = before[position * self._size : (position + 1) * self._size]

    def _batch(self, position: int) -> np.ndarray:
        """The data set's own indices of a batch, int64."""
        start = position * self._size
        if start < len(self._whole):
            return self._whole[start : start + self._size]
        return self._batches[position - (len(self) - len(self._batches))]

    def occurrences(self, position: int) -> np.ndarray:
        """For each index of a batch, how often it came before in this epoch, int64."""
        given = self._occurrences.get(position)
        return np.zeros(self.size(position), dtype=np.int64) if given is None else given

    def size(self, position: int) -> int:
        """Samples in a batch."""
        left = len(self._whole) - position * self._size
        return min(self._size, left) if left > 0 else len(self._batch(position))

    @property
    def largest(self) -> int:
        """Samples of the largest batch so far; 1 where there is none."""
        return max(1, min(self._size, len(self._whole)), *map(len, self._batches))

    def indices(self, position: int) -> list[int]:
        """The data set's own indices of a batch."""
        return self._batch(position).tolist()

    def sources(self, position: int) -> np.ndarray:
        """The source indices of a batch, int64."""
        start = position * self._size
        if start < len(self._sources):
            return self._sources[start : start + self._size]
        return self._portable.source(self._batch(position))

    def items(self, position: int) -> list[Item]:
        """The items of a batch, in order."""
        return list(zip(self.sources(position).tolist(), self.occurrences(position).tolist(), strict=True))
