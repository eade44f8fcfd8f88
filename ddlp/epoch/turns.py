"""Whose epoch comes next in this process, and the batches that are made for it before it begins.

Near an epoch's end the host's workers have nothing left to make. Then the first batches of the next epoch are made: of the
loader whose epochs followed on this loader's epochs before, which may be the same one or that of the evaluation. Each loader
has a `LoaderTurn`, and each epoch that may work ahead an `EpochTurn`.

At most one loader has such batches at a time, and none while two epochs are at work: so the loaders together need no more
memory for it than one epoch's prefetch.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from csd_engine.cache.shelf import CacheCounts
from ddlp.epoch.early_batches import EarlyBatches
from ddlp.process.finalizers import when_dropped
from ddlp.process.forks import no_forks
from ddlp.sampling.checkpoint import sampler_of
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.sampling.predicted_order import predicted_order
from ddlp.sources.base import EpochSpec
from ddlp.sources.host.native import get_ready
from ddlp.transfer.memory_pool import SPARE_BLOCKS, MemoryPool

__all__ = ["EpochTurn", "LoaderTurn"]

_MOST_RESTS = 63  # chances that a loader lets pass after predictions that were wrong


def _nobody() -> None:
    return None


class _Process:
    """The turns of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.at_work: weakref.WeakSet[EpochTurn] = weakref.WeakSet()
        self.last: Callable[[], LoaderTurn | None] = _nobody  # whose epoch began last, apart from those amid another one
        self.served: Callable[[], LoaderTurn | None] = _nobody  # for whose next epoch batches are made
        self.guesser: Callable[[], LoaderTurn | None] = _nobody  # near the end of whose epoch that began


_process = _Process()


def _in_child() -> None:
    global _process
    _process = _Process()


@functools.cache
def _register() -> None:
    """Forget the parent's epochs in forked children. Once, so that importing this module has no side effects."""
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=_in_child)


class LoaderTurn:
    """What a loader's next epoch is predicted from, and who follows on its epochs. The loader holds it."""

    def __init__(self, loader: Any) -> None:
        _register()
        self._loader = weakref.ref(loader)
        self.early: EarlyBatches | None = None  #: for the next epoch
        self.dropped = 0  #: batches that were begun early and not used, since the last epoch began
        self._close: weakref.finalize[Any, Any] | None = None
        self._before: Callable[[], LoaderTurn | None] = weakref.ref(self)  # the other loader whose epoch came before
        self._follower: Callable[[], LoaderTurn | None] = _nobody
        self._followed = 0  # times in a row
        self._sure = 1  # after so many times it is believed that the follower comes again
        self._misses = self._rests = 0
        self._late = False  # training draws from the generators, so a prediction holds only from the epoch's end on
        self._spec: EpochSpec | None = None
        self._counts: CacheCounts | None = None
        self._finished, self._slots = False, 0
        self._base_seed: int | None = None
        self._sampler_epoch: int | None = None
        self._epochs = 1  # from one epoch to the next by the sampler's own number

    # -- the loader's epochs -------------------------------------------------------------------------------------

    def begins(self, uses_early: bool) -> None:
        """Note that an epoch of this loader begins. ``uses_early``: it may take batches that were made for it.

        Batches that were made for another loader's epoch are dropped.
        """
        with _process.lock:
            served, guesser = _process.served(), _process.guesser()
            if served is not None and (served is not self or not uses_early):
                served._drop()
            if served is not None and served is not self and guesser is not None:
                guesser._sure = 2
            if not _process.at_work:
                if (last := _process.last()) is not None:
                    last._precedes(self)
                _process.last = weakref.ref(self)

    def take(self, spec: EpochSpec, finished: bool) -> EarlyBatches | None:
        """Return the early batches for the epoch of this spec, which begins now. None: there are none, or they don't fit."""
        with _process.lock:
            early = self._release()
        if early is None or early.fits(spec, finished):
            self._misses = self._misses if early is None else 0
            return early
        if early.begun:
            self._late, self._rests = True, min(2**self._misses - 1, _MOST_RESTS)
            self._misses += 1
        self.dropped += early.begun
        early.close()
        return None

    def began(self, loader: Any, spec: EpochSpec, finished: bool, batches: int, base_seed: int | None) -> None:
        """Keep what the next epoch is predicted from.

        Args:
            loader: the loader.
            spec: of the epoch that has begun.
            finished: as for `ddlp.sources.base.HostSource.prepare`.
            batches: how many the host may hold.
            base_seed: torch's base seed, if the next epoch has the same.
        """
        self._spec, self._finished, self._slots, self._base_seed = spec, finished, batches, base_seed
        self._counts = None if spec.cache is None else spec.cache.shelf.counts
        epoch, before = getattr(sampler_of(loader), "epoch", None), self._sampler_epoch
        if isinstance(epoch, int):
            self._epochs = 1 if before is None else epoch - before
            self._sampler_epoch = epoch

    def forget(self) -> None:
        """Predict nothing from the epoch that has begun: its batches are made in a way that is not known here."""
        self._spec = None

    # -- called under the process's lock -------------------------------------------------------------------------

    def _precedes(self, other: LoaderTurn) -> None:
        self._followed = self._followed + 1 if self._follower() is other else 1
        self._follower = weakref.ref(other)
        if other is not self:
            other._before = weakref.ref(self)

    def _next(self) -> LoaderTurn | None:
        """Return whose epoch comes next; None if that is not clear."""
        if not self._followed:
            return self._before() or self
        return self._follower() if self._followed >= self._sure else None

    def _begin(self, guesser: LoaderTurn, ended: bool) -> EarlyBatches | None:
        """Begin to make the next epoch's first batches, if a prediction is worth it. ``ended``: as for `EpochTurn.grow`."""
        if self._spec is None or self.early is not None or (not ended and (self._late or self._rests)):
            return None
        if self._rests:
            self._rests -= 1
            return None
        self.early = EarlyBatches(functools.partial(_predicted, weakref.ref(self)), self._finished, self._counts)
        self._close = when_dropped(self, self.early.close)
        _process.served, _process.guesser = weakref.ref(self), weakref.ref(guesser)
        return self.early

    def _release(self) -> EarlyBatches | None:
        early, self.early = self.early, None
        if self._close is not None:
            self._close.detach()
            self._close = None
        if _process.served() is self:
            _process.served = _process.guesser = _nobody
        return early

    def _drop(self) -> None:
        if (early := self._release()) is not None:
            self.dropped += early.begun
            early.close()


