"""Begins a loader's next epoch: decides who makes its batches, describes it, and returns its iterator."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ddlp.auto.controller import Controller
from ddlp.auto.rank_exchange import RankExchange
from ddlp.auto.store import Stored
from ddlp.begin.loader_view import LoaderView
from ddlp.caching.settings import Cache
from ddlp.epoch.begin import execute, host_of, joins_targets, resources_of
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.iterator import EpochIterator
from ddlp.epoch.sampler_reader import SamplerReader
from ddlp.process.user_warnings import warn_user
from ddlp.recording.recorder import recording_of
from ddlp.recording.user_code import user_code_recording
from ddlp.sampling import checkpoint as resuming
from ddlp.sampling.torch_loader import OrderSource, collates, index_sampler_of
from ddlp.schedule.strategies import Order
from ddlp.sources.base import Epoch
from ddlp.sources.host.torch_workers import UserCodeIterator, iterate
from ddlp.transfer.to_device import MoveAndTransform, pinned_for
from ddlp.translate.portable import Portable

if TYPE_CHECKING:
    from ddlp.pools.offload import Offload
    from ddlp.sources.usercode.work import Work

__all__ = ["begin_epoch"]


def begin_epoch(view: LoaderView, previous: Any) -> EpochIterator | UserCodeIterator:
    """Return the iterator over a loader's next epoch. ``previous``: the one before if its workers persist, else None."""
    loader, config, parts, progress = view.torch, view.config, view.parts, view.progress
    now = view.travel.now(loader, config)
    if now is not None:  # as in a worker process, which keeps the directory of the iter() that has started it
        now.dataset.open_in(previous.directory if isinstance(previous, EpochIterator) else None)
    if view.auto_workers is not None and view.auto_workers.begin(loader, config, now, parts.life):
        parts.controller = None  # what it has measured was another host
    resume = progress.begins(loader)
    if view.prepared is not None:
        in_order = loader.in_order if now is None else config.chosen.order is Order.SAMPLER
        view.prepared.begin(progress.epoch, in_order)
    cut = resuming.cut(loader, portable=now is not None)
    resume.check(cut)
    work = None if now is not None else view.travel.work_for_pool(loader, config)
    _keep_samples(view, now, work)
    base_seed = resume.base_seed
    if base_seed is None and previous is not None:  # as DataLoader: it draws the base seed once while its workers persist
        base_seed = int(previous._base_seed)
    iterator: EpochIterator | UserCodeIterator
    if now is None and work is None:
        iterator = _user_code(view, previous, base_seed)
    else:
        if isinstance(previous, EpochIterator):
            previous._shutdown_workers()
        if now is None:
            from ddlp.sources.usercode.host import indexed

            now = indexed(loader)
        iterator = _epoch_iterator(view, now, base_seed, work)
    progress.began(loader, cut)
    return iterator


def _keep_samples(view: LoaderView, now: Portable | None, work: Work | None) -> None:
    """Set what keeps the results of the user's own steps before a CachePoint, or warn why nothing does."""
    if now is not None:
        view.parts.kept = None
        return
    why = view.parts.keep_samples(view.torch.dataset, view.torch.num_workers, view.config, work, view.travel)
    if view.parts.kept is None and isinstance(view.config.cache, Cache) and view.travel.first("cache"):
        warn_user(f"ddlp: cache= keeps nothing: {why}. loader.explain() lists what is in the way")


def _seed(view: LoaderView) -> int | None:
    """Return the seed of the draws within samples; None: it is the base seed."""
    return view.config.seed if view.progress.resume.seed is None else view.progress.resume.seed


def _user_code(view: LoaderView, iterator: Any, base_seed: int | None) -> UserCodeIterator:
    """Return torch's own iterator, with keyed samples. ``iterator``: the previous one, which is used again if possible."""
    loader, config, progress, parts = view.torch, view.config, view.progress, view.parts
    seed, epoch, resume = _seed(view), progress.epoch, progress.resume
    finish = MoveAndTransform(config.target, config.batch_transform)
    if isinstance(iterator, UserCodeIterator):
        iterator.watch(None)  # its epoch may have been broken off
    recording = user_code_recording(config.record, loader, epoch, target=str(config.target or "cpu"))
    try:
        goes_on = isinstance(iterator, UserCodeIterator) and resume.workers is None and not progress.merged
        if goes_on and iterator.has(loader.num_workers, loader.prefetch_factor, base_seed):
            iterator.restart(loader, seed, epoch, resume, finish)
        else:
            if iterator is not None:
                iterator._shutdown_workers()  # its workers' data sets are not in the states that were loaded
            iterator = iterate(loader, seed, epoch, resume, finish, config.snapshot_every_n_steps, base_seed)
    except BaseException:
        if recording is not None:
            recording.closed()
        raise
    iterator.watch(recording)
    over = contextlib.ExitStack()  # closed when the epoch is over
    if parts.kept is not None:
        over.callback(parts.kept.flush)
    if view.auto_workers is not None:
        over.callback(view.auto_workers.ended, parts.life)
    iterator.on_over = over.close
    parts.life.began(iterator.counts)
    return iterator


