"""The iterator over one epoch of portable batches: from the epoch's plan to what the training loop gets."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, _utils, default_collate
from torch.utils.data._utils.collate import collate_int_fn, default_collate_fn_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

from csd_engine.keyed import Keyed
from ddlp.epoch.executor import EpochExecutor
from ddlp.epoch.gpu_prefetch import PendingTransfer, pending_transfer
from ddlp.epoch.prepared import Delivered
from ddlp.process.finalizers import when_dropped
from ddlp.process.user_warnings import warn_user
from ddlp.sampling.checkpoint import Resume, SamplerStart, save
from ddlp.sampling.epoch_plan import EpochPlan, is_built_in
from ddlp.sampling.generator_states import States, for_base_seed
from ddlp.sampling.keyed_generators import keyed_globals
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import Strategy
from ddlp.sources.host.dali import DaliHost, Graphs
from ddlp.sources.host.native import EpochSpec, PreparedBatch
from ddlp.stats.live import Life
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.transfer.to_device import MoveAndTransform
from ddlp.translate.portable import Portable

if TYPE_CHECKING:
    from ddlp.loader import DDLPLoader

SPARE_BLOCKS = 2  # of memory for batches, of each size: what the training drops a worker soon takes
FETCH_SLOTS = 3  # batches of devices in this process's memory


def _host_slots(workers: int, prefetch_factor: int, devices: bool) -> int:
    """Batches that the host may hold. As many as DataLoader's workers, and one in their hands; a device's come out of these.

    But each worker has one in work, and one is ready, in any case.
    """
    slots = max(2, workers * prefetch_factor + 1)
    return min(slots, max(workers + 2, slots - FETCH_SLOTS)) if devices else slots


@dataclass(frozen=True)
class EpochMemory:
    """What a loader keeps of its last epoch: its report and its state outlive the iterator."""

    run: EpochExecutor
    order: States | None
    seed_drawn: bool
    whole: bool
    # While no batch may be forgotten. A signal's handler may ask for the state in the midst of it.
    keeping: threading.RLock = field(default_factory=threading.RLock)

    def state(self) -> dict[str, Any] | None:
        """The epoch's state; None once it is over: all was delivered, and the iterator has said so or is closed."""
        spec, finished = self.run.spec, self.run.ledger.done and self.run.handing is None
        if finished and self.run.counts.ended_s is not None:
            return None
        with self.keeping:
            delivered, handing = RangeSet(self.run.delivered()), self.run.handing
            if handing is not None:  # Ctrl-C came before the training loop had it
                delivered.discard(handing)
            return save(
                delivered,
                self.order,
                seed=spec.seed,
                epoch=spec.epoch,
                seed_drawn=self.seed_drawn,
                plan=None if self.whole else spec.plan,
                finished=finished,
            )

    def forget_delivered(self) -> None:
        """Drop from memory what was delivered and used, where it would pile up."""
        if self.run.spec.plan.grows:
            with self.keeping:
                self.run.spec.plan.forget(self.run.ledger.delivered.first_missing())