def _predicted(turn: weakref.ref[LoaderTurn]) -> EpochSpec | None:
    """Return the spec of a loader's next epoch, if iter() came now and the loader stayed as it is; None: it is not known."""
    known = turn()
    loader = None if known is None else known._loader()
    if known is None or loader is None or known._spec is None:
        return None
    before = known._spec
    order = predicted_order(
        loader._index_sampler, loader.generator, known._base_seed, known._epochs, before.plan.drawn_out
    )
    if order is None:
        return None
    batched, views = loader._auto_collation, before.plan.views
    whole = EpochPlan(order.sampler, before.dataset, whole=True, batched=batched, at_once=False, views=views)
    plan = EpochPlan((), before.dataset, whole=False, batched=batched, views=views)  # a whole epoch's indices take memory
    for k in range(min(known._slots, len(whole))):
        plan.append(np.asarray(whole.indices(k), np.int64), whole.occurrences(k))
    spec = replace(
        before,
        reader=before.dataset.reader(),
        seed=order.base_seed if loader.seed is None else loader.seed,
        epoch=loader._next_epoch,
        plan=plan,
        pool=MemoryPool(SPARE_BLOCKS, before.gpu_transfer is not None and before.gpu_transfer.pinned),
    )
    if spec.cache is not None:
        spec.cache.shelf.flush()  # what this epoch has kept can be found
    with no_forks():  # see `get_ready`
        get_ready(spec)
    return spec


class EpochTurn:
    """An epoch at work, near whose end the next one's first batches may be made. Any thread may use it."""

    def __init__(self, turn: LoaderTurn) -> None:
        self._turn = weakref.ref(turn)
        self._asked = False  # whether it is decided if there are early batches
        self._early: EarlyBatches | None = None
        self._most = 0  # early batches
        self.dropped, turn.dropped = turn.dropped, 0  #: batches that were begun for it, or instead of it, in vain
        _process.at_work.add(self)

    def grow(self, threads: int, batches: int, ended: bool = False) -> None:
        """Let so many idle threads make so many batches of the next epoch. ``ended``: this one has told its end."""
        if self._early is None and (not self._asked or ended):
            self._asked = True
            with _process.lock:
                turn = self._turn()
                following = None if turn is None or len(_process.at_work) > 1 else turn._next()
                if turn is not None and following is not None:
                    self._early = following._begin(turn, ended)
                    self._most = following._slots
        if self._early is not None:
            self._early.grow(threads, min(batches, self._most))

    def over(self, done: bool) -> None:
        """Note that the epoch is over. If it was broken off, the next one's batches are dropped."""
        _process.at_work.discard(self)
        if not done and self._early is not None:
            with _process.lock:
                served = _process.served()
                if served is not None and served.early is self._early:
                    served._drop()
        self._early = None
