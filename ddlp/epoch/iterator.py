"""The iterator over one epoch of portable batches, which the training loop asks for the next batch.

It reads the sampler as DataLoader does, and makes the epoch's parts (plan, ledger, spec, sources, executor). It takes each
batch from the executor, and turns it into the batch that the training loop gets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, _utils, default_collate
from torch.utils.data._utils.collate import collate_int_fn, default_collate_fn_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

from csd_engine.prepare.cached_batch import SampleCache
from ddlp.epoch.executor import EpochExecutor
from ddlp.epoch.hooks import Beginning, EpochHooks
from ddlp.epoch.step_clock import cuda_clock
from ddlp.planning.controller import Controller
from ddlp.process.finalizers import when_dropped
from ddlp.process.user_warnings import advise_user, warn_user
from ddlp.sampling.checkpoint import Resume, SamplerStart, save
from ddlp.sampling.epoch_plan import EpochPlan, is_built_in
from ddlp.sampling.generator_states import States, for_base_seed
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.rates import Rates
from ddlp.schedule.slots import FETCH_SLOTS, FETCHERS, host_slots
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import BatchState, EpochSpec, HostSource, LeaseSource, PreparedBatch, StepRunner
from ddlp.sources.host import own_steps
from ddlp.sources.host.collate_errors import with_place
from ddlp.sources.host.dali import DaliHost, Graphs
from ddlp.sources.host.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.sources.host.native import NativeHost
from ddlp.stats.live import Life
from ddlp.stats.replaced import ReplacedSamples
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.memory_pool import SPARE_BLOCKS, MemoryPool
from ddlp.transfer.shared_pool import SharedPool
from ddlp.transfer.to_device import move, pins
from ddlp.translate.datasets import PortableSet
from ddlp.translate.portable import Portable

if TYPE_CHECKING:
    from ddlp.sources.usercode.host import UserCodeHost

__all__ = ["EpochArguments", "EpochIterator", "EpochMemory"]

@dataclass(frozen=True)
class EpochMemory:
    """The part of its last epoch that a loader keeps, since the epoch's report and state outlive the iterator."""

    executor: EpochExecutor
    order: States | None
    seed_drawn: bool
    base_seed: int
    whole: bool
    # Held while no batch may be forgotten. Reentrant, since a signal's handler may ask for the state at any moment.
    keeping: threading.RLock = field(default_factory=threading.RLock)

    def state(self) -> dict[str, Any] | None:
        """Return the epoch's state. None once it is over: all was delivered, and the iterator has told its end or is closed."""
        spec, finished = self.executor.spec, self.executor.ledger.done and self.executor.delivery.handing is None
        if finished and self.executor.counts.ended_s is not None:
            return None
        with self.keeping:
            delivered, handing = RangeSet(self.executor.delivered()), self.executor.delivery.handing
            if handing is not None:  # Ctrl-C came before the training loop had it
                delivered.discard(handing)
            return save(
                delivered,
                self.order,
                seed=spec.seed,
                base_seed=self.base_seed,
                epoch=spec.epoch,
                seed_drawn=self.seed_drawn,
                plan=None if self.whole else spec.plan,
                finished=finished,
                replaced=self.executor.counts.replaced.without(handing),
            )

    def forget_delivered(self) -> None:
        """Drop delivered batches from the plan, if the plan would grow without end."""
        if self.executor.spec.plan.grows:
            with self.keeping:
                self.executor.spec.plan.forget(self.executor.ledger.delivered.first_missing())


