"""The order that torch's own samplers give, as one array: a million Python integers cost more than the first batch.

The draws are torch's, number by number, and made when torch makes them. Each class is compared with torch's, once a process;
where an installed torch draws otherwise, its sampler is read element by element.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

__all__ = ["begin", "gives_each_once"]


def begin(sampler: Any, wanted: int) -> Iterator[np.ndarray]:
    """iter() of a sampler of torch's own: gives its indices in pieces, int64, none of which is drawn before it is asked for.

    As many as are ``wanted`` come without any draw that torch makes later. To exhaust the iterator makes those as well.
    """
    kind: type = type(sampler)
    drawn = _DRAWN.get(kind)
    if drawn is None or getattr(sampler, "replacement", False) or not _agrees(kind):
        return _one_by_one(sampler, wanted)
    return drawn(sampler)


def gives_each_once(sampler: Any) -> bool:
    """True where no index can come twice in an epoch."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) in (SequentialSampler, DistributedSampler)  # what the latter repeats goes to different ranks


def _one_by_one(sampler: Any, wanted: int) -> Iterator[np.ndarray]:
    indices = map(operator.index, iter(sampler))
    yield np.fromiter(itertools.islice(indices, wanted), dtype=np.int64)
    yield np.fromiter(indices, dtype=np.int64)


def _sequential(sampler: SequentialSampler) -> Iterator[np.ndarray]:
    yield np.arange(len(sampler.data_source))


def _random(sampler: RandomSampler) -> Iterator[np.ndarray]:
    """As RandomSampler.__iter__ without replacement, and without a list of Python integers in between."""
    n, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator()
        generator.manual_seed(seed)
    for _ in range(sampler.num_samples // n):
        yield torch.randperm(n, generator=generator).numpy()
    yield torch.randperm(n, generator=generator).numpy()[: sampler.num_samples % n]


def _distributed(sampler: DistributedSampler) -> Iterator[np.ndarray]:
    """As DistributedSampler.__iter__: np.resize both repeats from the beginning and cuts off."""
    n = len(sampler.dataset)  # type: ignore[arg-type]
    order = np.arange(n)
    if sampler.shuffle:
        generator = torch.Generator()
        generator.manual_seed(sampler.seed + sampler.epoch)
        order = torch.randperm(n, generator=generator).numpy()
    yield np.resize(order, sampler.total_size)[sampler.rank : sampler.total_size : sampler.num_replicas]


_DRAWN: dict[type, Callable[[Any], Iterator[np.ndarray]]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    DistributedSampler: _distributed,
}


def _samples_of(kind: type) -> Iterator[Callable[[], tuple[Any, torch.Generator]]]:
    """Makers of small samplers, with the generator that they draw from."""

    def random(count: int | None) -> tuple[Any, torch.Generator]:
        generator = torch.Generator().manual_seed(7)
        return RandomSampler(range(11), num_samples=count, generator=generator), generator

    def distributed(shuffle: bool, drop_last: bool) -> tuple[Any, torch.Generator]:
        data: Any = range(11)
        sampler: Any = DistributedSampler(data, 3, 1, shuffle=shuffle, seed=5, drop_last=drop_last)
        sampler.set_epoch(2)
        return sampler, torch.Generator()

    if kind is SequentialSampler:
        yield lambda: (SequentialSampler(range(11)), torch.Generator())
    elif kind is RandomSampler:
        yield from (functools.partial(random, count) for count in (None, 4, 22, 25))
    else:
        yield from (functools.partial(distributed, *both) for both in itertools.product((False, True), repeat=2))


@functools.cache
def _agrees(kind: type) -> bool:
    """Whether this torch's samplers of a kind give, and leave their generator, as they are written here."""
    try:
        for make in _samples_of(kind):
            (theirs, first), (ours, second) = make(), make()
            if [int(k) for k in theirs] != np.concatenate(list(_DRAWN[kind](ours))).tolist():
                return False
            if not torch.equal(first.get_state(), second.get_state()):
                return False
    except (AttributeError, TypeError, ValueError):
        return False
    return True
