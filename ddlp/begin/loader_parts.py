"""`LoaderParts`: what a loader keeps from epoch to epoch, each part made when an epoch first needs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from csd_engine.machine.computer import processors
from csd_engine.prepare.cached_batch import SampleCache
from ddlp.auto.controller import Controller
from ddlp.auto.decide import Goal
from ddlp.auto.measured import Measured
from ddlp.auto.rank_exchange import agreement_of
from ddlp.auto.scaling import Scaler
from ddlp.auto.store import Stored
from ddlp.begin.remembered import devices_of
from ddlp.begin.travel import Travel, pool_of
from ddlp.caching.filling import Filled, fill, fill_kept
from ddlp.caching.kept_samples import Asked, KeptSamples, kept_samples
from ddlp.caching.opening import NO_HOME, LoaderCache, auto_line, place_of
from ddlp.config import LoaderConfig
from ddlp.errors import DDLPError
from ddlp.process.finalizers import SharedHandle, when_dropped
from ddlp.process.user_warnings import advise_user, warn_user
from ddlp.sources.host.dali import Graphs
from ddlp.sources.workers.keyed_samples import KeyedSamples
from ddlp.sources.workers.processes import WorkerProcesses
from ddlp.stats.live import Life
from ddlp.transfer.choose_transfer import transfer_to
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.translate.dali import stages
from ddlp.translate.portable import Portable

if TYPE_CHECKING:  # imported when they are needed: a user without devices loads nothing of what serves them
    from ddlp.pools.base import Pool
    from ddlp.pools.offload import Offload
    from ddlp.sources.usercode.work import Work

__all__ = ["LoaderParts"]


class LoaderParts:
    """What a loader keeps from epoch to epoch. A pickled copy begins with nothing.

    Attributes:
        life: the loader's numbers.
        handles: keep what iterators use too, until the last of them is dropped.
        gpu_transfer: brings batches into an accelerator's memory.
        offload: who prepares batches beside this host.
        controller: decides, for a strategy that wants that; ``remembered``: where it keeps what it has measured.
        cache: what the host keeps of samples; ``kept``: the same for user code before a `ddlp.CachePoint`.
        samples: the data set for torch's iterators without workers.
        own_processes: of the user's own steps, if they persist.
    """

    def __init__(self) -> None:
        self.life = Life()
        self.handles: list[SharedHandle] = []
        self.gpu_transfer: GpuTransfer | None = None
        self.offload: Offload | None = None
        self.controller: Controller | None = None
        self.remembered: Stored | None = None
        self.cache: LoaderCache | None = None
        self.kept: KeptSamples | None = None
        self.samples: KeyedSamples | None = None
        self.own_processes: WorkerProcesses | None = None
        self._graphs: Graphs | None = None

    def __reduce__(self) -> tuple[type[LoaderParts], tuple[()]]:
        return LoaderParts, ()

    @property
    def fixed(self) -> tuple[str, ...]:
        """The loader's arguments from which something was made that all epochs share."""
        fixed = () if self.offload is None else self.offload.made_from
        return fixed if self.gpu_transfer is None else (*fixed, "device", "transfer")

    def gpu_transfer_for(self, config: LoaderConfig) -> GpuTransfer | None:
        """Return the transfer to an accelerator that takes copies beside its work, else None."""
        if self.gpu_transfer is None:
            self.gpu_transfer = transfer_to(config.target, config.transfer)
            if self.gpu_transfer is not None:
                self.handles.append(SharedHandle())
                when_dropped(self.handles[-1], self.gpu_transfer.close)
        return self.gpu_transfer

    def graphs_for(self, config: LoaderConfig, now: Portable, gpu_transfer: GpuTransfer | None) -> Graphs | None:
        """Return DALI's pipelines for an epoch. Those on a GPU are kept for the next epoch."""
        if config.backend == "native":
            return None
        wanted, graphs = stages(now), self._graphs
        if graphs is None or graphs.gpu is None or graphs.stages != wanted:
            graphs = self._graphs = Graphs(wanted, gpu_transfer if config.backend == "dali" else None)
        return graphs

    def offload_for(self, config: LoaderConfig, work: Work | None) -> Offload | None:
        """Return who prepares batches beside this host in the epoch that begins; None if nobody does."""
        if work is None and not config.chosen.uses_device:
            return None
        if self.offload is None or self.offload.pid != os.getpid():
            from ddlp.pools.offload import Offload

            self.offload = Offload()
        return self.offload

    def controller_for(
        self, loader: DataLoader, config: LoaderConfig, now: Portable, sources: tuple[str, ...], work: Work | None
    ) -> Controller | None:
        """Return what decides for a strategy that wants that, else None."""
        if not config.chosen.decides:
            self.life.rates.work()  # another strategy may come after it
            return None
        goal = config.goal or Goal()
        if self.controller is None or self.controller.goal != goal:
            agreement = agreement_of(repr((now.pipeline.digest, loader.batch_size, goal)), sources)
            self.controller = Controller(self.life.rates, goal, processors(), agreement=agreement)
            known = goal.remember and work is None  # nobody knows user code by a name
            self.remembered = devices_of(loader, config, now, goal.model) if known else None
            if self.remembered is not None and (agreement is None or agreement.leads):
                if (measured := self.remembered.read(Measured.from_data)) is not None:
                    self.controller.know(measured)
                if agreement is not None:
                    agreement.known = self.controller.measured
        if self.controller.scaler is None and not (config.engine_devices or config.own_sources or work):
            _scale(pool_of(config), self.controller)
        return self.controller

    def cache_for(self, config: LoaderConfig, now: Portable, workers: int) -> SampleCache | None:
        """Return what the host keeps of samples, for an epoch."""
        cache = self.cache
        if cache is not None and (cache.setting != config.cache or cache.pid != os.getpid()):
            if cache.pid == os.getpid():  # after a fork it is the parent's
                cache.close()
            cache = self.cache = None
        if isinstance(config.cache, bool):
            return None
        if cache is None:
            cache = self.cache = LoaderCache(config.cache, self.life.host_is_slow)
            self.handles.append(SharedHandle())
            when_dropped(self.handles[-1], cache.close)
        opened = cache.for_epoch(now, workers)
        for text in cache.take_warnings():
            warn_user(f"ddlp: {text}")
        return opened

    def fill_cache(self, loader: DataLoader, config: LoaderConfig, travel: Travel, epoch: int, progress: bool) -> Filled:
        """Do what `DDLPLoader.fill_cache` says. Raises DDLPError if nothing can be kept."""
        if config.cache is False:
            raise DDLPError("fill_cache(): this loader has no cache; give it cache=ddlp.Cache(directory, size) or cache='auto'")
        now = travel.now(loader, config)
        if now is None:
            why = self.keep_samples(loader.dataset, loader.num_workers, config, None, travel)
            if self.kept is not None:
                return fill_kept(self.kept, loader, epoch, progress)
        elif (shelved := self.cache_for(config, now, loader.num_workers)) is not None:
            return fill(shelved, now, max(1, loader.num_workers), progress)
        else:
            why = "" if self.cache is None else self.cache.line
        raise DDLPError(f"fill_cache(): nothing can be kept: {why}. loader.explain() lists what is in the way")

    def keep_samples(self, dataset: Any, workers: int, config: LoaderConfig, work: Work | None, travel: Travel) -> str:
        """Set ``kept`` for the epoch that begins: the last one's, if nothing has changed. Returns why it is None, in words."""
        kept, self.kept = self.kept, None
        if isinstance(config.cache, bool):
            return ""
        if work is not None:
            return "the pool makes the samples too, and keeps none"
        place = place_of(config.cache)
        if place is None:
            return NO_HOME
        if config.cache == "auto" and kept is not None:
            place = kept.asked.place  # what it keeps itself would change its share of what is free
        asked = Asked(place, config.as_pil, config.seed or 0, workers)
        wanted, why = kept_samples(dataset, asked, kept)
        if wanted is not None and kept is not None and wanted.same_as(kept):
            kept.go_on_as(wanted)
            self.kept = kept
            return ""
        if wanted is not None and config.cache == "auto":
            advise_user(f"ddlp: {auto_line(place)}")
        if wanted is not None and wanted.frozen is not None and travel.first("frozen"):
            advise_user(
                f"ddlp: CachePoint(frozen_epochs={wanted.frozen}): {wanted.frozen} epochs get the same random outcome of each "
                "sample, drawn from seed=: less variety than without it"
            )
        self.kept = wanted
        return why


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