class _LoaderView:
    """The loader as torch's base iterator sees it: with the sampler of a resume, and without a second draw of the base seed."""

    def __init__(self, loader: DataLoader, sampler: SamplerStart, base_seed: int | None) -> None:
        self._loader = loader
        self._index_sampler = sampler
        self.generator = loader.generator if base_seed is None else for_base_seed(base_seed)
        self.pin_memory = pins(loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@dataclass(frozen=True)
class EpochArguments:
    """The loader's decisions for one epoch.

    Attributes:
        portable: the data set and the transform, in the form that both sides run.
        seed: the seed of the draws within samples; None: the base seed that torch draws.
        base_seed: the base seed, if it is drawn already.
        epoch: its number.
        resume: where the epoch goes on.
        strategy: makes the epoch's strategy.
        rank_after_rank: a source that several ranks share works for the lowest rank first.
        sources: the sources that take leases.
        may_join: further ones may join while the epoch runs, see `EpochSink.expect`.
        gpu_transfer: brings batches into an accelerator's memory.
        graphs: DALI's pipelines, if DALI prepares the host's batches.
        life: the loader's numbers.
        target: where batches are delivered; None: as CPU tensors.
        batch_transform: called with each finished batch.
        own_steps: where the unknown steps of the transform run, `DDLPLoader`'s argument.
        user_code: starts the host's part of user code that a pool prepares too, by the loader and its base seed; None: ddlp's
            own code makes the batches.
        most_replaced: the share of the samples that may be replaced, if their images are bad; None: a bad image raises.
        cache: what the host keeps of samples; None: nothing.
        hooks: watch the epoch.
        decisions: that hold as it begins, as `EpochHooks.decided` takes them.
        controller: decides which sources take part, for a strategy that wants that.
        on_closed: called when the epoch is over.
    """

    portable: Portable
    seed: int | None
    base_seed: int | None
    epoch: int
    resume: Resume
    strategy: Callable[[Ledger, Rates], Strategy]
    rank_after_rank: bool
    sources: tuple[LeaseSource, ...]
    may_join: bool
    gpu_transfer: GpuTransfer | None
    graphs: Graphs | None
    life: Life
    target: torch.device | None
    batch_transform: Callable[[Any], Any] | None
    own_steps: str
    user_code: Callable[[Any, int], UserCodeHost] | None
    most_replaced: float | None
    cache: SampleCache | None
    hooks: EpochHooks
    decisions: tuple[tuple[str, str], ...]
    controller: Controller | None
    on_closed: Callable[[], None]

    @property
    def leases(self) -> bool:
        """Whether any source may take leases."""
        return self.may_join or bool(self.sources)


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

    def __init__(self, loader: Any, given: EpochArguments) -> None:
        start = SamplerStart(loader, given.resume, seed_drawn=given.base_seed is None)
        # This begins to read the sampler, then draws the base seed, as DataLoader does.
        super().__init__(_LoaderView(loader, start, given.base_seed))  # type: ignore[arg-type]
        self._index_sampler = loader._index_sampler
        if given.base_seed is not None:
            self._base_seed = given.base_seed
        self._workers: list[Any] = []
        self._hooks = given.hooks
        self._portable = given.portable
        self.directory = given.portable.dataset.directory
        self._keyed_targets: KeyedSamples | None = None  # the targets, where code of the user's makes them
        if given.portable.dataset.has_target_transform:
            self._keyed_targets = KeyedSamples(_Targets(given.portable.dataset), list, batched=True)
        # "cuda" without a number would mean another GPU after torch.cuda.set_device.
        self._device = given.target if given.gpu_transfer is None else given.gpu_transfer.stream.device
        self._batch_transform = given.batch_transform
        prefetch_factor = 2 if loader.prefetch_factor is None else loader.prefetch_factor
        workers = max(1, loader.num_workers)
        self._prefetch_batches = prefetch_factor * loader.num_workers  # number of batches that DataLoader prefetches
        self._asked = self._prefetch_batches  # how often DataLoader would have asked its sampler by now
        self._whole = is_built_in(self._index_sampler)
        order, delivered = self._read_plan(loader, start, given)
        self._join_targets = _like_timm(self._collate_fn) if given.portable.fast_collate else self._collate_fn
        seed = int(self._base_seed) if given.seed is None else given.seed
        rest = given.portable.rest
        elsewhere = rest is not None and own_steps.in_processes(given.own_steps, loader.num_workers)
        pinned = given.gpu_transfer is not None and given.gpu_transfer.pinned
        pool = SharedPool(SPARE_BLOCKS) if elsewhere else MemoryPool(SPARE_BLOCKS, pinned)
        base = int(self._base_seed)  # processes must start before any thread of the epoch
        user_code = None if given.user_code is None else given.user_code(loader, base)
        self._own_steps: StepRunner | None = user_code
        if rest is not None:
            self._own_steps = own_steps.start(given.own_steps, loader, rest, given.portable.epilogue, base, pool)
        fetcher = _utils.fetch._MapDatasetFetcher(loader.dataset, self._auto_collation, self._collate_fn, False)
        self.spec = _spec(given, seed, self._plan, pool, self._own_steps, partial(_error_of, fetcher))
        length = len(self._plan) if self._whole or given.resume.finished else None
        slots = host_slots(workers, prefetch_factor, given.leases)
        ledger = Ledger(length, host_slots=slots, fetch_slots=FETCH_SLOTS, delivered=delivered.ranges())
        for source in given.sources:
            ledger.expect(source.name, time.monotonic())
        fetchers = FETCHERS if given.leases else 0
        strategy = given.strategy(ledger, given.life.rates)
        if given.controller is not None:
            given.controller.begin(ledger)
        host: HostSource
        if user_code is not None:
            host = user_code
        else:
            host = NativeHost(self.spec, workers) if given.graphs is None else DaliHost(self.spec, given.graphs)
        on_cpu = rest is None and given.gpu_transfer is None and (self._device is None or self._device.type == "cpu")
        self.executor = EpochExecutor(
            self.spec,
            ledger,
            strategy,
            given.life.rates,
            host,
            workers=workers,
            fetchers=fetchers,
            on_cpu=on_cpu,
            pin=self._pin_memory_device if self._pin_memory and self._device is None else None,
            full_batch=loader.batch_size or (self._plan.largest if self._whole else 0),
            replaced=ReplacedSamples(given.most_replaced or 0.0, self._samples(), given.resume.replaced),
            hooks=given.hooks,
            controller=given.controller,
            clock=cuda_clock(),
            on_closed=partial(_closed, given.gpu_transfer, given.on_closed),
        )
        given.life.began(self.executor.counts)
        self._delivery = self.executor.delivery
        self.memory = EpochMemory(self.executor, order, start.seed_drawn, base, self._whole)
        self._closer = when_dropped(self, self.executor.close)
        if not self._whole:
            self._read_ahead(self._prefetch_batches)
        given.hooks.began(
            Beginning(
                self.spec, self._portable, self._join_targets, strategy, ledger.length, self.executor.monitor.full_batch,
                workers, fetchers, tuple(ledger.devices),
                "cpu" if given.target is None else str(given.target), tuple(ledger.delivered.ranges()),
            )
        )  # fmt: skip
        for decision in given.decisions:
            given.hooks.decided(*decision)

    def _read_plan(self, loader: Any, start: SamplerStart, given: EpochArguments) -> tuple[States | None, RangeSet]:
        """Read the sampler. Returns the states that make its order again, and the positions delivered before a resume."""
        resume, dataset, views = given.resume, given.portable.dataset, given.portable.views
        delivered = RangeSet()
        order: States | None
        if self._whole:
            order = resume.order_of(loader)
            at_once = given.leases or given.hooks.wants_whole

            def drawn() -> EpochPlan:
                return EpochPlan(
                    self._index_sampler, dataset, whole=True, batched=self._auto_collation, at_once=at_once, views=views
                )

            with resume.order_restored(loader) as caught_up:
                plan = drawn()
                delivered = RangeSet([(0, len(plan))]) if resume.finished else resume.delivered
                asked = len(delivered)
                self._asked += asked
                plan.read_as_far_as(asked)
                while not caught_up() and asked <= len(plan):
                    asked += 1
                    plan.read_as_far_as(asked)
                if caught_up():
                    self._asked = max(self._asked, asked)
                else:  # others have drawn from it as well
                    with resume.order_restored(loader):
                        plan = drawn()
                        plan.read_as_far_as(self._asked)
                plan.forget(delivered.first_missing())
            plan.read_as_far_as(self._asked)
            self._plan = plan
        else:
            order = start.order
            self._plan = EpochPlan(
                self._sampler_iter, dataset, whole=False, batched=self._auto_collation, skip=resume.drawn, views=views
            )
        resume.prepend(self._plan)
        return order, delivered

    def _samples(self) -> int:
        """Return the number of samples in the epoch; for a sampler that is read as it goes, that of the data set."""
        return self._plan.samples if self._whole else len(self._portable.dataset)

    def _read_ahead(self, batches: int) -> None:
        """Read on in a sampler that is read as it goes, until there are ``batches`` undelivered batches."""
        plan, ledger = self._plan, self.executor.ledger
        while not (plan.ended or ledger.closed) and len(plan) - len(ledger.delivered) < batches:
            plan.read()
        more = len(plan) - ledger.length
        if more or (plan.ended and not ledger.closed):
            self._delivery.extend(more, plan.ended)

    def __next__(self) -> Any:
        # DataLoader's method opens a scope for torch's profiler around each batch: a tenth of a small batch's whole cost.
        if torch.autograd._profiler_enabled():
            return super().__next__()
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        """Return the next batch: read the sampler on, take the batch, join targets, move it, run the batch_transform."""
        self._asked += 1
        self._delivery.handing = None  # training asks for the next batch, so it does without this one
        self.memory.forget_delivered()
        if self._whole:
            self._plan.read_as_far_as(self._asked)
        else:
            self._read_ahead(max(1, self._prefetch_batches))
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
        if self._prefetch_batches and not self._whole:
            self._read_ahead(self._prefetch_batches)
        position, side, prepared = delivered
        batch = self._assemble(position, prepared)
        if self._device is not None:
            batch = move(batch, self._device)
        self._hooks.assembled(position, side, prepared, batch)
        if self._batch_transform is not None:
            batch = self._batch_transform(batch)
        self._hooks.stepped(position, side, self._plan.size(position), asked_at, got_at)
        self._delivery.handing = None
        return batch

    def _assemble(self, position: int, prepared: PreparedBatch) -> Any:
        """Return the batch in DataLoader's form: images, and the targets joined."""
        if self._own_steps is not None:
            return self._pinned(self._own_steps.whole(self.spec, position, prepared))
        images = prepared.images
        if prepared.event is not None:
            prepared.event.before_use(images)
        elif prepared.state is BatchState.BYTES:
            images = self._portable.epilogue(images, prepared.boxes, self._device)
        targets = self._targets(position, prepared)
        keys, epilogue = self._portable.dataset.keys, self._portable.epilogue
        several = self._plan.views > 1 or epilogue.sizes
        batch: Any
        if self._auto_collation:
            collated = self._collated(targets, position, prepared)
            views = epilogue.views(images, self._plan.views) if several else images
            batch = [views, collated] if keys is None else keys.join(views, collated)
            batch = tuple(batch) if self._portable.fast_collate else batch
        else:
            single = [view[0] for view in (epilogue.views(images, self._plan.views) if several else [images])]
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
            return _collated(self._join_targets, targets)
        except Exception as error:
            if self._collate_fn is not default_collate:
                raise
            sources = prepared.sources(self._plan.sources(position)).tolist()
            raise with_place(error, targets, list(map(self._portable.dataset.where, sources)))  # noqa: B904

    def _targets(self, position: int, prepared: PreparedBatch) -> list[Any]:
        dataset, sources = self._portable.dataset, prepared.sources(self._plan.sources(position))
        if self._keyed_targets is None:
            return dataset.targets(sources)
        self._keyed_targets.dataset.sources = sources.tolist()
        items = self._plan.items(position)
        batch = KeyedBatch(range(len(items)), items, self.spec.seed, self.spec.epoch)
        targets: list[Any] = self._keyed_targets.__getitems__(batch)
        return targets

    def _shutdown_workers(self) -> None:
        """End the epoch, as frameworks ask of torch's own iterators."""
        self.executor.close()
        self._closer.detach()


def _spec(
    given: EpochArguments, seed: int, plan: EpochPlan, pool: MemoryPool, steps: StepRunner | None,
    error_of: Callable[[Any], Exception],
) -> EpochSpec:  # fmt: skip
    portable, gpu_transfer = given.portable, given.gpu_transfer
    return EpochSpec(
        portable.dataset, portable.dataset.reader(), portable.pipeline, portable.epilogue, portable.shape, seed, given.epoch,
        plan, pool, gpu_transfer, given.rank_after_rank, steps, given.most_replaced is not None, given.cache, error_of,
    )  # fmt: skip


def _error_of(fetcher: Any, request: Any) -> Exception:
    """Return the error that torch's fetcher gets for a request: the data set's own code raises it."""
    try:
        fetcher.fetch(request)
    except Exception as error:
        return error
    return IndexError(
        f"the sampler gave {request!r}. The data set's own code takes it, but ddlp makes samples by integers from 0: give it "
        "such ones, or have torch's own DataLoader prepare them"
    )


def _closed(gpu_transfer: GpuTransfer | None, on_closed: Callable[[], None]) -> None:
    if gpu_transfer is not None:
        gpu_transfer.settle()
    on_closed()


def _like_timm(fast_collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what joins targets as timm's fast_collate does: it gets them with images that have no pixels."""
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    return lambda targets: fast_collate([(nothing, target) for target in targets])[1]


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
