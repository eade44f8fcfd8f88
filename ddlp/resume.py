"""The state of a loader in mid-epoch: which batches were delivered, and what makes their order again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ddlp.plan import EpochPlan, is_built_in
from ddlp.ranges import RangeSet

FORMAT = 1


def _generator(loader: DataLoader) -> torch.Generator:
    """The generator that the loader's sampler draws from."""
    sampler = getattr(loader._index_sampler, "sampler", loader._index_sampler)
    own = getattr(sampler, "generator", None)
    return own if isinstance(own, torch.Generator) else torch.default_generator


def _sampler_epoch(loader: DataLoader) -> int | None:
    sampler = getattr(loader._index_sampler, "sampler", loader._index_sampler)
    return getattr(sampler, "epoch", None) if is_built_in(loader._index_sampler) else None


@dataclass(frozen=True)
class Resume:
    """Where an epoch goes on; the default is its beginning.

    ``order`` is the state of the sampler's generator from before the order was drawn (uint8 tensor). ``skip`` counts batches
    that a sampler which can't be replayed has given already; ``pending`` are those of them that were not delivered, each as
    (indices, occurrences), and ``seen`` how often each source index was drawn.
    """

    delivered: RangeSet = field(default_factory=RangeSet)
    order: torch.Tensor | None = None
    sampler_epoch: int | None = None
    skip: int = 0
    pending: tuple[tuple[list[int], list[int]], ...] = ()
    seen: dict[int, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def order_restored(self, loader: DataLoader) -> Iterator[None]:
        """While the order is drawn, the generator stands where it stood then; afterwards as before."""
        if self.order is None or not is_built_in(loader._index_sampler):
            yield
            return
        generator = _generator(loader)
        saved = generator.get_state()
        if self.sampler_epoch is not None:
            getattr(loader._index_sampler, "sampler", loader._index_sampler).set_epoch(self.sampler_epoch)
        generator.set_state(self.order)
        try:
            yield
        finally:
            generator.set_state(saved)

    def order_state(self, loader: DataLoader) -> torch.Tensor | None:
        """What `state_dict` must keep to make this epoch's order again."""
        return _generator(loader).get_state() if is_built_in(loader._index_sampler) else None

    def prepend(self, plan: EpochPlan) -> None:
        """Put the undelivered batches of a sampler that can't be replayed first."""
        plan.go_on_after(self.seen)
        for indices, occurrences in self.pending:
            plan.append(np.asarray(indices, dtype=np.int64), np.asarray(occurrences, dtype=np.int64))


def save(
    loader: DataLoader,
    delivered: RangeSet,
    order: torch.Tensor | None,
    *,
    seed: int | None,
    epoch: int,
    plan: EpochPlan | None = None,
    skip: int = 0,
) -> dict[str, Any]:
    """The state of an epoch under way, plain data and a tensor.

    ``plan`` is that of portable batches whose sampler can't be replayed, ``skip`` what user code has drawn of one.
    """
    pending, seen = [], {}
    if plan is not None:
        left = [k for k in range(len(plan)) if k not in delivered]
        pending = [(plan.indices(k), plan.occurrences(k).tolist()) for k in left]
        delivered, skip, seen = RangeSet(), plan.drawn, plan.seen
    return {
        "format": FORMAT,
        "epoch": epoch,
        "seed": seed,
        "delivered": delivered.ranges(),
        "order": order,
        "sampler_epoch": _sampler_epoch(loader),
        "skip": skip,
        "pending": pending,
        "seen": seen,
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
        state["sampler_epoch"],
        state["skip"],
        tuple((list(indices), list(occurrences)) for indices, occurrences in state["pending"]),
        {int(k): int(v) for k, v in state["seen"].items()},
    )
    return resume, state["epoch"], state["seed"]