class _LoaderView:
    """The loader as torch's base iterator sees it: its sampler on a resume, and no base seed drawn where there is one."""

    def __init__(self, loader: DataLoader, sampler: SamplerStart, base_seed: int | None) -> None:
        self._loader = loader
        self._index_sampler = sampler
        self.generator = loader.generator if base_seed is None else for_base_seed(base_seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class EpochIterator(_BaseDataLoaderIter):
    """Gives the batches of one epoch. Ends its threads and the device's job when it is exhausted, closed or dropped."""

    _pin_memory_thread = None
    run_kind: Callable[..., EpochExecutor] = EpochExecutor
    keep: Any = None  # what must live as long as this iterator
    on_end: Callable[[], None] | None = None  # called when all batches were delivered, and asked for
    wants_whole = False  # somebody looks at all batches of the plan when they were delivered

    def __init__(
        self,
        loader: DDLPLoader,
        portable: Portable,
        *,
        seed: int | None,
        base_seed: int | None,
        epoch: int,
        resume: Resume,
        make_strategy: Callable[[Ledger, Rates], Strategy],
        devices: tuple[str, ...],
        gpu_transfer: GpuTransfer | None,
        graphs: Graphs | None,
        life: Life,
        on_closed: Callable[[], None],
    ) -> None:
        start = SamplerStart(loader, resume, seed_drawn=base_seed is None)
        # Begins to read the sampler, then draws the base seed, as DataLoader does.
        super().__init__(_LoaderView(loader, start, base_seed))  # type: ignore[arg-type]
        self._index_sampler = loader._index_sampler
        if base_seed is not None:
            self._base_seed = base_seed
        self._workers: list[Any] = []
        self._portable = portable
        self._transforms_targets = portable.dataset.has_target_transform
        self._device = loader._target
        if gpu_transfer is not None:  # "cuda" alone would be another GPU after torch.cuda.set_device
            self._device = gpu_transfer.stream.device
        self._hand_over = MoveAndTransform(self._device, loader.batch_transform)
        prefetch_factor = 2 if loader.prefetch_factor is None else loader.prefetch_factor
        self._ahead = prefetch_factor * loader.num_workers
        seed = int(self._base_seed) if seed is None else seed
        self._asked = self._ahead  # how often DataLoader would have asked the sampler by now
        order: States | None
        delivered = RangeSet()
        self._whole = whole = is_built_in(self._index_sampler)
        if whole:
            order = resume.order_of(loader)
            with resume.order_restored(loader):
                self._plan = EpochPlan(
                    self._index_sampler, portable.dataset, whole=True, batched=self._auto_collation,
                    at_once=bool(devices) or self.wants_whole,
                )  # fmt: skip
                delivered = RangeSet([(0, len(self._plan))]) if resume.finished else resume.delivered
                self._asked += len(delivered)
                self._plan.read_as_far_as(self._asked)
                self._plan.forget(delivered.first_missing())
        else:
            order = start.order
            self._plan = EpochPlan(
                self._sampler_iter, portable.dataset, whole=False, batched=self._auto_collation, skip=resume.drawn
            )
        resume.prepend(self._plan)
        workers = max(1, loader.num_workers)
        ledger = Ledger(
            len(self._plan) if whole or resume.finished else None,
            host_slots=_host_slots(workers, prefetch_factor, bool(devices)),
            fetch_slots=FETCH_SLOTS,
            delivered=delivered.ranges(),
        )
        for device in devices:
            ledger.expect(device, time.monotonic())
        pool = MemoryPool(SPARE_BLOCKS, pinned=gpu_transfer is not None and gpu_transfer.pinned)
        self.spec = EpochSpec(
            portable.dataset.reader(), portable.pipeline, portable.epilogue, portable.shape, seed, epoch, self._plan, pool,
            gpu_transfer,
        )  # fmt: skip
        self.spec.get_ready()
        on_host = gpu_transfer is None and (self._device is None or self._device.type == "cpu")
        pin = self._pin_memory_device if self._pin_memory and self._device is None else None
        dali = None if graphs is None else DaliHost(self.spec, graphs)

        def closed() -> None:
            if dali is not None:
                dali.close()
            if gpu_transfer is not None:
                gpu_transfer.settle()
            on_closed()

        strategy = make_strategy(ledger, life.rates)
        strategy.sample_bytes = math.prod(portable.shape)
        self.run = self.run_kind(
            self.spec,
            ledger,
            strategy,
            life.rates,
            workers=workers,
            finish=_finish_in_worker(self.spec, on_host, pin),
            on_cpu=on_host,
            full_batch=loader.batch_size or (self._plan.largest if whole else 0),
            on_closed=closed,
            dali=dali,
        )
        life.began(self.run.counts)
        self.memory = EpochMemory(self.run, order, start.seed_drawn, whole)
        self._closer = when_dropped(self, self.run.close)
        if not whole:
            self._read_ahead(self._ahead)

    @property
    def largest(self) -> int:
        """Samples of the largest batch so far."""
        return self._plan.largest

    def _read_ahead(self, batches: int) -> None:
        """Keep so many undelivered batches of a sampler that is read as it goes."""
        run, plan, ledger = self.run, self._plan, self.run.ledger
        while not (plan.ended or ledger.closed) and len(plan) - len(ledger.delivered) < batches:
            plan.read()
        more = len(plan) - ledger.length
        if more:
            run.rates.full_batch = run.rates.full_batch or plan.largest  # before the first of them is made
        if more or (plan.ended and not ledger.closed):
            run.extend(more, plan.ended)

    def __next__(self) -> Any:
        # DataLoader's opens a scope for torch's profiler around each batch, a tenth of what a small one costs in all.
        if torch.autograd._profiler_enabled():
            return super().__next__()
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        self._asked += 1
        self.run.handing = None  # who asks for the next one does without it
        self.memory.forget_delivered()
        if self._whole:
            self._plan.read_as_far_as(self._asked)
        else:
            self._read_ahead(max(1, self._ahead))
        try:
            delivered = self.run.next_batch(self._timeout)
        finally:
            for text in self.run.take_warnings():
                warn_user(f"ddlp: {text}")
        if delivered is None:
            self._shutdown_workers()
            if self.on_end is not None:
                self.on_end()
            raise StopIteration
        if self._ahead and not self._whole:
            self._read_ahead(self._ahead)
        batch = self._finish(delivered)
        self.run.handing = None
        return batch

    def _finish(self, delivered: Delivered) -> Any:
        """Targets joined, moved to the device, the user's batch_transform run: in the training thread."""
        pixels, dataset = delivered.pixels, self._portable.dataset
        images = pixels.images
        if self._transforms_targets:
            targets = [self._transformed_target(item) for item in self._plan.items(delivered.position)]
        else:
            targets = dataset.targets(self._plan.sources(delivered.position))
        if pixels.event is not None:
            pixels.event.before_use(images)
        elif not pixels.finished:
            images = self._portable.epilogue(images, pixels.boxes, self._device)
        if self._auto_collation:
            batch: Any = [images, _collated(self._collate_fn, targets)]
        else:
            batch = self._collate_fn((images[0], targets[0]))  # type: ignore[arg-type]
        if self._pin_memory and self._device is None:
            batch = _utils.pin_memory.pin_memory(batch, self._pin_memory_device)
        return self._hand_over(batch)

    def _transformed_target(self, item: tuple[int, int]) -> Any:
        with keyed_globals(Keyed(self.spec.seed, self.spec.epoch, *item).u64()):
            return self._portable.dataset.target(item[0])

    def _shutdown_workers(self) -> None:
        """End the epoch, as frameworks ask of torch's own iterators."""
        self.run.close()
        self._closer.detach()


def _collated(collate: Callable[[Any], Any], targets: list[Any]) -> Any:
    """Targets joined as ``collate`` joins them; a batch of plain integers in a fifth of torch's time.

    torch looks at each through its own checks of types: 40 us of 256 integers, in the training thread.
    """
    usual = collate is default_collate and default_collate_fn_map.get(int) is collate_int_fn
    if usual and type(targets[0]) is int:
        try:
            numbers = np.array(targets)
        except ValueError:  # of several shapes
            numbers = np.empty(0)
        if numbers.dtype == np.int64 and numbers.ndim == 1:
            return torch.as_tensor(numbers)  # where torch's own would be: a default device
    return collate(tuple(targets))


def _finish_in_worker(spec: EpochSpec, on_host: bool, pin: str | None) -> Callable[[PreparedBatch], PreparedBatch | PendingTransfer]:
    """What a batch's worker does to its pixels. ``pin``: copied to page-locked memory of torch's, for this kind of device.

    Torch's, since it knows of the copies that the training starts from there: that memory is not used again before they are
    done. Of the pool's, only copies of our own are started.
    """
    epilogue, gpu_transfer = spec.epilogue, spec.gpu_transfer

    def finish(pixels: PreparedBatch) -> PreparedBatch | PendingTransfer:
        if pixels.event is not None:
            return pixels
        if gpu_transfer is not None:
            return pending_transfer(gpu_transfer, epilogue, pixels)
        if on_host and not pixels.finished:
            pixels = PreparedBatch(epilogue(pixels.images, pixels.boxes, pool=spec.pool), None, finished=True)
        if pin is not None:
            pixels = replace(pixels, images=_utils.pin_memory.pin_memory(pixels.images, pin))
        return pixels

    return finish
