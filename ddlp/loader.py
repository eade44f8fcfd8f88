"""`DDLPLoader`: torch's DataLoader, with each epoch prepared from both ends."""

from __future__ import annotations

import copy
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ddlp.auto.decide import Decision, Goal
from ddlp.auto.measured import Measured
from ddlp.begin.auto_workers import LoaderWorkers, number_of_workers
from ddlp.begin.begin_epoch import begin_epoch
from ddlp.begin.explain import Explanation, explain
from ddlp.begin.live import live, numbers_until_now, with_loader
from ddlp.begin.loader_parts import LoaderParts
from ddlp.begin.loader_view import LoaderView
from ddlp.begin.progress import Memory, Progress, stays
from ddlp.begin.travel import Travel, pool_of
from ddlp.caching.filling import Filled
from ddlp.caching.settings import Cache
from ddlp.config import LoaderConfig
from ddlp.devices.device import Device
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.replay import replay
from ddlp.errors import DDLPError, Untranslatable
from ddlp.frameworks.accelerate import Prepared, prepare_where_asked
from ddlp.frameworks.lightning import counts_batches
from ddlp.frameworks.ray import share_where_asked
from ddlp.frameworks.shards import warn_if_not_shared
from ddlp.recording.recorder import Recorder
from ddlp.sampling import checkpoint as resuming
from ddlp.sampling.generator_states import for_base_seed
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import LeaseSource
from ddlp.sources.host.torch_workers import postpone_in_workers
from ddlp.stats.live import Live
from ddlp.stats.report import EpochReport
from ddlp.translate.dali import stages