def _epoch_iterator(view: LoaderView, now: Portable, base_seed: int | None, work: Work | None) -> EpochIterator:
    """Return ddlp's own iterator. Its sources join it in threads of their own.

    ``work``: user code that the host and the pool prepare; None: ddlp's own code makes the batches.
    """
    loader, config, parts, strategy = view.torch, view.config, view.parts, view.config.chosen
    gpu_transfer = parts.gpu_transfer_for(config) if now.rest is None and work is None else None
    graphs = parts.graphs_for(config, now, gpu_transfer)
    offload = parts.offload_for(config, work)
    sources = () if offload is None else offload.sources(config, work)
    controller = parts.controller_for(loader, config, now, tuple(source.name for source in sources), work)
    if offload is not None and controller is not None and controller.scaler is not None:
        sources = offload.wanted(sources)  # fewer, as a rule: the controller begins with the pool's least number
    exchange = None if controller is None or controller.agreement is None else RankExchange(controller.agreement)
    over = contextlib.ExitStack()  # closed when the epoch is over, or does not begin. It must not hold the loader
    if offload is not None:
        over.callback(offload.began())
    if controller is not None and parts.remembered is not None:
        over.callback(_remember, controller, parts.remembered)
    if exchange is not None:
        over.callback(exchange.close)
    cache = parts.cache_for(config, now, loader.num_workers) if work is None else None
    if cache is not None:
        over.callback(cache.shelf.flush)
    if view.auto_workers is not None:
        over.callback(view.auto_workers.ended, parts.life)
    hooks = None
    try:
        if offload is not None and strategy.needs_device:
            offload.check_embedded()  # only the device may prepare batches: raise here if its engine can't start
        hooks = view.hooks or recording_of(config.record) or EpochHooks()
        start = resuming.SamplerStart(loader, view.progress.resume, seed_drawn=base_seed is None)
        indices, base_seed = start.begin(base_seed, loader.num_workers)
        epoch = _described(view, now, base_seed, tuple(source.name for source in sources), offload)
        order = OrderSource(index_sampler_of(loader), loader.generator)
        reader = SamplerReader(epoch, order, start, indices, at_once=epoch.leases or hooks.wants_whole)
        user_code = None if offload is None or work is None else offload.user_code(work, loader, base_seed)
        resources = resources_of(
            loader,
            epoch,
            reader.plan,
            how=config.own_steps,
            gpu_transfer=gpu_transfer,
            cache=cache,
            user_code=user_code,
        )
        executor = execute(
            resources,
            reader,
            host_of(resources, graphs) if user_code is None else user_code,
            partial(strategy.make, ratio=config.ratio),
            parts.life.rates,
            hooks=hooks,
            controller=controller,
            on_closed=over.close,
        )
    except BaseException:
        over.close()
        if hooks is not None:
            hooks.closed()
        raise
    parts.life.began(executor.counts)
    try:
        iterator = EpochIterator(loader, reader, executor, parts.life)
    except BaseException:  # of torch's own, for a warning that is an error: the threads run
        executor.close()
        raise
    for decision in _decisions(view, controller):
        hooks.decided(*decision)
    iterator.kept_alive = (*parts.handles, offload)
    if exchange is not None:
        exchange.start()
    if offload is not None:
        offload.attach(sources, executor.devices)
    return iterator


def _described(
    view: LoaderView, now: Portable, base_seed: int, sources: tuple[str, ...], offload: Offload | None
) -> Epoch:
    """Return what the epoch is that begins. Its base seed is drawn."""
    loader, config = view.torch, view.config
    seed, pin = _seed(view), pinned_for(loader)  # which warns, wherever batches go
    return Epoch(
        portable=now,
        seed=base_seed if seed is None else seed,
        number=view.progress.epoch,
        base_seed=base_seed,
        resume=view.progress.resume,
        batched=collates(loader),
        batch_size=loader.batch_size or 0,
        collate=joins_targets(loader.collate_fn, now.fast_collate),
        workers=loader.num_workers,
        prefetch_factor=2 if loader.prefetch_factor is None else loader.prefetch_factor,
        sources=sources,
        may_join=offload is not None and offload.may_join,
        rank_after_rank=config.chosen.rank_after_rank,
        most_replaced=config.most_replaced,
        target=config.target,
        pin=pin if config.target is None else None,
        batch_transform=config.batch_transform,
    )


def _decisions(view: LoaderView, controller: Controller | None) -> list[tuple[str, str]]:
    """Return what was decided for the epoch that begins, as `EpochHooks.decided` takes it."""
    decisions = []
    if view.auto_workers is not None:
        decisions.append(("workers", view.auto_workers.line))
    if view.parts.cache is not None:
        decisions.append(("cache", view.parts.cache.line))
    if controller is not None:
        decisions.append(("devices", controller.note()))
        if controller.scaler is not None:
            decisions.append(("engines", f"{controller.engines} wanted"))
    return decisions


def _remember(controller: Controller, remembered: Stored) -> None:
    """Keep what an epoch has measured."""
    if controller.to_remember is not None:
        remembered.write(asdict(controller.to_remember))
