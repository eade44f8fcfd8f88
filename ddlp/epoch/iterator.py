"""The iterator over one epoch of portable batches, which the training loop asks for the next batch.

It has the sampler read on, takes each batch from the executor, and turns it into the batch that the training loop gets.
`ddlp.epoch.begin` makes the epoch's parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, _utils, default_collate
from torch.utils.data._utils.collate import collate_int_fn, default_collate_fn_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddlp.epoch.executor import EpochExecutor
from ddlp.epoch.sampler_reader import SamplerReader
from ddlp.process.finalizers import when_dropped
from ddlp.process.user_warnings import advise_user, warn_user
from ddlp.sampling.checkpoint import save
from ddlp.sampling.generator_states import for_base_seed
from ddlp.sampling.torch_loader import as_torch_reads, index_sampler_of
from ddlp.schedule.ranges import RangeSet
from ddlp.sources.base import BatchState, PreparedBatch
from ddlp.sources.host.collate_errors import with_place
from ddlp.sources.workers.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.stats.live import Life
from ddlp.transfer.to_device import can_pin, move
from ddlp.translate.datasets import PortableSet

__all__ = ["EpochIterator", "EpochMemory"]

@dataclass(frozen=True)
class EpochMemory:
    """The part of its last epoch that a loader keeps, since the epoch's report and state outlive the iterator."""

    executor: EpochExecutor
    reader: SamplerReader
    # Held while no batch may be forgotten. Reentrant, since a signal's handler may ask for the state at any moment.
    keeping: threading.RLock = field(default_factory=threading.RLock)

    def state(self, by_count: bool) -> dict[str, Any] | None:
        """As `ddlp.sources.host.memories.UserCodeMemory.state`."""
        epoch, finished = self.executor.resources.epoch, self.executor.ledger.done and self.executor.delivery.handing is None
        if finished and (by_count or self.executor.counts.ended_s is not None):
            return None
        with self.keeping:
            delivered, handing = RangeSet(self.executor.delivered()), self.executor.delivery.handing
            if handing is not None:  # Ctrl-C came before the training loop had it
                delivered.discard(handing)
            return save(
                delivered,
                self.reader.order,
                seed=epoch.seed,
                base_seed=epoch.base_seed,
                epoch=epoch.number,
                seed_drawn=self.reader.seed_drawn,
                plan=None if self.reader.plan.whole else self.reader.plan,
                finished=finished,
                replaced=self.executor.counts.replaced.without(handing),
            )

    def between(self) -> dict[str, Any] | None:
        """As `ddlp.sources.host.memories.UserCodeMemory.between`."""
        return None

    def forget_delivered(self) -> None:
        """Drop delivered batches from the plan, if the plan would grow without end."""
        if self.reader.plan.grows:
            with self.keeping:
                self.reader.plan.forget(self.executor.ledger.delivered.first_missing())


class _Targets:
    """The targets of the current batch, by their place in it, as a data set. ``sources``: the batch's source indices."""

    def __init__(self, dataset: PortableSet) -> None:
        self._dataset = dataset
        self.sources: list[int] = []

    def __getitem__(self, k: int) -> Any:
        return self._dataset.target(self.sources[k])


