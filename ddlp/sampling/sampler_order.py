"""The order that torch's own samplers give, as arrays: to make a million Python integers takes longer than the first batch.

The draws are the same as torch's, number by number, and they are made when torch makes them. Each class is compared with
torch's, once a process. If the installed torch draws differently, or not on the CPU, its sampler is read element by element.
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ddlp.sampling.merged import RestSampler

__all__ = [
    "apart", "as_indices", "begin", "default_device", "draws_as_it_goes", "draws_on_the_cpu", "gives_each_once", "in_batches",
    "in_blocks",
]  # fmt: skip

_AT_ONCE = 32 * 1024  # draws with replacement in one call; torch makes 32 in one call, and gets the same numbers


def begin(sampler: Any, wanted: int) -> Iterator[np.ndarray]:
    """Do what iter() of a sampler of torch's own does, but yield indices in pieces, int64. Each piece is drawn at its request.

    The first ``wanted`` indices come without any draw that torch makes only at the end. A sampler that `draws_as_it_goes` draws
    between two pieces as well. A caller that exhausts the iterator makes the draws of the end too.
    """
    kind: type = type(sampler)
    drawn = _replacing if getattr(sampler, "replacement", False) and kind is RandomSampler else _DRAWN.get(kind)
    if drawn is None or not (drawn is _sequential or draws_on_the_cpu(sampler)) or not _agrees(drawn):
        return _one_by_one(sampler, wanted)
    return drawn(sampler)


def in_blocks(pieces: Iterator[np.ndarray], wanted: int, length: int) -> Iterator[np.ndarray]:
    """Yield the first ``wanted`` indices of these pieces in blocks of ``length``. A piece is requested when it is needed."""
    held: list[np.ndarray] = []
    have = 0
    while wanted > 0:
        need = min(length, wanted)
        while have < need:
            piece = next(pieces, None)
            if piece is None:
                raise RuntimeError(f"the sampler has ended {wanted - have} indices before the length that it says it has")
            held.append(piece)
            have += len(piece)
        joined = held[0] if len(held) == 1 else np.concatenate(held)
        yield joined[:need]
        held, have, wanted = [joined[need:]], have - need, wanted - need


def in_batches(sampler: BatchSampler) -> Iterator[list[int]]:
    """Do what iter() of a BatchSampler over torch's own sampler does, in less than half the time. Draws come when torch's do.

    It is not for a sampler that `draws_as_it_goes`.
    """
    size, indices = sampler.batch_size, sampler.sampler
    held = np.empty(0, np.int64)
    for piece in begin(indices, len(indices)):  # type: ignore[arg-type]
        held = np.concatenate((held, piece)) if len(held) else piece
        whole = len(held) // size * size
        for first in range(0, whole, size):
            yield held[first : first + size].tolist()
        held = held[whole:]
    if len(held) and not sampler.drop_last:
        yield held.tolist()


def gives_each_once(sampler: Any) -> bool:
    """True if no index can come twice in an epoch."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    # DistributedSampler, and what is left of its epoch, give repeated indices to different ranks.
    return type(sampler) in (SequentialSampler, DistributedSampler, RestSampler)


def draws_as_it_goes(sampler: Any) -> bool:
    """True if torch draws piece by piece during an epoch. Other samplers draw when it begins, and once when it ends."""
    return type(sampler) is RandomSampler and not gives_each_once(sampler)


def apart(sampler: RandomSampler) -> RandomSampler:
    """Return a sampler that gives the same indices, and does not change this one's generator."""
    if sampler.generator is None:  # it makes a generator for each epoch
        return sampler
    other = copy.copy(sampler)
    other.generator = torch.Generator(sampler.generator.device)
    other.generator.set_state(sampler.generator.get_state())
    return other


def default_device() -> torch.device:
    """Return the device on which torch makes tensors in this thread (torch.set_default_device)."""
    return torch.empty(0).device


def draws_on_the_cpu(sampler: Any) -> bool:
    """True if a sampler's random numbers are drawn on the CPU, no matter which thread draws them."""
    generator = getattr(sampler, "generator", None)
    return default_device().type == "cpu" and (generator is None or generator.device.type == "cpu")


