"""Begins an epoch that is described: makes what lives in it, its ledger and its executor, and returns its iterator."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, _utils

from csd_engine.prepare.cached_batch import SampleCache
from ddlp.auto.controller import Controller
from ddlp.epoch.executor import EpochExecutor
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.sampler_reader import SamplerReader
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.slots import FETCH_SLOTS, host_slots
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import Epoch, HostSource, Resources, StepRunner
from ddlp.sources.host import own_steps
from ddlp.sources.host.dali import DaliHost, Graphs
from ddlp.sources.host.native import NativeHost
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.memory_pool import SPARE_BLOCKS, MemoryPool

if TYPE_CHECKING:
    from ddlp.sources.usercode.host import UserCodeHost

__all__ = ["execute", "host_of", "joins_targets", "resources_of"]


def resources_of(
    loader: DataLoader,
    epoch: Epoch,
    plan: EpochPlan,
    *,
    how: str,
    gpu_transfer: GpuTransfer | None = None,
    cache: SampleCache | None = None,
    user_code: UserCodeHost | None = None,
) -> Resources:
    """Return what lives in an epoch of a loader. This starts the processes of the user's own steps, before any thread.

    ``how``: where the own steps run, the loader's ``own_steps``. ``user_code``: makes batches of user code, as a pool does too.
    """
    rest = epoch.portable.rest
    pool = MemoryPool(SPARE_BLOCKS, gpu_transfer is not None and gpu_transfer.pinned)
    runner: StepRunner | None = user_code
    if rest is not None:
        runner = own_steps.start(how, loader, rest, epoch.portable.epilogue, epoch.base_seed)
    fetcher = _utils.fetch._MapDatasetFetcher(loader.dataset, epoch.batched, loader.collate_fn, False)
    reader = epoch.portable.dataset.reader()
    return Resources(epoch, plan, reader, pool, gpu_transfer, runner, cache, partial(_error_of, fetcher))


def host_of(resources: Resources, graphs: Graphs | None) -> HostSource:
    """Return what makes the host's batches of a pipeline: ddlp's own code, or DALI with these ``graphs``."""
    return NativeHost(resources, resources.epoch.host_threads) if graphs is None else DaliHost(resources, graphs)


def execute(
    resources: Resources,
    reader: SamplerReader | None,
    host: HostSource,
    strategy: Callable[[Ledger, Rates], Strategy],
    rates: Rates,
    *,
    hooks: EpochHooks | None = None,
    controller: Controller | None = None,
    on_closed: Callable[[], None] = lambda: None,
) -> EpochExecutor:
    """Make the epoch's ledger and strategy, and start its executor.

    Args:
        resources: of the epoch.
        reader: reads its sampler; None: the plan has all batches.
        host: makes the host's batches.
        strategy: makes the strategy.
        rates: how fast each side is.
        hooks: watch the epoch.
        controller: decides which sources take part, for a strategy that wants that.
        on_closed: called when the epoch is over.
    """
    epoch, plan, hooks = resources.epoch, resources.plan, hooks or EpochHooks()
    length = len(plan) if plan.whole or epoch.resume.finished else None
    slots = host_slots(epoch.host_threads, epoch.prefetch_factor, epoch.leases)
    delivered = [] if reader is None else reader.delivered.ranges()
    ledger = Ledger(length, host_slots=slots, fetch_slots=FETCH_SLOTS, delivered=delivered)
    for source in epoch.sources:
        ledger.expect(source, time.monotonic())
    chosen = strategy(ledger, rates)
    if controller is not None:
        controller.begin(ledger)
    executor = EpochExecutor(resources, host, chosen, hooks=hooks, controller=controller, on_closed=on_closed)
    try:
        if reader is not None:
            reader.begin(executor)
        hooks.began(resources, chosen)
    except BaseException:  # of the user's sampler: nobody else has the executor, whose threads run
        executor.close()
        raise
    return executor


def joins_targets(collate: Callable[[Any], Any], fast_collate: bool) -> Callable[[Any], Any]:
    """Return what joins a batch's targets. ``fast_collate``: it is timm's, which gets them with images that have no pixels."""
    if not fast_collate:
        return collate
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    return lambda targets: collate([(nothing, target) for target in targets])[1]


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
