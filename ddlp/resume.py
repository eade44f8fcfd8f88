"""The state of a loader in mid-epoch: which batches were delivered, and what makes their order again.

The batches of torch's own samplers are drawn again from the generator's state. Any other sampler is run again as well,
from the states that torch's, numpy's and random's generators had, as far as it had been read.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ddlp.generators import States, capture, restored
from ddlp.plan import EpochPlan, is_built_in
from ddlp.ranges import RangeSet

FORMAT = 1


@dataclass(frozen=True)
class OrderSource:
    """What an order is drawn from, as a loader has it, without the loader: that must be free to be dropped."""

    _index_sampler: Any
    generator: torch.Generator | None


def sampler_of(loader: DataLoader | OrderSource) -> Any:
    """The sampler of single indices, or the batch sampler that has none."""
    return getattr(loader._index_sampler, "sampler", loader._index_sampler)


def _generators(loader: DataLoader | OrderSource) -> dict[str, torch.Generator]:
    """The torch generators that the loader's order may be drawn from: only that of a sampler of torch's own."""
    own = getattr(sampler_of(loader), "generator", None)
    own = own if isinstance(own, torch.Generator) else torch.default_generator
    if is_built_in(loader._index_sampler):
        return {"sampler": own}
    return {"sampler": own, "loader": loader.generator or torch.default_generator, "torch": torch.default_generator}


def _sampler_epoch(loader: DataLoader | OrderSource) -> int | None:
    sampler = sampler_of(loader)
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and callable(getattr(sampler, "set_epoch", None)) else None


@dataclass(frozen=True)
class Resume:
    """Where an epoch goes on; the default is its beginning.

    ``order`` is the state of the generators, and the epoch of the sampler, from before the order was drawn;
    ``seed_drawn`` tells whether DataLoader's base seed was drawn in between. Of a sampler that is read as it goes,
    ``drawn`` batches had been read; ``pending`` are those of them that were not delivered, each as (indices,
    occurrences), and ``seen`` how often each source index was drawn.
    """

    delivered: RangeSet = field(default_factory=RangeSet)
    order: States | None = None
    seed_drawn: bool = True
    drawn: int = 0
    pending: tuple[tuple[list[int], list[int]], ...] = ()
    seen: dict[int, int] = field(default_factory=dict)

    def order_state(self, loader: DataLoader | OrderSource) -> States:
        """What `state_dict` must keep to make this epoch's order again."""
        states = capture(_generators(loader), python=not is_built_in(loader._index_sampler))
        states["sampler_epoch"] = _sampler_epoch(loader)
        return states

    @contextlib.contextmanager
    def order_restored(self, loader: DataLoader | OrderSource) -> Iterator[None]:
        """While the order is drawn, the generators stand where they stood then; afterwards as before."""
        if self.order is None:
            yield
            return
        if self.order["sampler_epoch"] is not None and _sampler_epoch(loader) is not None:
            sampler_of(loader).set_epoch(self.order["sampler_epoch"])
        with restored(self.order, _generators(loader)):
            yield

    def prepend(self, plan: EpochPlan) -> None:
        """Put the undelivered batches of a sampler that is read as it goes first."""
        plan.go_on_after(self.seen)
        for indices, occurrences in self.pending:
            plan.append(np.asarray(indices, dtype=np.int64), np.asarray(occurrences, dtype=np.int64))


class SamplerStart:
    """The loader's sampler as torch's iterators begin to read it: iter() of it before they draw their base seed.

    A sampler of the user's is run again here on a resume. torch's own draw nothing before the first batch.
    """

    def __init__(self, loader: DataLoader | OrderSource, resume: Resume, seed_drawn: bool) -> None:
        self._loader = loader
        self._resume = resume
        self.seed_drawn = seed_drawn if resume.order is None else resume.seed_drawn
        self.order: States | None = None

    def __len__(self) -> int:
        return len(self._loader._index_sampler)

    def __iter__(self) -> Iterator[Any]:
        loader, resume = self._loader, self._resume
        sampler = loader._index_sampler
        if is_built_in(sampler):
            return iter(sampler)
        if resume.order is None:
            self.order = resume.order_state(loader)
            return iter(sampler)
        self.order = resume.order
        with resume.order_restored(loader):
            iterator = iter(sampler)
            if self.seed_drawn:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            head = list(itertools.islice(iterator, resume.drawn))
        return itertools.chain(head, iterator)


def save(
    loader: DataLoader | OrderSource,
    delivered: RangeSet,
    order: States | None,
    *,
    seed: int | None,
    epoch: int,
    seed_drawn: bool = True,
    plan: EpochPlan | None = None,
    drawn: int = 0,
) -> dict[str, Any]:
    """The state of an epoch under way as plain data, which JSON takes as well.

    ``plan`` is that of portable batches whose sampler is read as it goes, ``drawn`` what user code has read of one.
    """
    pending, seen = [], {}
    if plan is not None:
        left = [k for k in range(len(plan)) if k not in delivered]
        pending = [[plan.indices(k), plan.occurrences(k).tolist()] for k in left]
        delivered, drawn, seen = RangeSet(), plan.drawn, plan.seen
    return {
        "format": FORMAT,
        "epoch": epoch,
        "seed": seed,
        "delivered": [list(pair) for pair in delivered.ranges()],
        "order": order,
        "seed_drawn": seed_drawn,
        "drawn": drawn,
        "pending": pending,
        "seen": {str(k): v for k, v in seen.items()},
    }


def load(state: dict[str, Any]) -> tuple[Resume, int, int | None]:
    """The resume, the epoch and the seed of a saved state.

    Raises ValueError where it is none, or of another format.
    """
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        got = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"not a state of DDLPLoader: format {got!r}, expected {FORMAT}; pass what state_dict() gave")
    resume = Resume(
        RangeSet((int(a), int(b)) for a, b in state["delivered"]),
        state["order"],
        state["seed_drawn"],
        state["drawn"],
        tuple((list(indices), list(occurrences)) for indices, occurrences in state["pending"]),
        {int(k): int(v) for k, v in state["seen"].items()},
    )
    return resume, state["epoch"], state["seed"]
