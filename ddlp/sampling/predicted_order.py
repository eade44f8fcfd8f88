"""Predicts what iter() of a loader will draw, and leaves all generators as they are.

The prediction holds if nobody draws from these generators before iter(). Whoever uses it compares it with the real draws.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from ddlp.sampling.sampler_order import draws_as_it_goes

__all__ = ["PredictedOrder", "predicted_order"]


class PredictedOrder(NamedTuple):
    """The base seed that the next iter() will draw, and a sampler of the loader's kind that gives the order of its epoch."""

    base_seed: int
    sampler: Any


class _Copies:
    """A copy of each generator that is asked for, on the CPU: draws that follow each other come from the same copy."""

    def __init__(self) -> None:
        self._all: dict[int, torch.Generator] = {}

    def of(self, generator: torch.Generator | None) -> torch.Generator:
        """Return the copy of a generator; None: of torch's global one."""
        generator = torch.default_generator if generator is None else generator
        if id(generator) not in self._all:
            self._all[id(generator)] = torch.Generator().set_state(generator.get_state())
        return self._all[id(generator)]


def _number(generator: torch.Generator) -> int:
    """Draw a seed, as torch's iterators and samplers do."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def predicted_order(
    index_sampler: Any, generator: torch.Generator | None, base_seed: int | None, epochs: int, ended: bool
) -> PredictedOrder | None:
    """Return what the next iter() would draw if it came now. None if that can't be known: the sampler is not torch's own.

    Args:
        index_sampler: the loader's batch sampler, or its sampler if it gives single samples.
        generator: the loader's.
        base_seed: the base seed, if it is not drawn again.
        epochs: the difference between the sampler's next epoch and its present one, if it has a ``set_epoch``.
        ended: whether torch's sampler has made all draws of the present epoch.
    """
    outer = index_sampler if type(index_sampler) is BatchSampler else None
    sampler: Any = index_sampler if outer is None else outer.sampler
    kind, copies = type(sampler), _Copies()
    own = getattr(sampler, "generator", None)
    if any(one is not None and one.device.type != "cpu" for one in (own, generator)):
        return None
    if kind is RandomSampler and own is not None and not ended:
        if draws_as_it_goes(sampler):
            return None
        torch.randperm(len(sampler.data_source), generator=copies.of(own))  # torch draws this at the epoch's end
    if base_seed is None:
        base_seed = _number(copies.of(generator))
    if kind is DistributedSampler:
        sampler = copy.copy(sampler)
        sampler.epoch += epochs
    elif kind in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        sampler = copy.copy(sampler)
        from_seed = kind is RandomSampler and own is None  # it makes a generator for each epoch
        sampler.generator = torch.Generator().manual_seed(_number(copies.of(None))) if from_seed else copies.of(own)
    elif kind is not SequentialSampler:
        return None
    if outer is not None:
        outer = copy.copy(outer)
        outer.sampler = sampler
    return PredictedOrder(base_seed, sampler if outer is None else outer)
