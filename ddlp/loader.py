"""`DDLPLoader`: torch's DataLoader, prepared from both ends."""

from __future__ import annotations

import inspect
import os
import threading
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddlp.config import LoaderConfig
from ddlp.devices.device import Device
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.iterator import EpochArguments, EpochIterator, EpochMemory
from ddlp.errors import DDLPError, Untranslatable
from ddlp.explain import Chosen, Explanation, explain
from ddlp.frameworks.accelerate import Prepared, prepare_where_asked
from ddlp.frameworks.lightning import counts_batches
from ddlp.frameworks.ray import share_where_asked
from ddlp.frameworks.shards import warn_if_not_shared
from ddlp.process.finalizers import when_dropped
from ddlp.process.platforms import OtherSystem, warn_once
from ddlp.process.user_warnings import warn_user
from ddlp.recording.recorder import Recorder, hooks_of
from ddlp.recording.watch import Observer
from ddlp.sampling import checkpoint as resuming
from ddlp.sampling.epoch_plan import is_random
from ddlp.schedule.strategies import Order, Strategy
from ddlp.sources.base import EpochSink, LeaseSource
from ddlp.sources.engine.connections import EngineConnections, SharedHandle
from ddlp.sources.engine.embedded import EmbeddedOptions
from ddlp.sources.engine.source import EngineSource
from ddlp.sources.host import stateful_workers as stateful
from ddlp.sources.host.dali import Graphs
from ddlp.sources.host.keyed_samples import KeyedSamples
from ddlp.sources.host.torch_workers import KeyedView, UserCodeIterator
from ddlp.stats.live import Life, Live, counted, length
from ddlp.stats.report import EpochReport
from ddlp.transfer.choose_transfer import transfer_to
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.to_device import MoveAndTransform
from ddlp.translate.dali import stages
from ddlp.translate.obstacles import has_images
from ddlp.translate.portable import Portable, portable
from ddlp.translate.self_described import other_structure

_TORCH_HAS_IN_ORDER = "in_order" in inspect.signature(DataLoader).parameters  # since 2.6
_SHARED_BY_EPOCHS = {  # what is made once for all epochs, and of which arguments
    "_connections": ("csd", "transfer", "spool", "spool_bytes"),
    "_gpu_transfer": ("device", "transfer"),
}