def as_indices(items: Sequence[Any]) -> np.ndarray:
    """Return what a sampler gave as int64, or as the objects themselves if one of them is no integer of that size."""
    try:
        return np.fromiter(map(operator.index, items), dtype=np.int64, count=len(items))
    except (OverflowError, TypeError):
        objects = np.empty(len(items), dtype=object)
        for k, item in enumerate(items):  # one by one, since numpy would look into lists and arrays
            objects[k] = item
        return objects


def _one_by_one(sampler: Any, wanted: int) -> Iterator[np.ndarray]:
    items = iter(sampler)
    yield as_indices(list(itertools.islice(items, wanted)))
    yield as_indices(list(items))


def _sequential(sampler: SequentialSampler) -> Iterator[np.ndarray]:
    yield np.arange(len(sampler.data_source))


def _random(sampler: RandomSampler) -> Iterator[np.ndarray]:
    """Draw like RandomSampler.__iter__ without replacement, but without a list of Python integers."""
    n, generator = len(sampler.data_source), _generator_of(sampler)
    for _ in range(sampler.num_samples // n):
        yield torch.randperm(n, generator=generator).numpy()
    yield torch.randperm(n, generator=generator).numpy()[: sampler.num_samples % n]


def _replacing(sampler: RandomSampler) -> Iterator[np.ndarray]:
    """Draw like RandomSampler.__iter__ with replacement. Its 32 draws at a time give the same numbers as more at a time."""
    n, generator, left = len(sampler.data_source), _generator_of(sampler), sampler.num_samples
    while left > 0:
        count = min(left, _AT_ONCE)
        yield torch.randint(high=n, size=(count,), dtype=torch.int64, generator=generator).numpy()
        left -= count


def _generator_of(sampler: RandomSampler) -> torch.Generator:
    """Return the sampler's generator, or one as the sampler makes it for an epoch."""
    if sampler.generator is not None:
        return sampler.generator
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def _distributed(sampler: DistributedSampler) -> Iterator[np.ndarray]:
    """Draw like DistributedSampler.__iter__: np.resize repeats indices from the beginning, or cuts them off."""
    n = len(sampler.dataset)  # type: ignore[arg-type]
    order = np.arange(n)
    if sampler.shuffle:
        generator = torch.Generator()
        generator.manual_seed(sampler.seed + sampler.epoch)
        order = torch.randperm(n, generator=generator).numpy()
    yield np.resize(order, sampler.total_size)[sampler.rank : sampler.total_size : sampler.num_replicas]


_Drawn = Callable[[Any], Iterator[np.ndarray]]
_DRAWN: dict[type, _Drawn] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    DistributedSampler: _distributed,
}


def _samples_of(drawn: _Drawn) -> Iterator[Callable[[], tuple[Any, torch.Generator]]]:
    """Yield functions that make a small sampler to test ``drawn`` with, and the generator that it draws from."""

    def random(count: int | None, replacement: bool = False) -> tuple[Any, torch.Generator]:
        generator = torch.Generator().manual_seed(7)
        return RandomSampler(range(11), replacement, count, generator), generator

    def distributed(shuffle: bool, drop_last: bool) -> tuple[Any, torch.Generator]:
        data: Any = range(11)
        sampler: Any = DistributedSampler(data, 3, 1, shuffle=shuffle, seed=5, drop_last=drop_last)
        sampler.set_epoch(2)
        return sampler, torch.Generator()

    if drawn is _sequential:
        yield lambda: (SequentialSampler(range(11)), torch.Generator())
    elif drawn is _random:
        yield from (functools.partial(random, count) for count in (None, 4, 22, 25))
    elif drawn is _replacing:
        yield from (functools.partial(random, count, True) for count in (4, 64, 75))
    else:
        yield from (functools.partial(distributed, *both) for both in itertools.product((False, True), repeat=2))


@functools.cache
def _agrees(drawn: _Drawn) -> bool:
    """Whether the installed torch's samplers give the same indices, and leave their generator in the same state."""
    try:
        for make in _samples_of(drawn):
            (sampler, generator), (twin, twin_generator) = make(), make()
            if [int(k) for k in sampler] != np.concatenate(list(drawn(twin))).tolist():
                return False
            if not torch.equal(generator.get_state(), twin_generator.get_state()):
                return False
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return True
