"""An epoch that goes on with another number of ranks: the states of all ranks as one, and each new rank's part of what is left.

torch's DistributedSampler deals the epoch's order out like cards: rank r of N gets the indices r, r + N, r + 2 N ... of it.
What no rank has delivered is dealt out again in the same way, to the ranks that there are now. That can happen several times
in one epoch. So a merged state has a list of deals, each with the batches that its ranks had delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from ddlp.schedule.ranges import RangeSet

__all__ = ["Deal", "Deals", "RestSampler", "rest_of"]


@dataclass(frozen=True)
class Deal:
    """How an order was dealt out to ranks, and what they delivered of it.

    Attributes:
        batch_size: samples of a batch; 1 for a loader without batches.
        drop_last: whether a rank leaves out a last batch that is smaller.
        delivered: for each rank the positions of its delivered batches.
    """

    batch_size: int
    drop_last: bool
    delivered: tuple[RangeSet, ...]


@dataclass(frozen=True)
class Deals:
    """The deals of an epoch so far, the first one first; ``sampler_epoch``: DistributedSampler's number of the epoch."""

    sampler_epoch: int
    samples: int  # of the data set
    deals: tuple[Deal, ...]

    def to_data(self) -> dict[str, Any]:
        """Return plain data, as in a state."""
        deals = [
            {
                "batch_size": deal.batch_size,
                "drop_last": deal.drop_last,
                "delivered": [[list(pair) for pair in ranges.ranges()] for ranges in deal.delivered],
            }
            for deal in self.deals
        ]
        return {"sampler_epoch": self.sampler_epoch, "samples": self.samples, "deals": deals}

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Deals:
        """The same from `to_data`'s result, which was checked."""
        deals = tuple(
            Deal(deal["batch_size"], deal["drop_last"], tuple(RangeSet(ranges) for ranges in deal["delivered"]))
            for deal in data["deals"]
        )
        return cls(data["sampler_epoch"], data["samples"], deals)


class RestSampler(Sampler):
    """One rank's part of what is left of an epoch: these indices, int64, in this order."""

    def __init__(self, indices: np.ndarray, num_replicas: int, rank: int, shuffle: bool) -> None:
        self.indices, self.num_replicas, self.rank, self.shuffle = indices, num_replicas, rank, shuffle

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices.tolist())


def rest_of(deals: Deals, index_sampler: Any) -> Any:
    """Return a loader's index sampler for what is left, in the place of its own.

    Args:
        deals: of the epoch.
        index_sampler: the loader's: a DistributedSampler, or torch's BatchSampler of one.

    Raises:
        ValueError: it is another one, or its data set has another length.
    """
    batches = index_sampler if type(index_sampler) is BatchSampler else None
    sampler: Any = index_sampler if batches is None else batches.sampler
    if type(sampler) is not DistributedSampler:
        raise ValueError(
            f"a merged state goes on with torch's DistributedSampler, and this loader has {type(sampler).__name__}. Give it "
            "sampler=DistributedSampler(dataset, shuffle=...); for one process alone DistributedSampler(dataset, 1, 0)"
        )
    samples = len(sampler.dataset)  # type: ignore[arg-type]
    if samples != deals.samples:
        raise ValueError(f"the state was saved with a data set of {deals.samples} samples, this one has {samples}")
    left = _order(sampler, deals.sampler_epoch, deals.samples)
    for deal in deals.deals:
        left = _left(_dealt(left, len(deal.delivered), sampler.drop_last), deal, deals.samples)
    mine = _dealt(left, sampler.num_replicas, sampler.drop_last)[sampler.rank :: sampler.num_replicas]
    rest = RestSampler(mine, sampler.num_replicas, sampler.rank, sampler.shuffle)
    return rest if batches is None else BatchSampler(rest, batches.batch_size, batches.drop_last)


def _order(sampler: DistributedSampler, epoch: int, samples: int) -> np.ndarray:
    """The epoch's order before it is dealt out, int64: what one rank alone would get."""
    alone: Any = DistributedSampler(sampler.dataset, 1, 0, shuffle=sampler.shuffle, seed=sampler.seed)
    alone.set_epoch(epoch)
    return np.fromiter(alone, np.int64, samples)


def _dealt(order: np.ndarray, ranks: int, drop_last: bool) -> np.ndarray:
    """Make the order's length a multiple of the ranks, as DistributedSampler does: repeat its beginning, or cut off its end."""
    each = len(order) // ranks if drop_last else -(-len(order) // ranks)
    return np.resize(order, each * ranks) if len(order) else order


def _left(dealt: np.ndarray, deal: Deal, samples: int) -> np.ndarray:
    """The indices of this order that no rank has delivered, each once."""
    ranks, size = len(deal.delivered), deal.batch_size
    done = np.zeros(len(dealt), dtype=bool)
    for rank, batches in enumerate(deal.delivered):
        mine = done[rank::ranks]  # a view
        end = len(mine) - len(mine) % size if deal.drop_last else len(mine)
        for first, last in batches.ranges():
            mine[first * size : min(last * size, end)] = True
    seen = np.zeros(samples, dtype=bool)
    seen[dealt[done]] = True
    left = dealt[~done]
    left = left[~seen[left]]
    _, first_times = np.unique(left, return_index=True)
    return left[np.sort(first_times)]
