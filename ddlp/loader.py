"""`DDLPLoader`: torch's DataLoader, with each epoch prepared from both ends."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from csd_engine.machine.computer import cpus, processors
from csd_engine.prepare.cached_batch import SampleCache
from ddlp.auto_workers import LoaderWorkers, number_of_workers
from ddlp.caching.filling import Filled, fill, fill_kept
from ddlp.caching.kept_samples import Asked, KeptSamples, kept_samples
from ddlp.caching.opening import NO_HOME, LoaderCache, auto_line, cache_line, place_of, point_line
from ddlp.caching.settings import Cache
from ddlp.config import LoaderConfig
from ddlp.devices.device import Device
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.iterator import EpochArguments, EpochIterator, EpochMemory
from ddlp.epoch.rank_exchange import RankExchange, agreement_of
from ddlp.epoch.replay import replay
from ddlp.errors import DDLPError, Untranslatable
from ddlp.explain import Chosen, Explanation, OwnSource, explain
from ddlp.frameworks.accelerate import Prepared, prepare_where_asked
from ddlp.frameworks.lightning import counts_batches
from ddlp.frameworks.ray import share_where_asked
from ddlp.frameworks.shards import warn_if_not_shared
from ddlp.planning.controller import Controller, Goal
from ddlp.planning.decide import Decision
from ddlp.planning.measured import Measured
from ddlp.planning.scaling import Scaler
from ddlp.process.finalizers import SharedHandle, when_dropped
from ddlp.process.platforms import OtherSystem, tell_once
from ddlp.process.ranks import here
from ddlp.process.user_warnings import advise_user, warn_user
from ddlp.recording.recorder import Recorder, hooks_of
from ddlp.recording.user_code import recording_of
from ddlp.recording.watch import Observer
from ddlp.remembered import Remembered
from ddlp.sampling import checkpoint as resuming
from ddlp.sampling.epoch_plan import is_random
from ddlp.sampling.merged import rest_of
from ddlp.schedule.strategies import Order, Strategy
from ddlp.sources.base import LeaseSource
from ddlp.sources.host import stateful_workers as stateful
from ddlp.sources.host.dali import Graphs
from ddlp.sources.host.keyed_samples import KeyedSamples
from ddlp.sources.host.own_steps import WorkerProcesses
from ddlp.sources.host.torch_workers import KeyedView, UserCodeIterator, postpone_in_workers
from ddlp.stats.live import Life, Live, counted, length
from ddlp.stats.report import EpochReport
from ddlp.transfer.choose_transfer import transfer_to
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.to_device import MoveAndTransform
from ddlp.translate.dali import stages
from ddlp.translate.marked import CodeBeforePoint
from ddlp.translate.obstacles import has_images
from ddlp.translate.portable import Portable, portable
from ddlp.translate.self_described import other_structure

if TYPE_CHECKING:  # imported when they are needed: a user without devices loads nothing of what serves them
    from ddlp.pools.base import Pool
    from ddlp.pools.offload import Offload
    from ddlp.sources.usercode.work import Work

_TORCH_HAS_IN_ORDER = "in_order" in inspect.signature(DataLoader).parameters  # since 2.6


class DDLPLoader(DataLoader):
    """A DataLoader that prepares each epoch from both ends: this host works from the head, a device's engine from the tail.

    All arguments of `torch.utils.data.DataLoader` have the same meaning here. If the data set and its transform can travel to a
    device (``explain()`` tells), ``num_workers`` is the number of threads in this process; 0 prefetches in one thread.

    ``num_workers="auto"`` begins with one worker less than there are processors. After each epoch of 20 batches or more it
    takes the fewest with which training does not wait, and chooses ``prefetch_factor`` too unless that is given. The next run
    of the same begins with what was found. The attribute ``num_workers`` has the number.

    Args:
        strategy: which side each step's batch comes from. ``"cpu"``: the host alone. ``"csd"``: the device alone. ``"mte"``:
            the host's batches come first, then the device's. ``"wrr"``: any batch that is ready, the device's first.
            ``"ordered"``: both sides, in the sampler's order. None: ``"cpu"`` without ``csd=`` and ``pool=``; with one of them
            ``"auto"`` if the order is random anyway, else ``"ordered"``. ``"auto"``: as wrr, but measures while training goes
            on, and lets devices rest that do not make training faster. You can also pass a class of your own, a subclass of
            `ddlp.schedule.strategies.Strategy` (docs/extending.md).
        csd: the device: the name under which ``ddlp deploy`` has stored it, its engine's address, a `Device` (address and
            keys), or several of these. None: if the strategy uses a device, an engine is started on this machine. You can also
            pass a source of your own, a `ddlp.sources.base.LeaseSource` (docs/extending.md).
        pool: further engines that prepare batches, beside the devices in ``csd``. A number: so many engines, each a process on
            this machine, which end with the loader. A `LocalPool` has more settings, and can change its number while an epoch
            runs. The path of a directory: the engines whose cards are there, as a `CardPool`. A `RayPool`: engines on a Ray
            cluster. Training waits for none of them to start, except for one's own processes under ``strategy="csd"``
            (docs/pools.md).
        device: where batches are delivered: a device such as ``"cuda"``, or a GPU's number. None: as CPU tensors, like
            DataLoader's. Copies to a GPU, and the rest of the transform there, run beside the training step.
        seed: the seed of all random draws within samples. None draws a seed from ``generator`` (or torch's) at each iter(), as
            DataLoader does. The order of samples comes from torch's generators in any case.
        ratio: for ``mte``: the host's share of the epoch's batches, 0 to 1. None: measured.
        goal: for ``auto``: what a decision makes small, a `ddlp.Goal`: time, energy or cost. None: time.
        transfer: how a device's batches come to this host. ``"shared"``: through the device's spool, which this host must see.
            ``"stream"``: over the engine's socket. None or ``"auto"``: through the spool if both sides prove to see the same
            one, else over the socket. From the spool into a GPU's memory the fastest way is taken, measured with the first
            batch. ``"gds"`` (GPUDirect Storage, past this host's memory), ``"pinned"`` or ``"mmap"`` choose that way, see
            docs/gpu.md.
        spool: directory for the engine's batch files; None: $DDLP_SPOOL, else the system's temporary directory.
        spool_bytes: how many bytes the embedded engine, or all of the pool's on this machine, may hold there; None: half of the
            free space, 8 GiB at most.
        audit: the host makes one sample in every ``audit`` batches of the device again, and compares it. None: no sample.
        output: dtype of the images: ``torch.float32`` (as torchvision), ``uint8`` (before ToTensor), ``float16`` or
            ``bfloat16``; None: the dtype that the transform gives.
        memory_format: ``torch.channels_last``, or None for the format that the transform gives.
        decode: ``"exact"``: torchvision's pixels, bit for bit. ``"fast"``: a JPEG is decoded at a half, a quarter or an eighth
            of its size if the crop is at least that many times larger than the result. Its pixels are close to torchvision's,
            not the same, and equal on both sides.
        as_pil: operators that resize, rotate or change colours after v2's ToImage (or PILToTensor) run as on a PIL image.
            ddlp's code does that fast, and devices can do it. torch's own kernels for bytes give slightly other pixels;
            docs/operators.md tells the difference.
        batch_transform: a function that is called with each finished batch, on ``device``. Its result is delivered. MixUp and
            CutMix belong here.
        backend: which code prepares the host's batches. ``"native"``: ddlp's own. ``"dali"``: NVIDIA DALI, on the GPU if
            ``device`` is one, else on the CPU. ``"dali_cpu"``: DALI on the CPU in any case. DALI gives the same samples and
            random draws, and nearly torchvision's pixels; docs/dali.md tells the difference.
        own_steps: ddlp may know only the first operators of a transform. The transform is then cut after those. The known
            operators are prepared as ever, and your own steps run on the host. ``"processes"``: in ``num_workers`` processes,
            or in the training thread if that is 0. ``"threads"``: in threads of this process, for steps that release the GIL
            and do not draw from a global generator. ``"off"``: nothing is cut, and torch's own workers run the whole transform.
        allow_different_bits: use a device even if its Pillow makes other pixels than this host's.
        record: a directory, or a `ddlp.observe.Recorder`, to record what every thread does. ``ddlp analyse`` reads it.
        snapshot_every_n_steps: for user code: after so many batches the workers send the state of a data set that has
            ``state_dict`` and ``load_state_dict``, as torchdata's StatefulDataLoader asks. Batches after that state are made
            again on a resume. It changes nothing for other data sets, nor for those that can travel.
        postpone_decoding: while user code makes batches, JPEGs from `PIL.Image.open` are decoded when their pixels are
            needed. One call of ddlp's kernel then does the decoding and the crop, resize and flips that the code has asked for.
            The pixels are the same. False: Pillow decodes them.
        on_error: what happens to a sample that is missing, can't be decoded, or does not suit the transform's known operators.
            ``"raise"``: its error is raised in its batch's place, as by DataLoader. ``"replace"``: another sample of its batch
            has its place, with its target; the same one in every run with the same seed, whoever makes the batch.
            ``report()`` counts such samples (``replaced``) and names the first 100 (``replaced_samples``).
        max_replaced: with ``on_error="replace"``: the largest share of an epoch's samples that may be replaced. The batch with
            which they become more raises DDLPError. A state in mid-epoch keeps the number.

    Raises:
        ValueError: if a value is not allowed, or arguments contradict each other, as in DataLoader.
        Untranslatable: if ``strategy="csd"`` and the samples can't travel; or if ``strategy="csd"``, ``csd=`` or ``pool=`` is
            used on another system than Linux.
        ImportError: if ``backend`` needs DALI, and DALI can't be imported.
    """

    __class_getitem__ = classmethod(types.GenericAlias)  # type: ignore[var-annotated]
    _rest: Any = None  # the index sampler for what a merged state has left of an epoch, while that epoch begins
    _observers: tuple[Observer, ...] = ()  # observers of the next epoch, see ddlp.observe.checked
    get_sampler = resuming.sampler_of  # accelerate's save_state asks the loader of a stream for it

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str = 0,
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
        pool: int | str | os.PathLike[str] | Pool | None = None,
        device: str | int | torch.device | None = None,
        seed: int | None = None,
        ratio: float | None = None,
        goal: Goal | None = None,
        transfer: str | None = None,
        spool: str | None = None,
        spool_bytes: int | None = None,
        audit: int | None = None,
        output: torch.dtype | str | None = None,
        memory_format: torch.memory_format | None = None,
        decode: str = "exact",
        cache: bool | str | Cache = False,
        as_pil: bool = False,
        batch_transform: Callable[[Any], Any] | None = None,
        backend: str = "native",
        own_steps: str = "processes",
        allow_different_bits: bool = False,
        record: str | os.PathLike[str] | Recorder | None = None,
        snapshot_every_n_steps: int = 1,
        postpone_decoding: bool = True,
        on_error: str = "raise",
        max_replaced: float = 0.001,
    ) -> None:
        workers, auto = number_of_workers(num_workers, prefetch_factor)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            workers,
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
        self._auto_workers: LoaderWorkers | None = auto
        self.in_order = in_order
        self.strategy = strategy
        self.csd = csd
        self.pool = pool
        self.device = device
        self.seed = seed
        self.ratio = ratio
        self.goal = goal
        self.transfer = transfer
        self.spool = spool
        self.spool_bytes = spool_bytes
        self.audit = audit
        self.output = output
        self.memory_format = memory_format
        self.decode = decode
        self.cache = cache
        self.as_pil = as_pil
        self.batch_transform = batch_transform
        self.backend = backend
        self.own_steps = own_steps
        self.allow_different_bits = allow_different_bits
        self.record = record
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.postpone_decoding = postpone_decoding
        self.on_error = on_error
        self.max_replaced = max_replaced
        self._next_epoch = 0
        self._resume = resuming.Resume()
        self._cut: dict[str, Any] = {}
        self._dealt: dict[str, Any] = {}
        self._loaded: dict[str, Any] | None = None
        self._life = Life()
        self._controller: Controller | None = None
        self._remembered: Remembered | None = None
        self._offload: Offload | None = None
        self._handles: list[SharedHandle] = []
        self._gpu_transfer: GpuTransfer | None = None
        self._cache: LoaderCache | None = None
        self._kept: KeptSamples | None = None
        self._graphs: Graphs | None = None
        self._last: EpochMemory | KeyedView | stateful.StreamView | None = None
        self._prepared: Prepared | None = None
        self._before: Live | None = None  # the last epoch's numbers at the moment when this epoch began
        self._samples: KeyedSamples | None = None
        self._own_processes: WorkerProcesses | None = None  # that are kept for the next epoch
        self._warned: set[str] = set()
        self._compared = False
        self._otherwise: Callable[[], Untranslatable] | None = None
        if postpone_decoding:
            postpone_in_workers()
        config = LoaderConfig.of(self)
        _pool_of(config)  # raises if it is none
        config.check(self._wanted_strategy(config), self._index_sampler, self._auto_collation)
        found = self._portable_now(config, compare=False)
        if found is not None and config.backend != "native":
            stages(found)  # raises, and names the operator, if DALI can't do it

    def __setattr__(self, attr: str, val: Any) -> None:
        """Set an attribute for the next epoch. Raises ValueError if an object that all epochs share was made from it."""
        if attr in self._fixed():
            begun = f"after {type(self).__name__} has begun an epoch with it"
            raise ValueError(f"{attr} attribute should not be set {begun}; make another one")
        if attr == "num_workers":
            val, vars(self)["_auto_workers"] = number_of_workers(val, None)
        super().__setattr__(attr, val)

    def _fixed(self) -> tuple[str, ...]:
        """The arguments from which something was made that all epochs share."""
        offload: Offload | None = vars(self).get("_offload")
        fixed = () if offload is None else offload.made_from
        return fixed if vars(self).get("_gpu_transfer") is None else (*fixed, "device", "transfer")

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._rest is None else self._rest

    @contextlib.contextmanager
    def _going_on(self, resume: resuming.Resume) -> Iterator[None]:
        """Put what is left of the epoch in the place of the sampler, if the state was merged from several ranks'."""
        if resume.deals is not None:
            self._rest = rest_of(resume.deals, self._index_sampler)
        try:
            yield
        finally:
            self._rest = None

    # -- iteration -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begin a new epoch. Each call counts as the next epoch, unless `set_epoch` gives the number."""
        keeps = self._workers_stay
        iterator = self._begin(self._iterator if keeps else None)
        if keeps:
            self._iterator = iterator
        return iterator if self._prepared is None else self._prepared.watch(iterator)

    def _get_iterator(self) -> Any:
        """Begin a new epoch with workers of its own, like DataLoader's method."""
        return self._begin(None)

    def _begin(self, kept: Any) -> Any:
        """Return the iterator over the next epoch, made from the loader's attributes as they are now.

        ``kept`` is the previous iterator if its workers persist, else None.
        """
        with self._going_on(self._resume):
            return self._begin_epoch(kept)

    def _begin_epoch(self, kept: Any) -> Any:
        config = LoaderConfig.of(self)
        warn_if_not_shared(self)
        self._before = self.live() if self._last is not None and not self._resume.partly else None
        now = self._portable_now(config)
        if now is not None:  # as in a worker process, which keeps the directory of the iter() that has started it
            now.dataset.open_in(kept.directory if isinstance(kept, EpochIterator) else None)
        strategy = self._wanted_strategy(config)
        if self._auto_workers is not None and self._auto_workers.begin(self, config, now):
            self._controller = None  # what it has measured was another host
        if self._resume.seed is None and not self._workers_stay:  # no epoch has begun: it draws a base seed of its own
            self._resume = replace(self._resume, base_seed=None)
        stateful.load_here(self, self._resume)
        self._resume = resuming.drawn_on(self, self._resume)
        epoch, resume = self._next_epoch, self._resume
        if self._prepared is not None:
            in_order = self.in_order if now is None else strategy.order is Order.SAMPLER
            self._prepared.begin(epoch, in_order)
        cut = resuming.cut(self, portable=now is not None)
        resume.check(cut)
        seed = config.seed if resume.seed is None else resume.seed
        work = None if now is not None else self._work_for_pool(config)
        self._kept, why = (None, "") if now is not None else self._kept_samples(config, work)
        if now is None and self._kept is None and isinstance(config.cache, Cache) and "cache" not in self._warned:
            self._warned.add("cache")
            warn_user(f"ddlp: cache= keeps nothing: {why}. loader.explain() lists what is in the way")
        iterator: EpochIterator | UserCodeIterator
        base_seed = resume.base_seed
        if base_seed is None and kept is not None:  # as DataLoader: it draws the base seed once while its workers persist
            base_seed = int(kept._base_seed)
        if now is None and work is None:
            iterator = self._user_code(config, kept, seed, base_seed, epoch, resume)
        else:
            if isinstance(kept, EpochIterator):
                kept._shutdown_workers()
            if now is None:
                from ddlp.sources.usercode.host import indexed

                now = indexed(self)
            iterator = self._epoch_iterator(config, now, seed, base_seed, epoch, resume, work)
        self._last = iterator.memory
        self._next_epoch, self._resume, self._loaded, self._cut = epoch + 1, resuming.Resume(), None, cut
        self._dealt = resuming.dealt(self, resume)
        return iterator

    def _translated(self, config: LoaderConfig) -> Portable:
        """Call `portable` with the loader's arguments."""
        cached = config.cache is not False
        return portable(self, config.output_dtype, config.memory_format, config.decode, config.as_pil, config.cuts, cached)

    def _portable_now(self, config: LoaderConfig, compare: bool = True) -> Portable | None:
        """Return the parts that can travel, as the data set is now. None, with one warning, if torch's own workers prepare it.

        ``compare``: a sample may be made to check the result. If nothing can travel, it raises Untranslatable if the strategy
        needs a device, and ValueError if an argument needs a pipeline that ddlp runs itself.
        """
        try:
            found = self._translated(config)
            return self._as_described(found) if compare else found
        except Untranslatable as error:
            at_home = self._why_at_home(config)
            if at_home and self._wanted_strategy(config).needs_device:
                raise
            if config.changes_images or config.backend != "native":
                text = "output=, memory_format=, decode='fast' and backend='dali' need a pipeline that ddlp runs itself"
                raise ValueError(f"{text}: {error}") from error
            if config.on_error == "replace":
                raise ValueError(
                    "on_error='replace' needs a pipeline that ddlp runs itself: in torch's own workers the data set's code "
                    f"opens the images, and only that code can tell a bad image from a fault of its own: {error}"
                ) from error
            error.__traceback__ = None  # else the frames and the error form a cycle, which keeps the caller's iterator
            if isinstance(error, OtherSystem):
                tell_once(error.operator)
            elif not at_home or (isinstance(error, CodeBeforePoint) and not self._wanted_strategy(config).uses_device):
                pass  # the pool prepares them too; or the user has asked for this by a CachePoint
            elif self._otherwise is not None and not self._wanted_strategy(config).uses_device:
                self._warned.add(str(error))
                advise_user(f"ddlp: the host prepares all batches: {error}")
            elif self._wanted_strategy(config).uses_device and str(error) not in self._warned:
                self._warned.add(str(error))
                more = "" if not _runs_user_code(config) else f" The pool takes no part in your code: {at_home}."
                warn_user(f"ddlp: the host prepares all batches: {error}{more}")
            elif compare and not self._warned and has_images(self.dataset):  # an epoch begins that could be faster
                self._warned.add(str(error))
                advise_user(
                    "ddlp: torch's own workers prepare this loader's batches, which ddlp could do faster, for "
                    f"{error.operator}: {error.why}. loader.explain() lists all that is in the way, and what to write instead."
                )
            return None

    def _why_at_home(self, config: LoaderConfig) -> str:
        """Return why the pool takes no part in user code, if that prepares the samples; "": it does."""
        if not _runs_user_code(config):
            return "there is no pool with user_code=True"
        from ddlp.sources.usercode.host import why_at_home

        return why_at_home(self)

    def _work_for_pool(self, config: LoaderConfig) -> Work | None:
        """Return the user's code for the pool's nodes; None if the host prepares the epoch alone.

        Raises DDLPError if the code can't be pickled, and only the pool may prepare batches.
        """
        if self._why_at_home(config):
            return None
        from ddlp.sources.usercode.work import pickled

        try:
            return pickled(self)
        except DDLPError as error:
            if self._wanted_strategy(config).needs_device:
                raise
            if str(error) not in self._warned:
                self._warned.add(str(error))
                warn_user(f"ddlp: the host prepares all batches, the pool takes no part in your code: {error}")
            return None

    def _as_described(self, found: Portable) -> Portable:
        """Return ``found``. Raises Untranslatable if the data set's own samples have another structure than it describes.

        One sample is compared, once for each loader.
        """
        if not self._compared:
            self._compared, self._otherwise = True, other_structure(found.dataset)
        if self._otherwise is not None:
            raise self._otherwise()
        return found

    def _user_code(
        self, config: LoaderConfig, kept: Any, seed: int | None, base_seed: int | None, epoch: int, resume: resuming.Resume
    ) -> UserCodeIterator:
        """Return torch's own iterator, with keyed samples. ``kept`` is used again if possible."""
        finish = MoveAndTransform(config.target, config.batch_transform)
        merged = resume.deals is not None or "merged" in self._dealt  # torch keeps the sampler of the first epoch
        if isinstance(kept, UserCodeIterator):
            kept.watch(None)  # its epoch may have been broken off
        recording = recording_of(config.record, self, epoch, target=str(config.target or "cpu"))
        try:
            goes_on = isinstance(kept, UserCodeIterator) and resume.workers is None and not merged
            if goes_on and kept.has(self.num_workers, self.prefetch_factor, base_seed):
                kept.restart(self, seed, epoch, resume, finish)
            else:
                if kept is not None:
                    kept._shutdown_workers()  # its workers' data sets are not in the states that were loaded
                kept = stateful.iterate(self, seed, epoch, resume, finish, config.snapshot_every_n_steps, base_seed)
        except BaseException:
            if recording is not None:
                recording.closed()
            raise
        kept.watch(recording)
        kept.on_over = self._judged() if self._kept is None else partial(_all_of, self._judged(), self._kept.flush)
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
        work: Work | None,
    ) -> EpochIterator:
        """Return ddlp's own iterator. Its sources join it in threads of their own.

        ``work``: user code that the host and the pool prepare; None: ddlp's own code makes the batches.
        """
        strategy = self._wanted_strategy(config)
        gpu_transfer = self._gpu_transfer_for_target(config) if now.rest is None and work is None else None
        graphs = self._graphs_for(config, now, gpu_transfer)
        offload = self._offload_for(strategy, work)
        sources = () if offload is None else offload.sources(config, work)
        controller = self._controller_for(config, strategy, now, tuple(source.name for source in sources), work)
        if offload is not None and controller is not None and controller.scaler is not None:
            sources = offload.wanted(sources)  # fewer, as a rule: the controller begins with the pool's least number
        exchange = None if controller is None or controller.agreement is None else RankExchange(controller.agreement)
        ended: Callable[[], None] = (lambda: None) if offload is None else offload.began()
        observers, self._observers = self._observers, ()
        cache = self._cache_for(config, now) if work is None else None
        flush: Callable[[], None] = (lambda: None) if cache is None else cache.shelf.flush
        hooks: EpochHooks | None = None
        try:
            if offload is not None and strategy.needs_device:
                offload.check_embedded()  # only the device may prepare batches: raise here if its engine can't start
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
                    may_join=offload is not None and offload.may_join,
                    gpu_transfer=gpu_transfer,
                    graphs=graphs,
                    life=self._life,
                    target=config.target,
                    batch_transform=config.batch_transform,
                    own_steps=config.own_steps,
                    user_code=None if offload is None or work is None else offload.user_code(work),
                    most_replaced=config.most_replaced,
                    cache=cache,
                    hooks=hooks,
                    decisions=self._decisions(controller),
                    controller=controller,
                    on_closed=partial(self._epoch_closed, controller, self._remembered, exchange, self._judged(), flush, ended),
                ),
            )
        except BaseException:
            ended()
            if hooks is not None:
                hooks.closed()
            raise
        iterator.kept_alive = (*self._handles, offload)
        if exchange is not None:
            exchange.start()
        if offload is not None:
            offload.attach(sources, iterator.executor.devices)
        return iterator

    def _offload_for(self, strategy: type[Strategy], work: Work | None) -> Offload | None:
        """Return who prepares batches beside this host in the epoch that begins; None if nobody does."""
        if work is None and not strategy.uses_device:
            return None
        if self._offload is None or self._offload.pid != os.getpid():
            from ddlp.pools.offload import Offload

            self._offload = Offload()
        return self._offload

    def _controller_for(
        self, config: LoaderConfig, strategy: type[Strategy], now: Portable, sources: tuple[str, ...], work: Work | None
    ) -> Controller | None:
        """Return what decides for a strategy that wants that, else None. All epochs share it."""
        if not strategy.decides:
            self._life.rates.work()  # another strategy may come after it
            return None
        goal = config.goal or Goal()
        if self._controller is None or self._controller.goal != goal:
            agreement = agreement_of(repr((now.pipeline.digest, self.batch_size, goal)), sources)
            self._controller = Controller(self._life.rates, goal, processors(), agreement=agreement)
            known = goal.remember and work is None  # nobody knows user code by a name
            self._remembered = Remembered.of(self, config, now, goal.model) if known else None
            if self._remembered is not None and (agreement is None or agreement.leads):
                self._remembered.recall(self._controller)
                if agreement is not None:
                    agreement.known = self._controller.measured
        self._controller.part = "whole" if now.rest is None else "prefix"
        if self._controller.scaler is None and not (config.engine_devices or config.own_sources or work):
            self._scale(_pool_of(config), self._controller)
        return self._controller

    @staticmethod
    def _scale(pool: Pool | None, controller: Controller) -> None:
        """Let the controller find the number of a pool's engines, if the pool has a range of these."""
        if pool is None:
            return
        from ddlp.pools.base import range_of

        numbers = range_of(pool)
        if numbers is not None:
            controller.scaler = Scaler(*numbers)
            controller.asks(pool.want)
            pool.want(controller.engines)

    def _judged(self) -> Callable[[], None]:
        """Return what judges the number of workers after an epoch. It does not hold the loader."""
        return (lambda: None) if self._auto_workers is None else partial(self._auto_workers.ended, self._life)

    @staticmethod
    def _epoch_closed(
        controller: Controller | None, remembered: Remembered | None, exchange: RankExchange | None, judged: Callable[[], None],
        flush: Callable[[], None], ended: Callable[[], None],
    ) -> None:  # fmt: skip
        """Keep what an epoch has measured. It is static, since the epoch must not keep the loader."""
        judged()
        flush()
        if exchange is not None:
            exchange.close()
        if controller is not None and remembered is not None:
            remembered.keep(controller)
        ended()

    @property
    def decision(self) -> Decision | None:
        """What ``strategy="auto"`` has decided last, and why; None: too little is measured so far, or another strategy."""
        return None if self._controller is None else self._controller.decision

    @property
    def measured(self) -> Measured | None:
        """The figures from which ``strategy="auto"`` has decided last; None: too little is measured, or another strategy."""
        return None if self._controller is None else self._controller.measured

    def _gpu_transfer_for_target(self, config: LoaderConfig) -> GpuTransfer | None:
        """Return the transfer to an accelerator that takes copies beside its work, else None. All epochs share it."""
        if self._gpu_transfer is None:
            self._gpu_transfer = transfer_to(config.target, config.transfer)
            if self._gpu_transfer is not None:
                self._handles.append(SharedHandle())
                when_dropped(self._handles[-1], self._gpu_transfer.close)
        return self._gpu_transfer

    def _decisions(self, controller: Controller | None) -> tuple[tuple[str, str], ...]:
        """Return what was decided for the epoch that begins, as `EpochHooks.decided` takes it."""
        found = []
        if self._auto_workers is not None:
            found.append(("workers", self._auto_workers.line))
        if self._cache is not None:
            found.append(("cache", self._cache.line))
        if controller is not None:
            found.append(("devices", controller.note()))
            if controller.scaler is not None:
                found.append(("engines", f"{controller.engines} wanted"))
        return tuple(found)

    def _cache_for(self, config: LoaderConfig, now: Portable) -> SampleCache | None:
        """Return what the host keeps of samples, for an epoch. All epochs share it."""
        cache = self._cache
        if cache is not None and (cache.setting != config.cache or cache.pid != os.getpid()):
            if cache.pid == os.getpid():  # after a fork it is the parent's
                cache.close()
            cache = self._cache = None
        if isinstance(config.cache, bool):
            return None
        if cache is None:
            cache = self._cache = LoaderCache(config.cache, self._life.host_is_slow)
            self._handles.append(SharedHandle())
            when_dropped(self._handles[-1], cache.close)
        found = cache.for_epoch(now, self.num_workers)
        for text in cache.take_warnings():
            warn_user(f"ddlp: {text}")
        return found

    def _kept_samples(self, config: LoaderConfig, work: Work | None) -> tuple[KeptSamples | None, str]:
        """Return what keeps the results of the user's own steps before a CachePoint; None and why not in words, if none does.

        It is the last epoch's, if nothing has changed.
        """
        if isinstance(config.cache, bool):
            return None, ""
        if work is not None:
            return None, "the pool makes the samples too, and keeps none"
        place = place_of(config.cache)
        if place is None:
            return None, NO_HOME
        if config.cache == "auto" and self._kept is not None:
            place = self._kept.asked.place  # what it keeps itself would change its share of what is free
        asked = Asked(place, config.as_pil, config.seed or 0, self.num_workers)
        made, why = kept_samples(self.dataset, asked, self._kept)
        if made is not None and self._kept is not None and made.same_as(self._kept):
            self._kept.go_on_as(made)
            return self._kept, ""
        if made is not None and config.cache == "auto":
            advise_user(f"ddlp: {auto_line(place)}")
        if made is not None and made.frozen is not None and "frozen" not in self._warned:
            self._warned.add("frozen")
            advise_user(
                f"ddlp: CachePoint(frozen_epochs={made.frozen}): {made.frozen} epochs get the same random outcome of each "
                "sample, drawn from seed=: less variety than without it"
            )
        return made, why

    def _graphs_for(self, config: LoaderConfig, now: Portable, gpu_transfer: GpuTransfer | None) -> Graphs | None:
        """Return DALI's pipelines for an epoch. Those on a GPU are kept for the next epoch."""
        if config.backend == "native":
            return None
        wanted, graphs = stages(now), self._graphs
        if graphs is None or graphs.gpu is None or graphs.stages != wanted:
            graphs = self._graphs = Graphs(wanted, gpu_transfer if config.backend == "dali" else None)
        return graphs

    def fill_cache(self, progress: bool = True) -> Filled:
        """Make now what ``cache=`` keeps of the data set, without training: the first epoch then begins from the cache.

            loader = DDLPLoader(dataset, 256, num_workers=8, cache=ddlp.Cache("/data/cache", "200G"))
            print(loader.fill_cache())

        All samples of the data set are made once, whatever the sampler gives, in ``num_workers`` threads or processes. What is
        there already is not made again, so a call that was stopped (Ctrl-C) goes on where it was. Several may fill one
        directory at once. No order and no random number of an epoch changes.

        Args:
            progress: show a bar on standard error.

        Raises:
            DDLPError: nothing can be kept; the message says why.
        """
        config = LoaderConfig.of(self)
        if config.cache is False:
            raise DDLPError("fill_cache(): this loader has no cache; give it cache=ddlp.Cache(directory, size) or cache='auto'")
        now = self._portable_now(config)
        if now is None:
            self._kept, why = self._kept_samples(config, None)
            if self._kept is not None:
                return fill_kept(self._kept, self, self._next_epoch, progress)
        elif (found := self._cache_for(config, now)) is not None:
            return fill(found, now, max(1, self.num_workers), progress)
        else:
            why = "" if self._cache is None else self._cache.line
        raise DDLPError(f"fill_cache(): nothing can be kept: {why}. loader.explain() lists what is in the way")

    def replay(self, steps: int = 100) -> Iterator[Any]:
        """Give one batch ``steps`` times, to measure how fast training is without loading.

            for images, labels in loader.replay(200):
                ...  # the training step, as in an epoch
            print(loader.report())

        From then on the verdict in `report` uses the step's own speed: the time from one request for a batch to the next,
        without the first 5 steps. Work that is left to a GPU is waited for before the first measured step and after the last
        one, never within a step. A loop that ends early measures nothing.

        The batch is a real one, as an epoch delivers it; ``batch_transform`` is called in each step. It is made aside: no epoch
        lacks it. At the end the global generators of torch, numpy and random are put back, so later epochs are the same as
        without the replay. What the loop changes in place is as it was in the next step; that costs a copy of the batch.

        The loop trains: save the model and the optimizer before, or replay before the run that counts. Replay between epochs,
        and for all ranks at once, as a step may wait for the others.

        Raises:
            ValueError: if ``steps`` is less than 10.
            DDLPError: if an epoch has no batch, or a sampler of your own can't be copied.
        """
        return replay(self, steps)

    # -- state and report ----------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iter()'s epoch. Its random draws depend on the number.

        The number is passed on to a sampler, a batch sampler and a data set that have this method.
        """
        if self._loaded is not None and epoch != self._next_epoch and not self._resume.partly:
            # The loaded state is another epoch's. Only the states of data sets that go on from epoch to epoch still count.
            base_seed = self._resume.base_seed if self._workers_stay else None
            workers = stateful.kept(self, self._resume)
            self._loaded = resuming.between(epoch, workers, self._resume.sampler, base_seed)
            self._resume, _ = resuming.load(self._loaded)
        self._next_epoch = epoch
        resuming.set_epoch(self, epoch)
        dataset: Any = self.dataset
        if callable(getattr(dataset, "set_epoch", None)):  # by this number Hugging Face's streams shuffle anew
            dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state. After `load_state_dict` the next iter() delivers the rest of this epoch.

        Once the iterator has raised StopIteration, the epoch is over, and the state is the beginning of the next one. The state
        does not depend on the strategy, the number of workers or the devices. To go on with another number of ranks, merge the
        states of all ranks: `ddlp.merge_states`.
        """
        if self._loaded is not None:
            return {**self._loaded, "epoch": self._next_epoch}
        state, last = None if self._last is None else self._last.state(), self._last
        if state is not None and counts_batches():
            over = last.over_by_count() if isinstance(last, stateful.StreamView) else state["finished"]
            state = None if over else state
        if state is None:
            base_seed = int(self._iterator._base_seed) if self._workers_stay and self._iterator is not None else None
            state = resuming.between(self._next_epoch, stateful.lasting(self), resuming.sampler_state(self), base_seed)
            return {**state, "generators": resuming.next_draws(self)}
        generators = resuming.next_draws(self, order_drawn=state["order"] is not None)
        return {**state, "generators": generators, "cut": self._cut, **self._dealt}

    @property
    def _workers_stay(self) -> bool:
        """Whether workers are the same from epoch to epoch. DataLoader then draws its base seed once."""
        return self.persistent_workers and self.num_workers > 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the point at which `state_dict` was called. This takes effect at the next iter().

        Raises ValueError if ``state`` is not such a state. Raises ValueError as well, here or at iter(), if the state is one in
        mid-epoch and the loader that saved it has other batches, because of its batch_size, drop_last, sampler or data set.
        """
        resume, epoch = resuming.load(state)
        if self._auto_workers is not None and resume.workers is not None:
            vars(self)["num_workers"] = self._auto_workers.take(resume.workers["num_workers"])
        with self._going_on(resume):
            resume.check(resuming.cut(self))
        stateful.check_workers(self, resume)
        if resume.generators:
            resume = replace(resume, at_load=resuming.next_draws(self, "torch" not in resume.generators))
        self._resume, self._next_epoch, self._loaded = resume, epoch, state

    def report(self) -> EpochReport:
        """Return the report of the last epoch, or of the current one so far. Raises DDLPError before the first epoch.

        Without workers, user code runs in the training thread. Then ``waiting_s`` is the time in which it prepared batches.
        """
        now = self.live()
        if not now.total.epochs:
            raise DDLPError("report(): no epoch has begun; iterate over the loader first")
        return now.report

    def live(self) -> Live:
        """Return the loader's numbers now. Any thread may call it; it is quick, and holds the epoch's lock for microseconds.

        While no batch of a new epoch was asked for, the previous epoch is shown: Keras begins one more epoch after its last.

        Before the first epoch all is 0.
        """
        life, last = self._life, self._last
        if isinstance(last, EpochMemory):
            now = last.executor.live(life)
        else:
            now = counted(life.last, life.total(), length(self))
            if self._last is not last:  # an epoch has begun meanwhile: its batches may be in one part of the numbers alone
                return self.live()
        if not (self._before is None or now.report.samples or now.waiting_now_s):
            now = replace(self._before, total=now.total)
        ranks = here()
        processors_here = max(1, _cpus() // (1 if ranks is None else ranks.local_ranks))
        notes = now.report.notes if self._auto_workers is None else (*now.report.notes, self._auto_workers.line)
        told = replace(now.report, workers=self.num_workers, processors=processors_here, ceiling=life.ceiling, notes=notes)
        cache = self._cache if self._kept is None else self._kept
        if cache is not None:
            told = replace(told, cache=cache.counts, notes=(*told.notes, f"cache: {cache.line}"))
        return replace(now, report=told)

    def explain(self) -> Explanation:
        """Print and return which parts travel to a device, which do not, and why. Notebooks don't show the text twice."""
        config = LoaderConfig.of(self)
        chosen = Chosen(
            strategy=self._wanted_strategy(config),
            by_default=config.strategy is None,
            backend=config.backend,
            dali_on_gpu=config.dali_on_gpu,
            transfer=config.transfer,
            engines=bool(config.engine_devices) or config.pool is not None or not config.own_sources,
            sources=tuple(self._own_source(source) for source in config.own_sources),
            pool=None if config.pool is None else repr(_pool_of(config)),
            at_home=self._why_at_home(config) if _runs_user_code(config) else None,
            own_steps=config.own_steps,
            workers=None if self._auto_workers is None else self._auto_workers.line,
        )
        found: Portable | Untranslatable
        try:
            found = self._as_described(self._translated(config))
        except Untranslatable as error:
            found = error.with_traceback(None)  # else this frame and the error keep each other
            if isinstance(error, CodeBeforePoint):
                chosen = replace(chosen, cache=point_line(config.cache, error.marked))
        else:
            chosen = replace(chosen, cache=cache_line(config.cache, found))
        text = explain(self, chosen, found)
        print(text)
        return text

    def runs_own_code_here(self) -> bool:
        """Return whether an epoch runs the data set's own code in this process, as with ``num_workers=0``.

        Then each sample seeds the global generators of torch, numpy and random, and puts them back. Another thread that draws
        from them meanwhile gets other numbers.
        """
        if self.num_workers:
            return False
        try:
            self._translated(LoaderConfig.of(self))
        except Untranslatable:
            return True
        return False

    def _own_source(self, source: LeaseSource) -> OwnSource:
        """Describe a source of the user's own, with its capacity if it has joined the last epoch."""
        kind = type(source).__name__
        joined = (device for device in self.live().devices if device.name == source.name and device.quota)
        return next((OwnSource(source.name, kind, one.quota, one.workers) for one in joined), OwnSource(source.name, kind))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, without connections and running iterations."""
        left = dict.fromkeys(
            (
                "_iterator", "_prepared", "_before", "_last", "_offload", "_gpu_transfer", "_graphs", "_samples",
                "_cache", "_kept", "_own_processes", "_controller", "_remembered",
            )  # fmt: skip
        )
        return {**vars(self), **left, "_handles": [], "_life": Life()}

    # -- for accelerate and Ray Train ----------------------------------------------------------------------------

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, so that accelerate leaves the loader alone. If an Accelerator asks, the loader is prepared for it here."""
        prepare_where_asked(self)
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Do nothing. ``Accelerator.prepare`` sets this attribute at its end."""

    @property
    def sampler(self) -> Any:
        """The sampler, as DataLoader's. If Ray Train asks for it, the samples are shared among its workers first."""
        if "sampler" not in vars(self):
            raise AttributeError("sampler")
        share_where_asked(self)
        return vars(self)["sampler"]

    @sampler.setter
    def sampler(self, value: Any) -> None:
        vars(self)["sampler"] = value

    # -- helpers -------------------------------------------------------------------------------------------------

    def _wanted_strategy(self, config: LoaderConfig) -> type[Strategy]:
        """Return the class of the next epoch's strategy. Raises ValueError if ``strategy`` does not name one."""
        return config.wanted_strategy(self._order_is_free)

    def _order_is_free(self) -> bool:
        """Whether another order of the batches is just as good."""
        random = is_random(self._index_sampler) or not self.in_order
        return random and not torch.are_deterministic_algorithms_enabled()


def _all_of(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


_cpus = functools.cache(cpus)  # the control groups' files take too long for each call of live()


def _pool_of(config: LoaderConfig) -> Pool | None:
    """Return the pool that the loader was given; None: there is none. Raises as `ddlp.pools.given.pool_of`."""
    if config.pool is None:
        return None
    from ddlp.pools.given import pool_of

    return pool_of(config.pool)


def _runs_user_code(config: LoaderConfig) -> bool:
    """Whether there is a pool whose nodes run the user's own code."""
    pool = _pool_of(config)
    if pool is None:
        return False
    from ddlp.pools.base import nodes_of

    return nodes_of(pool) is not None
