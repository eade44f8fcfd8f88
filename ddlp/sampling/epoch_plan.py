"""The batches of an epoch, in the order in which the sampler gives them.

For torch's own samplers the whole epoch is drawn when it begins, from torch's generators and in torch's order, so that batches
can be leased from its end. torch itself draws some samplers piece by piece (a RandomSampler with replacement, or with more
samples than the data set has). If nobody leases batches, such a sampler is drawn as its batches are needed. Any other sampler
is the user's code, and may look at the training's state. It is read no further ahead than DataLoader's prefetch would read it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ddlp.sampling import sampler_order as order
from ddlp.sampling.merged import RestSampler
from ddlp.sampling.occurrences import OccurrenceCounter
from ddlp.sampling.sampler_order import as_indices

Item = tuple[int, int]
"""(source index, how often it came before in this epoch). A sample's content depends on these, the seed and the epoch."""

_BUILT_IN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, RestSampler)


def _of_accelerate(sampler: Any, name: str) -> bool:
    return (type(sampler).__module__, type(sampler).__name__) == ("accelerate.data_loader", name)


def _is_part(sampler: Any) -> bool:
    """True for accelerate's shard of a batch sampler, which gives one process its part of the batches."""
    return _of_accelerate(sampler, "BatchSamplerShard")


def _within(sampler: Any) -> Any:
    """Return the sampler of single indices within torch's batch sampler, or within a shard of one."""
    if _is_part(sampler) and type(sampler.batch_sampler) is BatchSampler:
        sampler = sampler.batch_sampler
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def is_built_in(sampler: Any) -> bool:
    """True for torch's own samplers (not subclasses), accelerate's, and for what a merged state has left of an epoch.

    Their whole epoch may be drawn at its beginning.
    """
    inner = _within(sampler)
    return type(inner) in _BUILT_IN or _of_accelerate(inner, "SeedableRandomSampler")


def is_random(sampler: Any) -> bool:
    """True if the order is random anyway, so that another order of whole batches is just as good."""
    inner = _within(sampler)
    if type(inner) in (DistributedSampler, RestSampler):
        return inner.shuffle
    random = type(inner) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return random or _of_accelerate(inner, "SeedableRandomSampler")


_BLOCK = 1 << 16  # indices that are drawn, and counted, together


class IndexedSamples(Protocol):
    """The facts about a data set that a plan needs. `ddlp.translate.datasets.PortableSet` is one implementation.

    Attributes:
        starts: the first source index of each part, and, last, the number of source indices.
        each_once: True: no two indices of the data set mean the same source index.
    """

    @property
    def starts(self) -> Sequence[int]: ...

    @property
    def each_once(self) -> bool: ...

    def __len__(self) -> int: ...

    def source(self, indices: np.ndarray) -> np.ndarray:
        """Return the source indices, int64, of the data set's own indices, as `as_indices` gives them; -1: there is none."""


@dataclass(frozen=True)
class _Block:
    """Indices in the order in which they were drawn. Their integers may be smaller than int64."""

    indices: np.ndarray  # the data set's own; objects if one of them is no integer
    sources: np.ndarray  # -1: the data set has no such sample
    before: np.ndarray | None  # how often each came before; None: all come for the first time


