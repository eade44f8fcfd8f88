"""Runs one epoch: the ledger, the strategy, and the threads that act on the strategy's answers.

The executor is a monitor: one lock around the ledger, and a condition for each kind of thread (`ddlp.epoch.conditions`). Each
thread asks the strategy one question, and acts on the answer outside the lock. The training thread asks `next_delivery`, the
host's workers ask `next_claim`, and the fetchers ask `next_fetch`. Leases are given whenever something has changed. No thread
polls: a waiting thread is woken when there is an answer for it. The training thread and the workers also look once a second for
events that only the clock can show (a lease has stalled, a fetch hangs).

The steps of a batch, each with its position:

    host's worker     `_host_worker` claims it; `_prepare`: the source prepares it, `_apply_epilogue`; `_hand_in`
    device            `_give_leases`; the source calls `published`; a fetcher: `_fetch`, `_apply_epilogue`, hands in
    training thread   `next_batch` takes it; the iterator joins targets and gives it to the training loop
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import _utils

from csd_engine.cache.shelf import Shelf
from csd_engine.errors import WrongPixels
from ddlp.epoch.conditions import Conditions
from ddlp.epoch.device_state import DeviceState
from ddlp.epoch.gpu_prefetch import GpuPrefetcher, PendingTransfer, pending_transfer
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.prepared import Delivered
from ddlp.epoch.step_clock import EventClock
from ddlp.epoch.threads import Threads
from ddlp.epoch.user_messages import UserMessages
from ddlp.planning.controller import Controller
from ddlp.process.user_warnings import warn_user
from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import RETIRED, Cancel, Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.slots import FETCHERS
from ddlp.schedule.strategies import STALLED_AT_LEAST_S, Strategy
from ddlp.sources.base import AttachedSource, BatchState, Capacity, EpochSpec, HostSource, PreparedBatch, Unwanted
from ddlp.stats.engines import devices_live
from ddlp.stats.live import Life, Live
from ddlp.stats.replaced import ReplacedSamples
from ddlp.stats.report import Counts, EpochReport
from ddlp.stats.thread_cpu import thread_cpu_s, thread_queued_s

__all__ = ["EpochExecutor"]

LOOK_UP_S = 1.0
_UNUSABLE = 5  # batches of a device that are missing or damaged, in a row: then it is not used any more
_MOST_TOLD = 16  # warnings of a device's batches that are missing or damaged
WAITING_S = 0.05  # the devices are told of a longer wait, so that they work for this epoch first


class _Fetch(NamedTuple):
    """A published batch that a fetcher fetches."""

    position: int
    device: str
    lease: int
    source: AttachedSource
    handle: Any


class _Made(NamedTuple):
    """A batch that a worker of the host hands in.

    Attributes:
        batch: None: not wanted any more.
        busy_s: seconds that it took; 0: not made.
    """

    batch: PreparedBatch | PendingTransfer | None
    busy_s: float


class EpochExecutor:
    """Runs an epoch from its first batch to its last, or to `close`. It is the `EpochSink` of its lease sources.

    Args:
        spec: the epoch's spec.
        ledger: records who holds which batch. It has the devices that are expected already.
        strategy: chooses the next source.
        rates: how fast each side is. They are the loader's, and outlive the epoch.
        host: prepares the host's batches.
        workers: the number of threads that ask ``host``.
        fetchers: the number of threads that fetch devices' batches; 0: no device can join.
        on_cpu: batches are finished in the CPU's memory, the host's own sample by sample.
        pin: a kind of device, for which batches are copied to torch's page-locked memory; None: they are not copied. torch's
            memory is used since torch knows of the copies that training starts from there, and does not use the memory again
            before they are done. From the pool's page-locked memory only ddlp starts copies.
        full_batch: the number of samples in a full batch; 0: not known yet.
        replaced: counts the samples that are replaced, since their images are bad.
        hooks: told what the threads do.
        controller: decides which devices take part, for a strategy that wants that.
        clock: measures the training steps of an accelerator; None: the time between two batches counts.
        on_closed: called when the epoch is over and all threads have ended.
    """

    def __init__(
        self,
        spec: EpochSpec,
        ledger: Ledger,
        strategy: Strategy,
        rates: Rates,
        host: HostSource,
        *,
        workers: int,
        fetchers: int,
        on_cpu: bool,
        pin: str | None,
        full_batch: int,
        replaced: ReplacedSamples,
        hooks: EpochHooks,
        controller: Controller | None = None,
        clock: EventClock | None = None,
        on_closed: Callable[[], None],
    ) -> None:
        self.spec, self.ledger, self.strategy, self.rates, self.hooks = spec, ledger, strategy, rates, hooks
        self._host, self._on_cpu, self._pin, self._on_closed = host, on_cpu, pin, on_closed
        self._controller, self._clock = controller, clock
        self._workers = workers
        rates.epoch_begins(workers, full_batch, math.prod(spec.shape) * spec.plan.views)
        self._chunks = ClaimChunker(ledger, strategy, rates.host)
        self._ready: dict[int, PreparedBatch | PendingTransfer] = {}
        self._prefetcher = None if spec.gpu_transfer is None else GpuPrefetcher(self._ready, ledger, strategy)
        self._conditions = Conditions(ledger, strategy, self._chunks, self._prefetcher)
        self._lock = self._conditions.lock
        self._began_with = frozenset(ledger.devices)
        self._devices: dict[str, DeviceState] = {device: DeviceState() for device in ledger.devices}
        self._published: dict[int, tuple[AttachedSource, Any]] = {}  # lease -> the source that fetches it, and its handle
        self._ends = threading.Condition(self._lock)  # notified when a device's part in the epoch ends, or the epoch
        self._messages = UserMessages()
        self.counts = Counts(ledger, spec.epoch, replaced=replaced)
        self.handing: int | None = None  #: the last delivered batch, until the iterator gives it to the training loop
        self._keeps = spec.cache is None or spec.cache.shelf.wanted()
        self._given: tuple[float, float] | None = None  # training's last batch: when it got it, and its part of a full batch
        self._closing = False
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._fetcher_numbers = itertools.count()
        self._threads = Threads()
        try:
            host.begin(self)
            for number in range(workers):
                self._threads.start(partial(self._work, partial(self._host_worker, number)))
            for _ in range(fetchers):
                self._start_fetcher()
        except BaseException:  # no more threads can be started, or Ctrl-C
            self.close()
            raise

    # -- the training thread -------------------------------------------------------------------------------------

    def next_batch(self, timeout_s: float = 0.0) -> Delivered | None:
        """Return the next batch; None once all are delivered.

        If a sample can't be prepared, raises its error once, in its batch's place. Raises RuntimeError after ``timeout_s``
        (0: never), as DataLoader does.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("this iterator belongs to the parent process; call iter() on the loader in this one")
        began = time.monotonic()
        deadline = began + timeout_s if timeout_s > 0 else None
        told = False
        with self._lock, contextlib.ExitStack() as at_end:
            step = self._step_ended(began)
            while True:
                if self._error is not None:
                    error, self._error = self._error, None
                    try:
                        raise error
                    finally:
                        del error  # its traceback holds this frame: the cycle would keep the loader
                if self.ledger.done:
                    if self.counts.ended_s is None:
                        self.counts.over()
                    return None
                if self._closing:  # the ready batches are gone
                    raise RuntimeError("this iteration was closed; call iter() on the loader for a new one")
                if (position := self.strategy.next_delivery()) is not None:
                    break
                now = time.monotonic()
                if (late := self.strategy.late_device(now)) is not None:
                    self._too_late(late)
                if self.strategy.hanging_fetch(now) is not None:
                    self._act()
                if deadline is not None and now >= deadline:
                    raise RuntimeError(f"DataLoader timed out after {timeout_s} seconds")
                if not told and now - began >= WAITING_S:
                    told = True
                    at_end.callback(self._tell_waiting, False)  # also if it ends by an error, or by Ctrl-C
                    self._tell_waiting(True)
                self.counts.asked_s = began
                limit = min(LOOK_UP_S if told else WAITING_S, math.inf if deadline is None else max(0.0, deadline - now))
                self._conditions.wait(self._conditions.training, limit)
            batch = self._ready[position]
            if isinstance(batch, PendingTransfer):
                batch = batch.there()  # if there is no room this raises, and the batch stays the next one
            failed = batch.state is BatchState.FAILED
            self.handing = None if failed else position
            side = self.ledger.deliver(position)
            del self._ready[position]
            now, samples = time.monotonic(), self.spec.plan.size(position)
            self._given = now, samples / self.full_batch
            self.counts.delivered(position, side, samples, began, now)
            if self._controller is not None:
                self._decide(self._controller, now - began, step)
            if self.spec.cache is not None:
                self._tell_keeping(self.spec.cache.shelf)
            if self._clock is not None:
                self._clock.begins()
            if batch.replaced:
                batch = self._counted(position, batch)
                failed = batch.state is BatchState.FAILED  # `handing` stays: a state that is saved now has the batch to come
            self._act()
        if failed:
            assert batch.error is not None
            try:
                raise batch.error
            finally:
                del batch  # as above
        return Delivered(position, side, batch)

    def _step_ended(self, now: float) -> tuple[float | None, float]:
        """Note that training asks for a batch.

        Returns the seconds since it got the one before (None: it is the first) and the size of that, as a part of a full one.
        """
        if self._given is None:
            return None, 0.0
        given_s, part = self._given
        self._given = None
        if self._clock is None:
            self.rates.trained(now - given_s, part)
        else:
            self._clock.ends(part)
            for step in self._clock.done():
                self.rates.trained(*step)
        return now - given_s, part

    def _decide(self, controller: Controller, waited_s: float, step: tuple[float | None, float]) -> None:
        """Let the controller note a batch, and tell what it has decided."""
        engines, before = controller.engines, controller.offloads
        news = controller.delivered(waited_s, *step)
        if news is not None:
            self._messages.advise(news)
        if news is not None or controller.offloads != before:
            self.hooks.decided("devices", news or controller.note())
        if controller.scaler is not None and controller.engines != engines:
            why = f"{controller.engines} wanted instead of {engines}: {controller.scaler.why}"
            self.counts.changed("pool", why)
            self.hooks.decided("engines", why)

    def _tell_keeping(self, shelf: Shelf) -> None:
        """Tell if samples that the cache lacks are kept from now on, or are not any more."""
        if (keeps := shelf.wanted()) != self._keeps:
            self._keeps = keeps
            why = "samples are kept: training waits" if keeps else "no more samples are kept: training does not wait"
            self.hooks.decided("cache", why)

    def _counted(self, position: int, batch: PreparedBatch) -> PreparedBatch:
        """Count the replaced samples of a delivered batch. Returns the batch; a failed one if they are too many by now."""
        replaced = self.counts.replaced
        if (warning := replaced.add(position, batch.replaced)) is not None:
            self._messages.warn(warning)
        error = replaced.error
        return batch if error is None else PreparedBatch.failed(error)

    def extend(self, batches: int, ended: bool) -> None:
        """Note that the sampler gave further batches, or has ended."""
        with self._lock:
            if batches:
                self.rates.first_batches(self.spec.plan.largest)  # before the first of them is made
            self.ledger.extend(batches)
            if ended:
                self.ledger.close()
            self._act()

    def report(self) -> EpochReport:
        """Return the report of the epoch so far."""
        with self._lock:
            notes = self._messages.for_report()
            if self._controller is not None:
                notes += (self._controller.note(),)
            return self.counts.report(self.strategy.name, self.rates, self.full_batch, notes)

    def live(self, life: Life) -> Live:
        """Return the epoch's numbers at this moment. ``life``: the numbers of its loader."""
        with self._lock:
            ledger = self.ledger
            return Live(
                self.report(), life.total(), ledger.length if ledger.closed else None, len(ledger.delivered),
                self.counts.waiting_now_s, len(ledger.ready_host), len(ledger.ready_csd),
                devices_live(ledger, self.rates, self.full_batch),
            )  # fmt: skip

    def delivered(self) -> list[tuple[int, int]]:
        """Return the delivered positions, as ranges."""
        with self._lock:
            return self.ledger.delivered.ranges()

    def take_messages(self) -> tuple[list[str], list[str]]:
        """Return the warnings, and the advice, that the training thread should give to the user, each once."""
        if not self._messages:  # the usual case: saves taking the lock
            return [], []
        with self._lock:
            return self._messages.take(time.monotonic(), self.ledger.done), self._messages.take_advice()

    def close(self) -> None:
        """End all threads and give the devices' space back. May be called twice, and from any thread."""
        if os.getpid() != self._pid:
            return  # a forked child: the threads and the devices are its parent's
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if self.counts.ended_s is None:
                self.counts.over()
            sources = [device.source for device in self._devices.values() if device.source is not None]
            for device in self._devices.values():
                device.source = None
            self._conditions.wake_all()
            self._ends.notify_all()
        try:
            for source in sources:
                source.close()  # first, so that nobody waits for a batch that is being fetched
            if self.spec.own_steps is not None:
                self.spec.own_steps.close()
            if not self._threads.join(STALLED_AT_LEAST_S) and not self._messages.hanging:  # else the user was told
                warn_user("ddlp: a device's spool does not answer; the threads that read from it are left to themselves")
        finally:  # Ctrl-C: the threads end by themselves
            self._ready.clear()
            self.spec.reader.close()
            self.spec.pool.close()
            self._host.close()
            self._on_closed()
            self.hooks.closed()

    def _work(self, loop: Callable[[], None]) -> None:
        """Run a thread. An error that its loop does not expect ends the epoch, since the thread's batches would never come."""
        try:
            loop()
        except BaseException as error:  # raised again in the training thread
            with self._lock:
                self._error = None if self._closing else self._error or error
            self.close()

    # -- the host's workers --------------------------------------------------------------------------------------

    def _host_worker(self, number: int) -> None:
        """Claim some batches, prepare each, and hand them in."""
        cpu = thread_cpu_s()
        chunk: list[tuple[int, int]] = []
        while chunk := chunk or self._next_chunk(number):
            made = [self._prepare(number, position, claim) for position, claim in chunk]
            with self._lock:
                cpu, before = self.counts.cpu(cpu), cpu
                self._hand_in(chunk, made, cpu - before)
                chunk = []
                if not self._closing and self._prefetcher is None:
                    chunk = self._chunks.claim(time.monotonic())  # while the lock is held anyway
                self._act()
            made.clear()  # an error's traceback keeps the loader: drop it before this thread waits
        with self._lock:
            self.counts.queued_s += thread_queued_s()

    def _next_chunk(self, number: int) -> list[tuple[int, int]]:
        """Wait for batches to prepare. Returns (position, claim) of each; an empty list if the epoch is over."""
        self.hooks.rest_began("host", number)
        chunk: list[tuple[int, int]] = []
        while True:
            if self._prefetcher is not None:
                self._prefetcher.bring(self._lock)
            with self._lock:
                if self._closing:
                    break
                if chunk := self._chunks.claim(time.monotonic()):
                    self._act()
                    break
                if self._prefetcher is None or self._prefetcher.next() is None:
                    self._conditions.wait(self._conditions.workers, LOOK_UP_S)
        self.hooks.rest_ended("host", number, not chunk)
        return chunk

    def _prepare(self, worker: int, position: int, claim: int) -> _Made:
        """Prepare a batch."""
        began, outcome = time.monotonic(), "failed"
        self.hooks.host_batch_began(worker, position)
        try:
            batch = self._host.prepare(position, partial(self._wanted, claim), self._on_cpu)
            ready = self._apply_epilogue(position, batch)
            outcome = "made"
            return _Made(ready, time.monotonic() - began)
        except Unwanted:
            outcome = "dropped"
            return _Made(None, 0.0)
        except BaseException as error:  # raised again in the training thread, in this batch's place
            return _Made(PreparedBatch.failed(error), 0.0)
        finally:
            self.hooks.host_batch_ended(worker, position, outcome)

    def _apply_epilogue(self, position: int, batch: PreparedBatch) -> PreparedBatch | PendingTransfer:
        """Make a batch ready for the training thread. The thread that has prepared or fetched it calls this."""
        spec = self.spec
        if batch.state in (BatchState.ON_DEVICE, BatchState.FAILED):
            return batch
        if spec.own_steps is not None:
            return spec.own_steps.finish(spec, position, batch)
        if spec.gpu_transfer is not None:  # it is finished on the GPU, shortly before its turn
            return pending_transfer(spec.gpu_transfer, spec.epilogue, batch)
        if self._on_cpu and batch.state is BatchState.BYTES:
            images = spec.epilogue(batch.images, batch.boxes, pool=spec.pool)
            batch = replace(batch, images=images, boxes=None, state=BatchState.TENSORS)
        if self._pin is not None:
            batch = replace(batch, images=_utils.pin_memory.pin_memory(batch.images, self._pin))
        return batch

    def _hand_in(self, chunk: list[tuple[int, int]], made: list[_Made], cpu_s: float) -> None:
        """Hand in batches that a worker of the host has prepared in ``cpu_s`` processor seconds. Called under the lock.

        It is a method of its own so that no local name keeps a batch afterwards.
        """
        for (position, claim), (batch, busy_s) in zip(chunk, made, strict=True):
            if busy_s:
                self.rates.host.add(busy_s, self._part(position))
            if self.ledger.made(claim) and batch is not None:
                self._ready[position] = batch
        if all(one.busy_s for one in made):
            self.rates.host_cpu.add(cpu_s, sum(self._part(position) for position, _ in chunk))

    def _wanted(self, claim: int) -> bool:
        """Whether a claimed batch is wanted still. It is asked before each sample, so without the lock; `made` decides."""
        return not self._closing and self.ledger.wanted(claim)

    # -- the devices' batches ------------------------------------------------------------------------------------

    def _start_fetcher(self) -> None:
        number = next(self._fetcher_numbers) % FETCHERS  # a later one replaces a fetcher that hangs
        self._threads.start(partial(self._work, partial(self._fetcher, number)), may_hang=True)

    def _fetcher(self, number: int) -> None:
        """Take a published batch, fetch it from its source, and hand it in."""
        cpu = thread_cpu_s()
        fetch: _Fetch | None = None
        while (fetch := fetch or self._next_fetch(number)) is not None:
            position, device, lease, _, _ = fetch
            batch, trouble, vanished, seconds = self._fetch(number, fetch)
            with self._lock:
                cpu, before = self.counts.cpu(cpu), cpu
                if seconds:
                    self.rates.fetched(device, seconds, self._part(position), FETCHERS, cpu - before)
                given_up = lease not in self.ledger.fetching
                if batch is None:
                    # The loss of a device was told already, and a file may be removed once the host's copy was first.
                    if self.ledger.damaged(lease) and self.ledger.devices[device].alive and not self._closing:
                        self._unusable(device, position, trouble, vanished)
                elif self.ledger.verified(lease):
                    self._devices[device].unusable_in_a_row = 0
                    self._ready[position] = batch
                fetch = None if given_up else self._take_fetch()  # while the lock is held anyway
                self._act()
            batch = None  # dropped before this thread waits
            if given_up:
                return  # another thread has replaced this one

    def _next_fetch(self, number: int) -> _Fetch | None:
        """Wait for a published batch. Returns None if the epoch is over."""
        self.hooks.rest_began("transfer", number)
        fetch: _Fetch | None = None
        with self._lock:
            while not self._closing:
                if (fetch := self._take_fetch()) is not None:
                    self._conditions.wake(False)
                    break
                self._conditions.wait(self._conditions.fetchers, None)
        self.hooks.rest_ended("transfer", number, fetch is None)
        return fetch

    def _take_fetch(self) -> _Fetch | None:
        """Take the published batch that should be fetched now, if any. Called under the lock."""
        if self._closing or (position := self.strategy.next_fetch()) is None:
            return None
        device, lease = self.ledger.fetch(position, time.monotonic())
        source, handle = self._published.pop(lease)
        return _Fetch(position, device, lease, source, handle)

    def _fetch(self, number: int, fetch: _Fetch) -> tuple[PreparedBatch | PendingTransfer | None, str, bool, float]:
        """Fetch a published batch. Returns it; or None with the error's text, and whether the file is gone.

        Last come the seconds that its source took; 0 if it did not come.
        """
        position, device, lease, source, handle = fetch
        ready: PreparedBatch | PendingTransfer | None = None
        trouble, vanished, seconds = "", False, 0.0
        self.hooks.fetch_began(number, device, lease, position, handle)
        began = time.monotonic()
        try:
            batch = source.fetch(lease, position, handle)
            seconds = time.monotonic() - began
            if batch.state is not BatchState.FAILED:
                self.hooks.fetch_read(lease, position, batch)
            if self.spec.own_steps is not None:  # the user's steps may be slow: the fetch must not count as hanging
                with self._lock:
                    self.ledger.read(lease)
            ready = self._apply_epilogue(position, batch)
            if isinstance(ready, PendingTransfer):
                ready.call()  # at once, since only few of the devices' batches are in memory
        except WrongPixels as error:
            trouble = str(error)
            self._distrust(device, trouble)
        except BaseException as error:
            trouble, vanished = str(error) or type(error).__name__, isinstance(error.__cause__, FileNotFoundError)
        self.hooks.fetch_ended(number, device, lease, position, trouble)
        return ready, trouble, vanished, seconds

    # -- calls by the sources (EpochSink) ------------------------------------------------------------------------

    def expect(self, name: str) -> None:
        """Note that a further device is about to join."""
        with self._lock:
            if name not in self._devices:
                self._devices[name] = DeviceState()
                self.ledger.expect(name, time.monotonic())

    def joined(self, name: str, source: AttachedSource, capacity: Capacity) -> None:
        """Give a device leases from now on, unless its source was lost meanwhile. A lost device comes back by this call."""
        self.hooks.joined(name, capacity, self.rates.device(name).ranks)
        with self._lock:
            before: AttachedSource | None = source
            device = self._devices[name]
            if not self._closing and not device.barred and source.open:
                device.gone = False
                if not self.ledger.devices[name].failing:  # else its next published batch tells that it is back
                    self._messages.back(name)
                before = device.source
                self.rates.joined(name, capacity.workers)
                if self._controller is not None:
                    self._controller.transports[name] = capacity.transport
                    if capacity.carried:
                        self._controller.carried.add(name)
                came = name not in self._began_with or device.source is not None
                self.ledger.join(name, quota=capacity.batches, window=capacity.workers + capacity.ahead, node=capacity.node)
                if came:
                    self.counts.changed(name, "it is back" if before is not None else "it came")
                self._drain()  # so that the previous source gets the releases of the batches that it has published
                device.source = source
                self._act()
        if before is not None:
            before.close()

    def published(self, name: str, lease: int, handle: Any, busy_s: float) -> None:
        """Note that a device's batch is ready, for example in its spool."""
        with self._lock:
            position, source = self.ledger.devices[name].outstanding.get(lease), self._devices[name].source
            self.hooks.published(name, lease, -1 if position is None else position, busy_s)
            if self.ledger.published(name, lease) and position is not None and source is not None:  # None: closed meanwhile
                self._published[lease] = source, handle
                self.counts.published(position)
                self.rates.device(name).add(busy_s, self._part(position))
                if not self.ledger.devices[name].retiring:
                    self._messages.back(name)
            self._act()

    def failed(self, name: str, lease: int, reason: str, *, fatal: bool, told: bool) -> None:
        """Note that a device could not make a batch. ``told``: the user knows the reason already.

        The host makes the batch. If the sample is at fault, it raises the sample's error.
        """
        self.hooks.lease_failed(name, lease, "" if told else reason)
        with self._lock:
            account = self.ledger.devices[name]
            if lease not in account.outstanding:
                return  # the lease was taken back meanwhile
            self.ledger.failed(name, lease, fatal)
            if account.failing:  # it would take all free batches, and leave each to the host
                self.lost(name, f"it can't prepare batches: {reason}")
            elif not told:
                self._messages.warn(f"{name} could not prepare a batch, the host does: {reason}")
            self._act()

    def progressed(self, name: str, done: dict[int, int]) -> None:
        """Note how many samples of each lease a device has made."""
        with self._lock:
            for lease, samples in done.items():
                position = self.ledger.devices[name].outstanding.get(lease)
                if position is not None:
                    images = self.spec.plan.size(position) * self.spec.plan.views
                    self.ledger.progressed(name, lease, samples / max(1, images), time.monotonic())

    def measured(self, name: str, batches: Iterable[tuple[int, float]]) -> None:
        """Note (samples, busy seconds) of batches that a device has made for other ranks."""
        with self._lock:
            for samples, busy_s in batches:
                self.rates.device(name).add(busy_s, samples / self.full_batch)
            self._act()

    def shared(self, name: str, ranks: int) -> None:
        """Note that ``ranks`` ranks share a device."""
        with self._lock:
            self.rates.shared(name, ranks)

    def absent(self, name: str, error: Exception, told: bool) -> bool:
        """Note that an engine of this process does not start. The host makes its batches until it does, if the strategy allows.

        Warns of it unless it was ``told`` before, and returns whether it is told now. The report of each epoch tells it.
        """
        reason = str(error)
        with self._lock:
            if self.strategy.needs_device and not set(self.ledger.devices_there) - {name}:
                self.lost(name, reason, error)
                return told
            if self._closing or self._devices[name].gone:
                return told
            self.remark(name, f"it did not start: {reason}")
            if not told:
                self._messages.warn(
                    f"the {name} takes no part yet, the host prepares its batches: {reason.rstrip('.')}. "
                    "It is tried again from time to time, without a further warning; strategy='cpu' does without it."
                )
            self.lost(name, reason, told=True)
            return True

    def retires(self, name: str, reason: str, begun: Collection[int] | None = None) -> None:
        """Note that a device finishes what it has, and gets no more leases. ``begun``: of its leases; None: it finishes all."""
        with self._lock:
            account = self.ledger.devices[name]
            if self._closing or not account.alive or (account.retiring and begun is None):
                return
            is_news = not account.retiring
            self.ledger.retire(name, begun)
            if is_news:
                self.hooks.retires(name, reason)
                self._messages.retires(name, reason)
                self.counts.changed(name, f"it retires: {reason}")
            self._act()

    def lost(self, name: str, reason: str, error: BaseException | None = None, told: bool = False) -> None:
        """Note that a device is gone: its unpublished batches go back to the host. ``error`` is raised in the training thread.

        Warns of the loss, unless it was ``told`` or there is an ``error``.
        """
        if not self._closing:
            self.hooks.lost(name, reason)
        with self._lock:
            device = self._devices[name]
            told = told or self.ledger.devices[name].has_retired
            if self._closing or device.gone:
                return
            device.gone = True
            self._ends.notify_all()
            self._messages.gone(name, None if told or error is not None else reason)
            self._messages.notes.pop(name, None)
            was_there = self.ledger.devices[name].alive and not self.ledger.devices[name].retiring
            self.ledger.leave(name, time.monotonic())
            if was_there:
                self.counts.changed(name, reason)
            if error is not None:
                device.barred = True
                self._error = error
            self._act()

    def note(self, name: str, text: str) -> None:
        """Keep, for the report, what a device says about itself (its spool is full, ...)."""
        with self._lock:
            self._messages.notes[name] = text
            self.ledger.hold_back(name, bool(text))
            self._act()

    def remark(self, name: str, text: str, about: str = "") -> None:
        """Keep a remark about a device for the report. It replaces an earlier remark ``about`` the same subject."""
        with self._lock:
            self._messages.remarks[name, about] = text

    def warn(self, text: str) -> None:
        """Have the training thread warn the user."""
        with self._lock:
            self._messages.warn(text)

    def for_host(self, most: int) -> list[int]:
        """Return the positions that the host makes next, at most ``most``."""
        with self._lock:
            return self.ledger.for_host(most)

    def lost_or_over(self, name: str) -> bool:
        """Wait until a device is lost, or the epoch is over for it. True if it was lost and may come back."""
        with self._lock:
            device = self._devices[name]
            while not (self._closing or device.gone):
                self._ends.wait()
            return not self._closing and not device.barred

    def over_within(self, seconds: float) -> bool:
        """Wait for ``seconds``, but not beyond the epoch's end. True if the epoch is over."""
        with self._lock:
            return self._ends.wait_for(lambda: self._closing, seconds)

    def _unusable(self, name: str, position: int, trouble: str, vanished: bool) -> None:
        """Note that a device's batch is missing or damaged. Such ones cost time: a device that makes no others is barred."""
        device = self._devices[name]
        device.unusable += 1
        device.unusable_in_a_row += 1
        if device.unusable_in_a_row >= _UNUSABLE:
            self._distrust(name, f"{_UNUSABLE} of its batches in a row could not be used, the last one since {trouble}")
        elif device.unusable <= _MOST_TOLD:
            text = f"{name}'s copy of batch {position} was not used ({trouble}); the host prepares it again."
            text += " Further ones are not told." if device.unusable == _MOST_TOLD else ""
            if vanished:
                self._messages.vanished(name, text, time.monotonic())
            else:
                self._messages.warn(text)

    def _distrust(self, name: str, reason: str) -> None:
        """Note that a device's batches can't be trusted: none is used from now on. The device may be lost by now."""
        with self._lock:
            self.ledger.distrust(name, time.monotonic())
            for position in [position for position in self._ready if not self.ledger.is_ready(position)]:
                del self._ready[position]
            device = self._devices[name]
            if not device.barred:
                device.gone = device.barred = True
                self._ends.notify_all()
                self._messages.warn(f"device {name} is not used any more in this epoch: {reason.rstrip('.')}.")
            self._act()

    # -- under the lock ------------------------------------------------------------------------------------------

    @property
    def full_batch(self) -> int:
        """The number of samples in a full batch."""
        return max(1, self.rates.full_batch)

    def _part(self, position: int) -> float:
        """Return a batch's size as a part of a full batch."""
        return self.spec.plan.size(position) / self.full_batch

    def _too_late(self, name: str) -> None:
        """Stop waiting for a device that takes too long to join. It is used all the same once it joins."""
        self.ledger.no_longer_expect(name)
        self._messages.warn(f"device {name} is not ready yet; the host prepares its batches until it is.")
        self._act()

    def _act(self) -> None:
        """Act after every event: give up hanging fetches, tell sources of dropped leases, give leases, wake threads."""
        while not self._closing and (hanging := self.strategy.hanging_fetch(time.monotonic())) is not None:
            self._messages.hangs(self.ledger.give_up(hanging))
            with contextlib.suppress(RuntimeError):  # no more threads can be started: one fetcher less
                self._start_fetcher()  # replaces the one that hangs
        self._drain()  # before the leases, since it gives back the space that they need
        if not self._closing:
            self._give_leases()
            devices = self.ledger.devices
            while (retired := next((name for name in devices if devices[name].has_retired), None)) is not None:
                self.lost(retired, RETIRED)
        self._conditions.wake(self._error is not None)

    def _drain(self) -> None:
        while self.ledger.effects:
            effect = self.ledger.effects.popleft()
            self._published.pop(effect.lease, None)
            if (source := self._devices[effect.device].source) is None:
                continue
            if isinstance(effect, Cancel):
                self.hooks.lease_cancelled(effect.device, effect.lease)
                source.cancel(effect.lease)
            else:
                source.release(effect.lease)

    def _give_leases(self) -> None:
        for name, device in self._devices.items():  # without a source it has not joined; a lost one takes no leases
            while device.source is not None and (position := self.strategy.next_lease(name)) is not None:
                if self.spec.plan.wrong(position):  # the host raises the error
                    self.ledger.withhold(position)
                    continue
                lease = self.ledger.lease(name, position, time.monotonic())
                self.hooks.lease_given(name, lease, position)
                device.source.lease(lease, position)

    def _tell_waiting(self, waiting: bool) -> None:
        for device in self._devices.values():
            if device.source is not None:
                device.source.waiting(waiting)