class DDLPLoader(DataLoader):
    """A DataLoader that prepares each epoch from both ends: this host from the head, a device's engine from the tail.

    All arguments of `torch.utils.data.DataLoader` mean what they mean there. For data sets and transforms that can travel
    (``explain()`` tells), ``num_workers`` are threads of this process; 0 prefetches in one thread.

    Args:
        strategy: where each step's batch comes from: ``"cpu"`` the host alone; ``"csd"`` the device alone; ``"mte"`` the host's
            batches first, then the device's; ``"wrr"`` whichever is ready, the device's first; ``"ordered"`` both, in the
            sampler's order. None: ``"cpu"`` without ``csd=``; with it ``"wrr"`` where the order is random anyway, else
            ``"ordered"``. Or a class of your own, a subclass of `ddlp.schedule.strategies.Strategy` (docs/extending.md).
        csd: the device: the name under which ``ddlp deploy`` has stored it, its engine's address, a `Device` (address and
            keys), or several. None with a strategy that needs one: an engine is started on this machine. Or a source of your
            own, a `ddlp.sources.base.LeaseSource` (docs/extending.md).
        device: where batches are delivered, e.g. ``"cuda"``, or a GPU's number; None: CPU tensors, as DataLoader. Copies to a
            GPU and what is left of the transform there run beside the training step.
        seed: of all random draws within samples. None draws one from ``generator`` (or torch's) at each iter(), as DataLoader
            does. The order of samples comes from torch's generators in any case.
        ratio: ``mte``: the host's share of the epoch's batches, 0 to 1. None: measured.
        transfer: how a device's batches come: ``"shared"`` through its spool, which this host must see; ``"stream"`` over the
            engine's socket. None or ``"auto"``: through the spool where both sides prove to see the same one, else over the
            socket. Into a GPU's memory they come from the spool in the fastest way, measured with the first one; or by
            ``"gds"`` (GPUDirect Storage, past this host), ``"pinned"`` or ``"mmap"``, as docs/gpu.md tells.
        spool: directory for the engine's batch files; None: $DDLP_SPOOL, else the system's temporary directory.
        spool_bytes: what the embedded engine may hold there; None: half of what is free, 8 GiB at most.
        audit: the host makes one sample in every ``audit`` batches of the device again and compares it.
        output: dtype of the images: ``torch.float32`` (as torchvision), ``uint8`` (before ToTensor), ``float16``,
            ``bfloat16``; None: as the transform gives.
        memory_format: ``torch.channels_last`` or None.
        decode: ``"exact"``: torchvision's pixels, bit for bit; ``"fast"``: JPEGs are decoded at a half, a quarter or an eighth
            of their size where the crop is at least so many times larger than what is wanted. Close, not the same; alike on
            both sides.
        batch_transform: called with each finished batch where it lands (MixUp and CutMix belong here); its result is
            delivered.
        backend: who prepares the host's batches: ``"native"``, ddlp's own code; ``"dali"``, NVIDIA DALI, on the GPU where
            ``device`` is one, else on the CPU; ``"dali_cpu"``, on the CPU in any case: the same samples, the same random draws,
            and pixels nearly torchvision's (docs/dali.md says how nearly).
        allow_different_bits: take a device whose Pillow makes other pixels than this host's.
        record: a directory, or a `ddlp.observe.Recorder`, for what every thread does: ``ddlp analyse`` tells of it.
        snapshot_every_n_steps: user code: after so many batches the workers send the state of a data set that has one of its
            own (``state_dict`` and ``load_state_dict``, as torchdata's StatefulDataLoader asks); what came after it is made
            again on a resume. Changes nothing for other data sets, nor for those that can travel.

    Raises:
        ValueError: arguments that contradict each other, as DataLoader.
        Untranslatable: ``strategy="csd"`` for samples that can't travel; it, and ``csd=``, on other systems than Linux.
        ImportError: ``backend="dali"`` without DALI.
    """

    __class_getitem__ = classmethod(types.GenericAlias)  # type: ignore[var-annotated]
    _observers: tuple[Observer, ...] = ()  # of the next epoch, see ddlp.observe.checked
    get_sampler = resuming.sampler_of  # accelerate's save_state asks the loader of a stream for it

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        strategy: str | type[Strategy] | None = None,
        csd: str | Device | LeaseSource | Iterable[str | Device | LeaseSource] | None = None,
        device: str | int | torch.device | None = None,
        seed: int | None = None,
        ratio: float | None = None,
        transfer: str | None = None,
        spool: str | None = None,
        spool_bytes: int | None = None,
        audit: int | None = None,
        output: torch.dtype | str | None = None,
        memory_format: torch.memory_format | None = None,
        decode: str = "exact",
        batch_transform: Callable[[Any], Any] | None = None,
        backend: str = "native",
        allow_different_bits: bool = False,
        record: str | os.PathLike[str] | Recorder | None = None,
        snapshot_every_n_steps: int = 1,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **({"in_order": in_order} if _TORCH_HAS_IN_ORDER else {}),
        )
        self.in_order = in_order
        self.strategy = strategy
        self.csd = csd
        self.device = device
        self.seed = seed
        self.ratio = ratio
        self.transfer = transfer
        self.spool = spool
        self.spool_bytes = spool_bytes
        self.audit = audit
        self.output = output
        self.memory_format = memory_format
        self.decode = decode
        self.batch_transform = batch_transform
        self.backend = backend
        self.allow_different_bits = allow_different_bits
        self.record = record
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._next_epoch = 0
        self._resume = resuming.Resume()
        self._cut: dict[str, Any] = {}
        self._loaded: dict[str, Any] | None = None
        self._life = Life()
        self._connections: EngineConnections | None = None
        self._keeps: list[SharedHandle] = []
        self._gpu_transfer: GpuTransfer | None = None
        self._graphs: Graphs | None = None
        self._last: EpochMemory | KeyedView | stateful.StreamView | None = None
        self._prepared: Prepared | None = None
        self._before: Live | None = None  # the last epoch when this one began
        self._samples: KeyedSamples | None = None
        self._told: set[str] = set()
        self._compared = False
        self._otherwise: Callable[[], Untranslatable] | None = None
        config = LoaderConfig.of(self)
        config.check(self._wanted_strategy(config), self._index_sampler)
        found = self._portable_now(config, compare=False)
        if found is not None and config.backend != "native":
            stages(found)  # names what DALI can't do

    def __setattr__(self, attr: str, val: Any) -> None:
        """Sets what the next epoch is made with. Raises ValueError where something was made of it that all epochs share."""
        for shared, arguments in _SHARED_BY_EPOCHS.items():
            if attr in arguments and getattr(self, shared, None) is not None:
                begun = f"after {type(self).__name__} has begun an epoch with it"
                raise ValueError(f"{attr} attribute should not be set {begun}; make another one")
        super().__setattr__(attr, val)

    # -- iteration -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """A new epoch. Each call counts as one unless `set_epoch` says which it is."""
        keeps = self.persistent_workers and self.num_workers > 0
        iterator = self._begin(self._iterator if keeps else None)
        if keeps:
            self._iterator = iterator
        return iterator if self._prepared is None else self._prepared.watch(iterator)

    def _get_iterator(self) -> Any:
        """As DataLoader's: a new epoch with workers of its own."""
        return self._begin(None)

    def _begin(self, kept: Any) -> Any:
        """The iterator over the next epoch, by the loader's attributes as they are now.

        ``kept`` is the iterator before, where its workers persist; None: there is none.
        """
        config = LoaderConfig.of(self)
        warn_if_not_shared(self)
        self._before = self.live() if self._last is not None and not self._resume.partly else None
        now = self._portable_now(config)
        epoch, resume = self._next_epoch, self._resume
        if self._prepared is not None:
            in_order = self.in_order if now is None else self._wanted_strategy(config).order is Order.SAMPLER
            self._prepared.begin(epoch, in_order)
        cut = resuming.cut(self, portable=now is not None)
        resume.check(cut)
        seed = config.seed if resume.seed is None else resume.seed
        iterator: EpochIterator | UserCodeIterator
        if now is None:
            iterator = self._user_code(config, kept, seed, epoch, resume)
        else:
            base_seed = resume.seed
            if isinstance(kept, EpochIterator):
                kept._shutdown_workers()
                if base_seed is None:  # DataLoader draws a base seed once for as long as its workers persist
                    base_seed = int(kept._base_seed)
            iterator = self._epoch_iterator(config, now, seed, base_seed, epoch, resume)
        self._last = iterator.memory
        self._next_epoch, self._resume, self._loaded, self._cut = epoch + 1, resuming.Resume(), None, cut
        return iterator

    def _portable_now(self, config: LoaderConfig, compare: bool = True) -> Portable | None:
        """What can travel, as the data set is now. Returns None, and warns once, if torch's own workers must prepare it.

        ``compare``: samples may be made for it. Raises Untranslatable where the strategy needs a device, ValueError where an
        argument needs what ddlp runs itself.
        """
        try:
            found = portable(self, config.output_dtype, config.memory_format, config.decode)
            return self._as_described(found) if compare else found
        except Untranslatable as error:
            if self._wanted_strategy(config).needs_device:
                raise
            if config.changes_images or config.backend != "native":
                text = "output=, memory_format=, decode='fast' and backend='dali' need a pipeline that ddlp runs itself"
                raise ValueError(f"{text}: {error}") from error
            error.__traceback__ = None  # a frame that names the error makes a circle, which would keep our caller's iterator
            if isinstance(error, OtherSystem):
                warn_once(error.operator)
            elif (self._wanted_strategy(config).uses_device or self._otherwise is not None) and str(error) not in self._told:
                self._told.add(str(error))
                warn_user(f"ddlp: the host prepares all batches: {error}")
            elif compare and not self._told and has_images(self.dataset):  # an epoch begins, and could be faster
                self._told.add(str(error))
                warn_user(
                    f"ddlp: torch's own workers prepare this loader's batches, at DataLoader's speed, for {error.operator}: "
                    f"{error.why}. loader.explain() lists all that is in the way, and what to write instead."
                )
            return None

    def _as_described(self, found: Portable) -> Portable:
        """What was found, unless the data set describes samples of another structure than its own: raises Untranslatable.

        One sample is compared, once a loader.
        """
        if not self._compared:
            self._compared, self._otherwise = True, other_structure(found.dataset)
        if self._otherwise is not None:
            raise self._otherwise()
        return found

    def _user_code(
        self, config: LoaderConfig, kept: Any, seed: int | None, epoch: int, resume: resuming.Resume
    ) -> UserCodeIterator:
        """torch's own iterator, with keyed samples; ``kept`` goes on where it can."""
        if config.record is not None and "record" not in self._told:
            self._told.add("record")
            warn_user("ddlp: record= records what ddlp prepares itself; torch's own workers prepare this loader's batches")
        finish = MoveAndTransform(config.target, config.batch_transform)
        if isinstance(kept, UserCodeIterator) and resume.workers is None:
            kept.restart(self, seed, epoch, resume, finish)
        else:
            if kept is not None:
                kept._shutdown_workers()  # their data sets are not those of the state
            kept = stateful.iterate(self, seed, epoch, resume, finish, config.snapshot_every_n_steps)
        self._life.began(kept.counts)
        return kept

    def _epoch_iterator(
        self,
        config: LoaderConfig,
        now: Portable,
        seed: int | None,
        base_seed: int | None,
        epoch: int,
        resume: resuming.Resume,
    ) -> EpochIterator:
        """ddlp's own iterator; its sources are on their way to it."""
        strategy = self._wanted_strategy(config)
        gpu_transfer = self._gpu_transfer_for_target(config)
        graphs = self._graphs_for(config, now, gpu_transfer)
        sources = self._lease_sources(config) if strategy.uses_device else ()
        connections = self._connections if any(isinstance(source, EngineSource) for source in sources) else None
        ended = (lambda: None) if connections is None else connections.epoch_began()
        observers, self._observers = self._observers, ()
        hooks: EpochHooks | None = None
        try:
            if connections is not None and strategy.needs_device:
                connections.check_embedded()  # nobody else may prepare a batch: it is told here
            hooks = hooks_of(config.record, observers)
            iterator = EpochIterator(
                self,
                EpochArguments(
                    portable=now,
                    seed=seed,
                    base_seed=base_seed,
                    epoch=epoch,
                    resume=resume,
                    strategy=partial(strategy.make, ratio=config.ratio),
                    rank_after_rank=strategy.rank_after_rank,
                    sources=sources,
                    gpu_transfer=gpu_transfer,
                    graphs=graphs,
                    life=self._life,
                    target=config.target,
                    batch_transform=config.batch_transform,
                    hooks=hooks,
                    on_closed=ended,
                ),
            )
        except BaseException:
            ended()
            if hooks is not None:
                hooks.closed()
            raise
        iterator.keep = tuple(self._keeps)
        for source in sources:
            name = f"ddlp-attach-{source.name}"
            threading.Thread(target=_attach, args=(source, iterator.executor), name=name, daemon=True).start()
        return iterator

    def _gpu_transfer_for_target(self, config: LoaderConfig) -> GpuTransfer | None:
        """Where batches land, on an accelerator that takes copies beside its work; the same for all epochs."""
        if self._gpu_transfer is None:
            self._gpu_transfer = transfer_to(config.target, config.transfer)
            if self._gpu_transfer is not None:
                self._keeps.append(SharedHandle())
                when_dropped(self._keeps[-1], self._gpu_transfer.close)
        return self._gpu_transfer

    def _graphs_for(self, config: LoaderConfig, now: Portable, gpu_transfer: GpuTransfer | None) -> Graphs | None:
        """DALI's pipelines for an epoch; those on a GPU are kept for the next one."""
        if config.backend == "native":
            return None
        wanted, graphs = stages(now), self._graphs
        if graphs is None or graphs.gpu is None or graphs.stages != wanted:
            graphs = self._graphs = Graphs(wanted, gpu_transfer if config.backend == "dali" else None)
        return graphs

    def _lease_sources(self, config: LoaderConfig) -> tuple[LeaseSource, ...]:
        """What prepares batches beside this host: the engines of the devices, and sources of the user's own."""
        own = config.own_sources
        if own and not config.engine_devices:
            return own
        connections = self._reached(config)
        engines = (
            EngineSource(name, connections, config.audit, config.allow_different_bits) for name in connections.names
        )
        return (*engines, *own)

    def _reached(self, config: LoaderConfig) -> EngineConnections:
        """The connections to the devices' engines; the same for all epochs."""
        if self._connections is None or self._connections.pid != os.getpid():  # else inherited over a fork: the parent's
            options = EmbeddedOptions(spool=config.spool, quota_bytes=config.spool_bytes)
            self._connections = EngineConnections(config.engine_devices, options, config.transfer)
            self._keeps.append(SharedHandle())
            when_dropped(self._keeps[-1], self._connections.close)
        return self._connections

    # -- state, report -------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iter() is; its random draws depend on it.

        Passed on to a sampler, a batch sampler and a data set that have the method.
        """
        if self._loaded is not None and epoch != self._next_epoch and not self._resume.partly:
            # What was loaded is of another epoch, but for data sets that go on from epoch to epoch.
            self._loaded = resuming.between(epoch, stateful.kept(self, self._resume), self._resume.sampler)
            self._resume, _ = resuming.load(self._loaded)
        self._next_epoch = epoch
        resuming.set_epoch(self, epoch)
        dataset: Any = self.dataset
        if callable(getattr(dataset, "set_epoch", None)):  # Hugging Face's streams shuffle anew by it
            dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: with `load_state_dict`, the next iter() delivers what is left of this epoch.

        The epoch is over, and the next one begins there, once its iterator has raised StopIteration. Independent of strategy,
        number of workers and devices.
        """
        if self._loaded is not None:
            return {**self._loaded, "epoch": self._next_epoch}
        state, last = None if self._last is None else self._last.state(), self._last
        if state is not None and counts_batches():
            over = last.over_by_count() if isinstance(last, stateful.StreamView) else state["finished"]
            state = None if over else state
        if state is None:
            return resuming.between(self._next_epoch, stateful.lasting(self), resuming.sampler_state(self))
        return {**state, "cut": self._cut}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called; takes effect at the next iter().

        Raises ValueError for anything else, and, here or at iter(), for a state in mid-epoch of a loader whose batches are
        others: by batch_size, drop_last, sampler or data set.
        """
        resume, epoch = resuming.load(state)
        resume.check(resuming.cut(self))
        stateful.check_workers(self, resume)
        self._resume, self._next_epoch, self._loaded = resume, epoch, state

    def report(self) -> EpochReport:
        """What the last epoch did, or the one under way so far. Raises DDLPError before the first.

        Of what torch's own workers prepare there are no rates, and no processor time.
        """
        now = self.live()
        if not now.total.epochs:
            raise DDLPError("report(): no epoch has begun; iterate over the loader first")
        return now.report

    def live(self) -> Live:
        """The loader's numbers now. Quick, and from any thread: it holds the epoch's lock for some microseconds.

        An epoch of which no batch was asked for yet is not shown, the one before is: Keras begins one after its last.

        Of batches that torch's own workers prepare there are no rates and no processor time. Before the first epoch all is 0.
        """
        life, last = self._life, self._last
        if isinstance(last, EpochMemory):
            now = last.executor.live(life)
        else:
            now = counted(life.last, life.total(), length(self))
        if self._before is None or now.report.samples or now.waiting_now_s:
            return now
        return replace(self._before, total=now.total)

    def explain(self) -> Explanation:
        """What travels to a device, what does not, and why; printed and returned, as a str that notebooks don't show twice."""
        config = LoaderConfig.of(self)
        chosen = Chosen(
            strategy=self._wanted_strategy(config),
            by_default=config.strategy is None,
            backend=config.backend,
            dali_on_gpu=config.dali_on_gpu,
            transfer=config.transfer,
        )
        found: Portable | Untranslatable
        try:
            found = self._as_described(portable(self, config.output_dtype, config.memory_format, config.decode))
        except Untranslatable as error:
            found = error.with_traceback(None)  # this frame names the error: they would keep each other
        text = explain(self, chosen, found)
        print(text)
        return text

    def __getstate__(self) -> dict[str, Any]:
        """Loaders pickle: connections and iterations under way stay behind."""
        left = dict.fromkeys(
            ("_iterator", "_prepared", "_before", "_last", "_connections", "_gpu_transfer", "_graphs", "_samples")
        )
        return {**vars(self), **left, "_keeps": [], "_life": Life()}

    # -- asked by accelerate and Ray Train -----------------------------------------------------------------------

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether accelerate leaves the loader alone: yes, and where an Accelerator asks, this prepares it."""
        prepare_where_asked(self)
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """``Accelerator.prepare`` sets it when it is through."""

    @property
    def sampler(self) -> Any:
        """As DataLoader's. Where Ray Train asks for it, the samples are shared among its workers first."""
        if "sampler" not in vars(self):
            raise AttributeError("sampler")
        share_where_asked(self)
        return vars(self)["sampler"]

    @sampler.setter
    def sampler(self, value: Any) -> None:
        vars(self)["sampler"] = value

    # -- helpers -------------------------------------------------------------------------------------------------

    def _wanted_strategy(self, config: LoaderConfig) -> type[Strategy]:
        """The class of the next epoch's strategy. Raises ValueError where ``strategy`` is none."""
        return config.wanted_strategy(self._order_is_free)

    def _order_is_free(self) -> bool:
        """Whether another order of the batches is none the worse."""
        random = is_random(self._index_sampler) or not self.in_order
        return random and not torch.are_deterministic_algorithms_enabled()


def _attach(source: LeaseSource, sink: EpochSink) -> None:
    """A source's part in an epoch. Its own error ends the training: nobody would wait for it, nor see why it is not there."""
    try:
        source.attach(sink)
    except Exception as error:
        sink.lost(source.name, repr(error), error)