class EpochPlan:
    """The batches of one epoch, in the sampler's order. Position 0 is the first.

    Args:
        sampler: gives a batch's indices (``batched``), or single indices. If it is read as it goes, this is its iterator, and
            iter() of that must return the same iterator.
        portable: resolves the data set's indices to source indices.
        whole: the sampler is one of torch's own, whose length and order are known now. False: `read` draws batch by batch.
        skip: how many batches to leave out first, since an epoch that is resumed had read them.
        at_once: with ``whole``: draw all of it now. False: a sampler that torch draws piece by piece is drawn when any thread
            asks for a batch, and the batches are kept until `forget`.
        views: the number of images that are made of each sample.
    """

    def __init__(
        self,
        sampler: Any,
        portable: IndexedSamples,
        *,
        whole: bool,
        batched: bool,
        skip: int = 0,
        at_once: bool = True,
        views: int = 1,
    ) -> None:
        self.views = views
        self._portable = portable
        self._batched = batched
        self._occurrence_counter = OccurrenceCounter(portable.starts[-1])
        self._blocks: dict[int, _Block] = {}  # the blocks of a sampler of torch's own, by number
        self._size = self._per_block = 1  # samples of a batch in these blocks, batches of a block
        self._wanted = self._whole = 0  # samples and batches of all blocks
        self._counts = False  # whether an index may come again
        self._next_blocks: Iterator[np.ndarray] = iter(())  # the indices of the blocks not drawn yet
        self._drawn_blocks = self._kept_from = 0
        self._drawing = threading.Lock()
        self._batches: dict[int, _Block] = {}  # the batches that are drawn one by one, by position
        self._no_lists: dict[int, Any] = {}  # those of them that are no lists of indices, as the sampler gave them
        self._length = self._largest = self._forgotten = 0
        self.ended = False
        self.drawn = 0  # batches that the sampler has given, including those left out
        self.whole = whole  #: whether the length and the order are known from the beginning
        self.grows = not whole  #: whether the plan's memory grows as it goes on, unless `forget` is called
        self._sampler_iter: Iterator[Any] = iter(())
        self._reads = 0  # if DataLoader's draws are followed one by one: its reads of `_sampler_iter` by now
        self._follows = False
        self._reads_to_end = 0  # if they are not followed: after so many reads, batch by batch, the sampler would have ended
        if whole:
            self._read_whole(sampler, at_once)
        else:
            self._sampler_iter = iter(sampler)
            self.drawn = sum(1 for _ in itertools.islice(self._sampler_iter, skip))

    def __len__(self) -> int:
        return self._length

    def read(self) -> bool:
        """Draw one more batch from the sampler. False once it has ended."""
        if self.ended:
            return False
        try:
            batch = next(self._sampler_iter)
        except StopIteration:
            self.ended = True
            return False
        self.drawn += 1
        try:
            indices = as_indices(list(batch) if self._batched else [batch])
        except TypeError:  # no list of indices: it is this batch's error, as in DataLoader's workers
            self._no_lists[self._length] = batch
            indices = as_indices([batch])
        self.append(indices)
        return True

    def read_as_far_as(self, reads: int) -> None:
        """Note that DataLoader would have asked torch's own sampler ``reads`` times by now.

        torch's RandomSampler draws from the user's generator once more when it ends, and piece by piece if it draws as it goes.
        An epoch that is broken off must leave that generator in the state in which DataLoader leaves it.
        """
        if self._follows:
            for _ in itertools.islice(self._sampler_iter, max(0, reads - self._reads)):
                pass
            self._reads = max(self._reads, reads)
        elif reads >= self._reads_to_end:
            for _ in self._sampler_iter:
                pass

    def append(self, indices: np.ndarray, occurrences: np.ndarray | None = None) -> None:
        """Add a batch of the data set's own indices. Their occurrences are counted, unless they are given (on a resume)."""
        sources = self._portable.source(indices)
        if occurrences is None:
            occurrences = self._counted(sources)
        self._batches[self._length] = _Block(indices, sources, occurrences)
        self._length += 1
        self._largest = max(self._largest, len(indices))

    def forget(self, before: int) -> None:
        """Drop batches before this position that would pile up in memory. They will not be wanted any more.

        The first of the batches that are drawn one by one stays: a device that joins is compared by it.
        """
        if not self.grows or before <= self._forgotten:
            return
        for position in range(max(self._forgotten, self._whole, 1), before):
            self._batches.pop(position, None)
        self._forgotten = before
        with self._drawing:
            kept_from = min(before, self._whole) // self._per_block
            for number in range(self._kept_from, kept_from):
                self._blocks.pop(number, None)
            self._kept_from = kept_from

    @property
    def times_drawn(self) -> dict[int, int]:
        """How often each source index was drawn, if the order is drawn as it goes."""
        return self._occurrence_counter.times()

    def go_on_after(self, times_drawn: dict[int, int]) -> None:
        """Count on from the numbers in `times_drawn` of an epoch that is resumed."""
        self._occurrence_counter.add(times_drawn)

    def _read_whole(self, sampler: Any, at_once: bool) -> None:
        outer, size, drop_last = sampler, 1, False
        if _is_part(sampler):  # read to its end now: all batches have one size, except the last
            batches = list(sampler)
            size, sampler = len(batches[0]) if batches else 1, list(itertools.chain.from_iterable(batches))
        elif type(sampler) is BatchSampler and self._batched:
            sampler, size, drop_last = sampler.sampler, sampler.batch_size, sampler.drop_last
        n = len(sampler)
        self._size, self._wanted = size, n - n % size if drop_last else n
        self._whole = self._length = self.drawn = -(-self._wanted // size)
        self._largest = min(size, self._wanted)
        self._counts = not (order.gives_each_once(sampler) and self._portable.each_once)
        self._per_block = max(1, _BLOCK // size if self._counts else self._whole)
        if order.draws_as_it_goes(sampler):
            # The user's generator is drawn from when DataLoader would draw from it; a copy of it is drawn from when a batch is
            # needed. If the sampler has no generator, DataLoader draws a seed with the first batch, as this code does, or when
            # it finds that there is no batch.
            self._follows = sampler.generator is not None or not self._whole
            self._sampler_iter = iter(outer) if self._follows else iter(())
            self.grows = not at_once and order.draws_on_the_cpu(sampler)
            pieces = order.begin(order.apart(sampler), self._wanted)
        else:
            pieces = self._sampler_iter = order.begin(sampler, self._wanted)
        self._reads_to_end = self._whole + (0 if self._wanted % size else 1)
        self._next_blocks = order.in_blocks(pieces, self._wanted, self._per_block * size)
        self.ended = True
        if self._whole:
            self._block(0 if self.grows else (self._whole - 1) // self._per_block)
        if not self.grows:
            self._next_blocks = iter(())  # frees the arrays that the blocks were cut from

    def _block(self, number: int) -> _Block:
        """Return a block of a sampler of torch's own. It is drawn now if needed."""
        block = self._blocks.get(number)
        if block is None:
            with self._drawing:
                while self._drawn_blocks <= number:
                    self._draw()
            block = self._blocks[number]
        return block

    def _draw(self) -> None:
        indices = next(self._next_blocks)
        sources = self._portable.source(indices)
        before = self._counted(sources) if self._counts else None
        if self._drawn_blocks >= self._kept_from:
            if before is not None:
                before = _small(before) if before.any() else None
                small = _small(indices)
                indices, sources = small, small if sources is indices else _small(sources)
            self._blocks[self._drawn_blocks] = _Block(indices, sources, before)
        self._drawn_blocks += 1

    def _counted(self, sources: np.ndarray) -> np.ndarray:
        """Return how often each source index came before, int64, and count them; 0 for a sample that does not exist."""
        if len(sources) and sources.min() >= 0:
            return self._occurrence_counter.count(sources)
        there, before = sources >= 0, np.zeros(len(sources), dtype=np.int64)
        before[there] = self._occurrence_counter.count(sources[there])
        return before

    def _rows(self, position: int) -> tuple[_Block, slice]:
        """Return a batch's block and its rows there. Raises KeyError for a batch that was forgotten."""
        if position >= self._whole:
            return self._batches[position], slice(None)
        number, k = divmod(position, self._per_block)
        return self._block(number), slice(k * self._size, (k + 1) * self._size)

    def occurrences(self, position: int) -> np.ndarray:
        """Return, for each index of a batch, how often it came before in this epoch, int64."""
        block, rows = self._rows(position)
        if block.before is None:
            return np.zeros(self.size(position), dtype=np.int64)
        return block.before[rows].astype(np.int64, copy=False)

    def size(self, position: int) -> int:
        """Return the number of samples in a batch; 0 if it was forgotten."""
        if position < self._whole:
            return min(self._size, self._wanted - position * self._size)
        batch = self._batches.get(position)
        return 0 if batch is None else len(batch.indices)

    @property
    def samples(self) -> int:
        """The number of samples in the epoch, if the sampler is one of torch's own. On a resume those before it count too."""
        return self._wanted

    @property
    def largest(self) -> int:
        """The number of samples in the largest batch so far; 1 if there is none."""
        return max(1, self._largest)

    def indices(self, position: int) -> list[Any]:
        """Return the data set's own indices of a batch: integers, but for what the sampler should not have given."""
        block, rows = self._rows(position)
        return block.indices[rows].tolist()

    def wrong(self, position: int) -> tuple[Any, ...]:
        """Return, in a tuple, a request like DataLoader's for which the data set fails; (): each sample of the batch exists.

        It asks for the first sample that does not exist, or is the batch itself if that is no list of indices.
        """
        if position in self._no_lists:
            return (self._no_lists[position],)
        missing = np.flatnonzero(self.sources(position) < 0)
        if not len(missing):
            return ()
        index = self.indices(position)[int(missing[0])]
        return ([index] if self._batched else index,)

    def sources(self, position: int) -> np.ndarray:
        """Return the source indices of a batch, int64."""
        block, rows = self._rows(position)
        return block.sources[rows].astype(np.int64, copy=False)

    def items(self, position: int) -> list[Item]:
        """Return the items of a batch, in order."""
        return list(zip(self.sources(position).tolist(), self.occurrences(position).tolist(), strict=True))

    def images(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources and occurrences, int64, of the images to make for a batch.

        Each view of a sample has an occurrence of its own. The first views of all samples come first, then the second ones.
        """
        sources, occurrences = self.sources(position), self.occurrences(position)
        if self.views == 1:
            return sources, occurrences
        return np.tile(sources, self.views), np.concatenate([occurrences * self.views + k for k in range(self.views)])

    def image_items(self, position: int) -> list[Item]:
        """Return the items of the images to make for a batch, in order."""
        sources, occurrences = self.images(position)
        return list(zip(sources.tolist(), occurrences.tolist(), strict=True))


def _small(numbers: np.ndarray) -> np.ndarray:
    """Return the same integers in the smallest type that holds them all."""
    if numbers.dtype == object:  # some are no integers
        return numbers
    lowest, highest = (np.min_scalar_type(int(end)) for end in (numbers.min(), numbers.max()))
    return numbers.astype(np.promote_types(lowest, highest))
