"""The batches of an epoch: what the sampler says, in the order in which it says it.

For torch's own samplers the whole epoch is drawn when it begins, from torch's generators in torch's own order, so that
batches can be leased from its end. Where nobody leases them, a sampler that torch itself draws piece by piece (a RandomSampler
with replacement, or of more samples than there are) is drawn as its batches are needed. Any other sampler is the user's code,
may look at the training's state, and is read no further ahead than DataLoader's prefetch would read it.
"""

from __future__ import annotations

import itertools
import operator
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
from ddlp.sampling.occurrences import OccurrenceCounter

Item = tuple[int, int]
"""(source index, how often it came before in this epoch): with seed and epoch, what a sample's content depends on."""

_BUILT_IN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def _of_accelerate(sampler: Any, name: str) -> bool:
    return (type(sampler).__module__, type(sampler).__name__) == ("accelerate.data_loader", name)


def _is_part(sampler: Any) -> bool:
    """True for the part of a batch sampler's batches that accelerate gives one process."""
    return _of_accelerate(sampler, "BatchSamplerShard")


def _within(sampler: Any) -> Any:
    """The sampler of single indices within torch's batch sampler, and within a part of one."""
    if _is_part(sampler) and type(sampler.batch_sampler) is BatchSampler:
        sampler = sampler.batch_sampler
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def is_built_in(sampler: Any) -> bool:
    """True for exactly torch's own samplers, and accelerate's: their whole epoch may be drawn at its beginning."""
    inner = _within(sampler)
    return type(inner) in _BUILT_IN or _of_accelerate(inner, "SeedableRandomSampler")


def is_random(sampler: Any) -> bool:
    """True where the order is random anyway, so that another order of whole batches is none the worse."""
    inner = _within(sampler)
    if type(inner) is DistributedSampler:
        return inner.shuffle
    random = type(inner) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return random or _of_accelerate(inner, "SeedableRandomSampler")


_BLOCK = 1 << 16  # indices that are drawn, and counted, together


class IndexedSamples(Protocol):
    """What a plan must know of a data set: `ddlp.translate.datasets.PortableSet` is one.

    Attributes:
        starts: where the source indices of each part begin, and, last, how many there are.
        each_once: no two indices of the data set mean one source index.
    """

    @property
    def starts(self) -> Sequence[int]: ...

    @property
    def each_once(self) -> bool: ...

    def __len__(self) -> int: ...

    def source(self, indices: np.ndarray) -> np.ndarray:
        """The source indices, int64, of the data set's own. Raises IndexError where there is none."""


@dataclass(frozen=True)
class _Block:
    """Indices in the order in which they were drawn. May be of smaller integers than int64."""

    indices: np.ndarray  # the data set's own
    sources: np.ndarray
    before: np.ndarray | None  # how often each came before; None: none did