if TYPE_CHECKING:  # imported when they are needed: a user without devices loads nothing of what serves them
    from ddlp.pools.base import Pool

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
    _hooks: EpochHooks | None = None  # of the next epoch, in the place of a recording: see ddlp.observe.checked
    _travel_type = Travel
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
        self._progress = Progress()
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
        self._parts = LoaderParts()
        self._travel = self._travel_type()
        self._last: Memory | None = None  # the part of its last epoch that it keeps
        self._before: Callable[[], Live] | None = None  # the last epoch's numbers at the moment when this epoch began
        self._prepared: Prepared | None = None
        if postpone_decoding:
            postpone_in_workers()
        config = self._config()
        pool_of(config)  # raises if it is none
        config.check(self._index_sampler, self._auto_collation)
        portable = self._travel.now(self, config, compare=False)
        if portable is not None and config.backend != "native":
            stages(portable)  # raises, and names the operator, if DALI can't do it

    def _config(self) -> LoaderConfig:
        """Return the values of the arguments that DataLoader does not have, as they are now."""
        return LoaderConfig.of(self)

    def __setattr__(self, attr: str, val: Any) -> None:
        """Set an attribute for the next epoch. Raises ValueError if an object that all epochs share was made from it."""
        parts: LoaderParts | None = vars(self).get("_parts")
        if parts is not None and attr in parts.fixed:
            begun = f"after {type(self).__name__} has begun an epoch with it"
            raise ValueError(f"{attr} attribute should not be set {begun}; make another one")
        if attr == "num_workers":
            val, vars(self)["_auto_workers"] = number_of_workers(val, None)
        super().__setattr__(attr, val)

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._progress.rest is None else self._progress.rest

    # -- iteration -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        """Begin a new epoch. Each call counts as the next epoch, unless `set_epoch` gives the number."""
        keeps = stays(self)
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
        progress = self._progress
        with progress.going_on(progress.resume, self._index_sampler):
            warn_if_not_shared(self, self._prepared is not None and self._prepared.shared)
            self._before = None if progress.resume.partly else numbers_until_now(self, self._parts, self._last)
            iterator = begin_epoch(self._view(), kept)
            self._last = iterator.memory
            return iterator

    def _view(self) -> LoaderView:
        """Return the loader as the code sees it that decides for it."""
        return LoaderView(
            self, self._config(), self._parts, self._progress, self._travel, self._auto_workers, self._prepared, self._hooks
        )

    @property
    def decision(self) -> Decision | None:
        """What ``strategy="auto"`` has decided last, and why; None: too little is measured so far, or another strategy."""
        return None if self._parts.controller is None else self._parts.controller.decision

    @property
    def measured(self) -> Measured | None:
        """The figures from which ``strategy="auto"`` has decided last; None: too little is measured, or another strategy."""
        return None if self._parts.controller is None else self._parts.controller.measured

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
        return self._parts.fill_cache(self, self._config(), self._travel, self._progress.epoch, progress)

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
        return replay(self._aside(), steps, self.batch_transform, self._parts.life)

    def _aside(self) -> DDLPLoader:
        """Return a copy that gives a batch and leaves the sampler, the generators and the data set as they are.

        The host makes its batch. A data set with a state of its own is read in a worker process, which has a copy of it.
        """
        stream = isinstance(self.dataset, IterableDataset)
        here = self.num_workers == 0 and not stream and not resuming.is_stateful(self.dataset)
        aside = copy.copy(self)
        aside._parts.gpu_transfer = self._parts.gpu_transfer
        aside._progress = Progress()
        aside._progress.epoch = self._progress.epoch
        aside._progress.rest = None if stream else resuming.first_batch(self)
        vars(aside).update(
            strategy="cpu", goal=None, csd=None, record=None, batch_transform=None, generator=for_base_seed(0),
            persistent_workers=False, num_workers=0 if here else 1, prefetch_factor=None if here else 1, _auto_workers=None,
            _hooks=None,
        )  # fmt: skip
        return aside

    # -- state and report ----------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iter()'s epoch. Its random draws depend on the number.

        The number is passed on to a sampler, a batch sampler and a data set that have this method.
        """
        self._progress.set_epoch(self, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state. After `load_state_dict` the next iter() delivers the rest of this epoch.

        Once the iterator has raised StopIteration, the epoch is over, and the state is the beginning of the next one. The state
        does not depend on the strategy, the number of workers or the devices. To go on with another number of ranks, merge the
        states of all ranks: `ddlp.merge_states`.
        """
        base_seed = int(self._iterator._base_seed) if stays(self) and self._iterator is not None else None
        return self._progress.state(self, self._last, base_seed, counts_batches())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the point at which `state_dict` was called. This takes effect at the next iter().

        Raises ValueError if ``state`` is not such a state. Raises ValueError as well, here or at iter(), if the state is one in
        mid-epoch and the loader that saved it has other batches, because of its batch_size, drop_last, sampler or data set.
        """
        resume, epoch = resuming.load(state)
        if self._auto_workers is not None and resume.workers is not None:
            vars(self)["num_workers"] = self._auto_workers.take(resume.workers["num_workers"])
        self._progress.load(self, self._index_sampler, state, resume, epoch)

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
        last = self._last
        now = live(self, self._parts, last)
        if self._last is not last:  # an epoch has begun meanwhile: its batches may be in one part of the numbers alone
            return self.live()
        return with_loader(now, self._before, self.num_workers, self._auto_workers, self._parts)

    def explain(self) -> Explanation:
        """Print and return which parts travel to a device, which do not, and why. Notebooks don't show the text twice."""
        text = explain(self._view(), self.live().devices)
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
            self._travel.translated(self, self._config())
        except Untranslatable:
            return True
        return False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, without connections and running iterations."""
        left = dict.fromkeys(("_iterator", "_prepared", "_before", "_last"))
        own = {"_parts": LoaderParts(), "_progress": copy.copy(self._progress), "_travel": copy.copy(self._travel)}
        return {**vars(self), **left, **own}

    # -- for accelerate and Ray Train ----------------------------------------------------------------------------

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, so that accelerate leaves the loader alone. If an Accelerator asks, the loader is prepared for it here."""
        self._prepared = prepare_where_asked(self, self._prepared)
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