class EpochIterator(_BaseDataLoaderIter):
    """Gives the batches of one epoch. When it is exhausted, closed or dropped, it ends the threads and the sources' part."""

    _pin_memory_thread = None
    kept_alive: Any = None  # objects that must live as long as this iterator
    on_end: Callable[[], None] | None = None  # called when training has asked for a batch after the last one

    def __init__(self, loader: DataLoader, reader: SamplerReader, executor: EpochExecutor, life: Life) -> None:
        self._resources = executor.resources
        epoch = self._resources.epoch
        seed = for_base_seed(epoch.base_seed)  # the sampler is being read already, and the base seed is drawn
        super().__init__(
            as_torch_reads(loader, _index_sampler=iter(()), generator=seed, pin_memory=loader.pin_memory and can_pin())
        )
        self._index_sampler = index_sampler_of(loader)
        self._base_seed = epoch.base_seed
        self._workers: list[Any] = []
        self._portable = epoch.portable
        self.directory = self._portable.dataset.directory
        self._keyed_targets: KeyedSamples | None = None  # the targets, where code of the user's makes them
        if self._portable.dataset.has_target_transform:
            self._keyed_targets = KeyedSamples(_Targets(self._portable.dataset), list, batched=True)
        self._device = self._resources.device
        self._reader, self.executor, self._delivery = reader, executor, executor.delivery
        self._hooks = executor.monitor.hooks
        self.memory = EpochMemory(executor, reader)
        self.live = partial(executor.live, life)  #: returns the epoch's numbers at this moment
        self._closer = when_dropped(self, executor.close)

    def __next__(self) -> Any:
        # DataLoader's method opens a scope for torch's profiler around each batch: a tenth of a small batch's whole cost.
        if torch.autograd._profiler_enabled():
            return super().__next__()
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        """Return the next batch: read the sampler on, take the batch, join targets, move it, run the batch_transform."""
        self._delivery.handing = None  # training asks for the next batch, so it does without this one
        self.memory.forget_delivered()
        self._reader.before_batch(self.executor)
        asked_at = time.monotonic()
        try:
            delivered = self._delivery.next_batch(self._timeout)
        finally:
            warnings, advice = self._delivery.take_messages()
            for text in advice:
                advise_user(f"ddlp: {text}")
            for text in warnings:
                warn_user(f"ddlp: {text}")
        got_at = time.monotonic()
        if delivered is None:
            self._hooks.exhausted(asked_at)
            self._shutdown_workers()
            if self.on_end is not None:
                self.on_end()
            raise StopIteration
        self._reader.after_batch(self.executor)
        position, side, prepared = delivered
        batch = self._assemble(position, prepared)
        if self._device is not None:
            batch = move(batch, self._device)
        self._hooks.assembled(position, side, prepared, batch)
        if self._resources.epoch.batch_transform is not None:
            batch = self._resources.epoch.batch_transform(batch)
        self._hooks.stepped(position, side, self._resources.plan.size(position), asked_at, got_at)
        self._delivery.handing = None
        return batch

    def _assemble(self, position: int, prepared: PreparedBatch) -> Any:
        """Return the batch in DataLoader's form: images, and the targets joined."""
        if self._resources.own_steps is not None:
            return self._pinned(self._resources.own_steps.whole(self._resources, position, prepared))
        images = prepared.images
        if prepared.event is not None:
            prepared.event.before_use(images)
        elif prepared.state is BatchState.BYTES:
            images = self._portable.epilogue(images, prepared.boxes, self._device)
        targets = self._targets(position, prepared)
        keys, epilogue = self._portable.dataset.keys, self._portable.epilogue
        several = self._resources.plan.views > 1 or epilogue.sizes
        batch: Any
        if self._auto_collation:
            collated = self._collated(targets, position, prepared)
            views = epilogue.views(images, self._resources.plan.views) if several else images
            batch = [views, collated] if keys is None else keys.join(views, collated)
            batch = tuple(batch) if self._portable.fast_collate else batch
        else:
            single = [view[0] for view in (epilogue.views(images, self._resources.plan.views) if several else [images])]
            if self._portable.image_type is not torch.Tensor:
                single = list(map(self._portable.image_type, single))
            views = single if several else single[0]
            sample: Any = (views, targets[0]) if keys is None else keys.join(views, targets[0])
            batch = self._collate_fn(sample)
        return self._pinned(batch)

    def _pinned(self, batch: Any) -> Any:
        if self._pin_memory and self._device is None:
            return _utils.pin_memory.pin_memory(batch, self._pin_memory_device)
        return batch

    def _collated(self, targets: list[Any], position: int, prepared: PreparedBatch) -> Any:
        """Join the targets. If torch's own code can't, the error names the sample."""
        try:
            return _collated(self._resources.epoch.collate, targets)
        except Exception as error:
            if self._collate_fn is not default_collate:
                raise
            sources = prepared.sources(self._resources.plan.sources(position)).tolist()
            raise with_place(error, targets, list(map(self._portable.dataset.where, sources)))  # noqa: B904

    def _targets(self, position: int, prepared: PreparedBatch) -> list[Any]:
        dataset, sources = self._portable.dataset, prepared.sources(self._resources.plan.sources(position))
        if self._keyed_targets is None:
            return dataset.targets(sources)
        self._keyed_targets.dataset.sources = sources.tolist()
        items, epoch = self._resources.plan.items(position), self._resources.epoch
        batch = KeyedBatch(range(len(items)), items, epoch.seed, epoch.number)
        targets: list[Any] = self._keyed_targets.fetch(batch)
        return targets

    def _shutdown_workers(self) -> None:
        """End the epoch, as frameworks ask of torch's own iterators."""
        self.executor.close()
        self._closer.detach()


def _collated(collate: Callable[[Any], Any], targets: list[Any]) -> Any:
    """Join targets as ``collate`` joins them. A batch of plain integers takes a fifth of torch's time.

    torch checks the type of each one, which takes 40 us for 256 integers, in the training thread.
    """
    usual = collate is default_collate and default_collate_fn_map.get(int) is collate_int_fn
    if usual and type(targets[0]) is int:
        try:
            numbers = np.array(targets)
        except ValueError:  # targets of several shapes
            numbers = np.empty(0)
        if numbers.dtype == np.int64 and numbers.ndim == 1:
            return torch.tensor(numbers)  # on torch's default device, with memory that may grow, like torch's own result
    return collate(tuple(targets))