class EpochPlan:
    """The batches of one epoch, in the sampler's order; position 0 is the first.

    Args:
        sampler: gives a batch's indices (``batched``), or single indices; where it is read as it goes, its iterator, of which
            a second iter() must be the same one.
        portable: resolves the data set's indices to source indices.
        whole: it is one of torch's own, whose length and order are known now; else `read` draws batch by batch.
        skip: batches to leave out first: they were part of an epoch that is resumed.
        at_once: ``whole``: draw all of it now; else a sampler that torch draws piece by piece is drawn when any thread asks
            for a batch, and kept until it is told to `forget` it.
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
    ) -> None:
        self._portable = portable
        self._batched = batched
        self._seen = OccurrenceCounter(portable.starts[-1])
        self._blocks: dict[int, _Block] = {}  # of a sampler of torch's own, by number
        self._size = self._per_block = 1  # samples of a batch of these, batches of a block
        self._wanted = self._whole = 0  # samples and batches of all of them
        self._counts = False  # an index may come again
        self._next_blocks: Iterator[np.ndarray] = iter(())  # the indices of those not drawn yet
        self._drawn_blocks = self._kept_from = 0
        self._drawing = threading.Lock()
        self._batches: dict[int, _Block] = {}  # drawn one by one, by position
        self._length = self._largest = self._forgotten = 0
        self.ended = False
        self.drawn = 0  # batches that the sampler has given, those left out included
        self.grows = not whole  #: it holds more the longer it goes on, unless it is told to `forget`
        self._sampler_iter: Iterator[Any] = iter(())
        self._reads = 0  # of `_sampler_iter` that DataLoader would have made, where its draws are followed one by one
        self._follows = False
        self._reads_to_end = 0  # else: after so many reads, batch by batch, the sampler would have ended
        if whole:
            self._read_whole(sampler, at_once)
        else:
            self._sampler_iter = iter(sampler)
            self.drawn = sum(1 for _ in itertools.islice(self._sampler_iter, skip))

    def __len__(self) -> int:
        return self._length

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
        """Of torch's own sampler: DataLoader would have asked it so many times by now.

        torch's RandomSampler draws from a generator of the user's once more when it ends, and piece by piece where it draws
        as it goes. An epoch that is broken off must leave that generator where DataLoader leaves it.
        """
        if self._follows:
            for _ in itertools.islice(self._sampler_iter, max(0, reads - self._reads)):
                pass
            self._reads = max(self._reads, reads)
        elif reads >= self._reads_to_end:
            for _ in self._sampler_iter:
                pass

    def append(self, indices: np.ndarray, occurrences: np.ndarray | None = None) -> None:
        """Add a batch of the data set's own indices; their occurrences are counted unless given (a resume)."""
        sources = self._portable.source(indices)
        if occurrences is None:
            occurrences = self._seen.count(sources)
        self._batches[self._length] = _Block(indices, sources, occurrences)
        self._length += 1
        self._largest = max(self._largest, len(indices))

    def forget(self, before: int) -> None:
        """The batches before this position will not be wanted any more: drop those that would only pile up.

        Of those drawn one by one the first stays: a device that joins is compared by it.
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
    def seen(self) -> dict[int, int]:
        """How often each source index was drawn, where the order is drawn as it goes."""
        return self._seen.times()

    def go_on_after(self, seen: dict[int, int]) -> None:
        """Count on from what an epoch that is resumed had `seen`."""
        self._seen.add(seen)

    def _read_whole(self, sampler: Any, at_once: bool) -> None:
        outer, size, drop_last = sampler, 1, False
        if _is_part(sampler):  # read to its end now: batches of one size, but for the last
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
            # The user's generator is drawn from where DataLoader draws from it, a copy of it where a batch is needed. Where it
            # has none DataLoader draws a seed with the first batch, as we do, or when it finds that there is no batch.
            self._follows = sampler.generator is not None or not self._whole
            self._sampler_iter = iter(outer) if self._follows else iter(())
            # An index that the data set has not is told now.
            self.grows = not at_once and order.draws_on_the_cpu(sampler) and len(sampler.data_source) <= len(self._portable)
            pieces = order.begin(order.apart(sampler), self._wanted)
        else:
            pieces = self._sampler_iter = order.begin(sampler, self._wanted)
        self._reads_to_end = self._whole + (0 if self._wanted % size else 1)
        self._next_blocks = order.in_blocks(pieces, self._wanted, self._per_block * size)
        self.ended = True
        if self._whole:
            self._block(0 if self.grows else (self._whole - 1) // self._per_block)
        if not self.grows:
            self._next_blocks = iter(())  # which holds what they were cut from

    def _block(self, number: int) -> _Block:
        """A block of a sampler of torch's own, drawn now if need be."""
        block = self._blocks.get(number)
        if block is None:
            with self._drawing:
                while self._drawn_blocks <= number:
                    self._draw()
            block = self._blocks[number]
        return block

    def _draw(self) -> None:
        indices = next(self._next_blocks)
        sources = self._portable.source(indices)  # also sees that there is no index that the data set has not
        before = self._seen.count(sources) if self._counts else None
        if self._drawn_blocks >= self._kept_from:
            if before is not None:
                before = _small(before) if before.any() else None
                small = _small(indices)
                indices, sources = small, small if sources is indices else _small(sources)
            self._blocks[self._drawn_blocks] = _Block(indices, sources, before)
        self._drawn_blocks += 1

    def _rows(self, position: int) -> tuple[_Block, slice]:
        """Where a batch is. Raises KeyError for one that was forgotten."""
        if position >= self._whole:
            return self._batches[position], slice(None)
        number, k = divmod(position, self._per_block)
        return self._block(number), slice(k * self._size, (k + 1) * self._size)

    def occurrences(self, position: int) -> np.ndarray:
        """For each index of a batch, how often it came before in this epoch, int64."""
        block, rows = self._rows(position)
        if block.before is None:
            return np.zeros(self.size(position), dtype=np.int64)
        return block.before[rows].astype(np.int64, copy=False)

    def size(self, position: int) -> int:
        """Samples in a batch; 0 where it was forgotten."""
        if position < self._whole:
            return min(self._size, self._wanted - position * self._size)
        batch = self._batches.get(position)
        return 0 if batch is None else len(batch.indices)

    @property
    def largest(self) -> int:
        """Samples of the largest batch so far; 1 where there is none."""
        return max(1, self._largest)

    def indices(self, position: int) -> list[int]:
        """The data set's own indices of a batch."""
        block, rows = self._rows(position)
        return block.indices[rows].tolist()

    def sources(self, position: int) -> np.ndarray:
        """The source indices of a batch, int64."""
        block, rows = self._rows(position)
        return block.sources[rows].astype(np.int64, copy=False)

    def items(self, position: int) -> list[Item]:
        """The items of a batch, in order."""
        return list(zip(self.sources(position).tolist(), self.occurrences(position).tolist(), strict=True))


def _small(numbers: np.ndarray) -> np.ndarray:
    """The same integers, in as few bytes each as hold them all."""
    lowest, highest = (np.min_scalar_type(int(end)) for end in (numbers.min(), numbers.max()))
    return numbers.astype(np.promote_types(lowest, highest))
