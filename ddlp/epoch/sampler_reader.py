"""Reads an epoch's sampler as far as DataLoader would have by now, into the epoch's plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddlp.epoch.executor import EpochExecutor
from ddlp.sampling.checkpoint import SamplerStart
from ddlp.sampling.epoch_plan import EpochPlan, is_built_in
from ddlp.sampling.generator_states import States
from ddlp.sampling.torch_loader import OrderSource
from ddlp.schedule.ranges import RangeSet
from ddlp.sources.base import Epoch

__all__ = ["SamplerReader"]


class SamplerReader:
    """The epoch's plan, and how far its sampler was read.

    Args:
        epoch: what the epoch is.
        source: its sampler and generator.
        start: has begun to read the sampler.
        indices: the iterator that came of it.
        at_once: draw the whole order of one of torch's own samplers now.

    Attributes:
        plan: the epoch's batches, by position.
        order: the states that make the order again.
        delivered: the positions delivered before a resume.
        seed_drawn: whether the base seed was drawn after these states and before the order.
    """

    def __init__(
        self, epoch: Epoch, source: OrderSource, start: SamplerStart, indices: Iterator[Any], *, at_once: bool
    ) -> None:
        self.delivered = RangeSet()
        self.order: States | None = start.order
        self.seed_drawn = start.seed_drawn
        self._prefetch_batches = epoch.prefetch_factor * epoch.workers  # the number of batches that DataLoader prefetches
        self._requests = self._prefetch_batches  # how often DataLoader would have asked its sampler by now
        resume, portable = epoch.resume, epoch.portable
        if is_built_in(source._index_sampler):
            self.order = resume.order_of(source)
            self.plan = self._drawn(epoch, source, at_once)
        else:
            self.plan = EpochPlan(
                indices, portable.dataset, whole=False, batched=epoch.batched, skip=resume.drawn, views=portable.views
            )
        resume.prepend(self.plan)

    def _drawn(self, epoch: Epoch, source: OrderSource, at_once: bool) -> EpochPlan:
        """Return the plan of one of torch's own samplers, read as far as DataLoader has read it."""
        resume, portable = epoch.resume, epoch.portable

        def draw() -> EpochPlan:
            return EpochPlan(
                source._index_sampler,
                portable.dataset,
                whole=True,
                batched=epoch.batched,
                at_once=at_once,
                views=portable.views,
            )

        with resume.order_restored(source) as caught_up:
            plan = draw()
            self.delivered = RangeSet([(0, len(plan))]) if resume.finished else resume.delivered
            requests = len(self.delivered)
            self._requests += requests
            plan.read_as_far_as(requests)
            while not caught_up() and requests <= len(plan):
                requests += 1
                plan.read_as_far_as(requests)
            if caught_up():
                self._requests = max(self._requests, requests)
            else:  # others have drawn from it as well
                with resume.order_restored(source):
                    plan = draw()
                    plan.read_as_far_as(self._requests)
            plan.forget(self.delivered.first_missing())
        plan.read_as_far_as(self._requests)
        return plan

    def begin(self, executor: EpochExecutor) -> None:
        """Read the batches that DataLoader prefetches before the first is asked for."""
        if not self.plan.whole:
            self._read_ahead(executor, self._prefetch_batches)

    def before_batch(self, executor: EpochExecutor) -> None:
        """Read on, since training asks for the next batch."""
        self._requests += 1
        if self.plan.whole:
            self.plan.read_as_far_as(self._requests)
        else:
            self._read_ahead(executor, max(1, self._prefetch_batches))

    def after_batch(self, executor: EpochExecutor) -> None:
        """Read on, since a batch is delivered, and its place is free for another one."""
        if self._prefetch_batches and not self.plan.whole:
            self._read_ahead(executor, self._prefetch_batches)

    def _read_ahead(self, executor: EpochExecutor, batches: int) -> None:
        """Read on in a sampler that is read as it goes, until there are ``batches`` undelivered batches."""
        plan, ledger = self.plan, executor.ledger
        while not (plan.ended or ledger.closed) and len(plan) - len(ledger.delivered) < batches:
            plan.read()
        more = len(plan) - ledger.length
        if more or (plan.ended and not ledger.closed):
            executor.delivery.extend(more, plan.ended)
