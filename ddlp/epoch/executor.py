"""Runs one epoch: its parts, which share a monitor, and the threads that act on the strategy's answers.

The steps of a batch, each with its position:

    host's worker     `HostWorkers`: `_claim`; `_prepare`: the source prepares it, `finish`; `_hand_in`
    device            `Devices`: `_lease`; the source calls `published`; a fetcher (`Fetchers`): `_fetch`, `finish`, hands in
    training thread   `Delivery`: `next_batch` takes it; the iterator joins targets and gives it to the training loop
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial

from ddlp.auto.controller import Controller
from ddlp.epoch.delivery import Delivery
from ddlp.epoch.devices import Devices
from ddlp.epoch.fetchers import Fetchers
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.host_workers import HostWorkers
from ddlp.epoch.monitor import Monitor
from ddlp.epoch.step_clock import cuda_clock
from ddlp.epoch.threads import Threads
from ddlp.process.user_warnings import warn_user
from ddlp.schedule.strategies import STALLED_AT_LEAST_S, Strategy
from ddlp.sources.base import HostSource, Resources
from ddlp.stats.live import Life, Live
from ddlp.stats.replaced import ReplacedSamples
from ddlp.stats.report import Counts, EpochReport

__all__ = ["EpochExecutor"]


class EpochExecutor:
    """Runs an epoch from its first batch to its last, or to `close`.

    Args:
        resources: what lives in the epoch.
        host: prepares the host's batches.
        strategy: chooses the next source. Its ledger records who holds which batch, and has the devices that are expected.
        hooks: told what the threads do.
        controller: decides which devices take part, for a strategy that wants that.
        on_closed: called when the epoch is over and all threads have ended.

    Attributes:
        monitor: the state that the parts share.
        devices: takes the calls of lease sources.
        delivery: gives the batches to the training thread.
    """

    def __init__(
        self,
        resources: Resources,
        host: HostSource,
        strategy: Strategy,
        *,
        hooks: EpochHooks,
        controller: Controller | None = None,
        on_closed: Callable[[], None],
    ) -> None:
        epoch, plan = resources.epoch, resources.plan
        self.resources, self.ledger = resources, strategy.ledger
        self._host, self._controller, self._on_closed = host, controller, on_closed
        full_batch = epoch.batch_size or (plan.largest if plan.whole else 0)
        strategy.rates.epoch_begins(epoch.host_threads, full_batch, math.prod(epoch.portable.shape) * plan.views)
        samples = plan.samples if plan.whole else len(epoch.portable.dataset)
        replaced = ReplacedSamples(epoch.most_replaced or 0.0, samples, epoch.resume.replaced)
        self.counts = Counts(self.ledger, epoch.number, replaced=replaced)
        self.monitor = Monitor(strategy, self.counts, hooks, prefetches=resources.gpu_transfer is not None)
        self._threads = Threads(self._thread_failed)
        host_workers = HostWorkers(self.monitor, resources, host)
        self.devices = Devices(self.monitor, resources, controller)
        self.delivery = Delivery(self.monitor, resources, self.devices.waiting, controller, cuda_clock())
        device_fetchers = Fetchers(self.monitor, resources, self.devices, host_workers.finish, self._threads)
        if epoch.fetchers:
            self.monitor.reactions = device_fetchers.replace_hanging, self.devices.serve
        try:
            host.begin(self.devices)
            for number in range(epoch.host_threads):
                self._threads.start(partial(host_workers.run, number))
            for _ in range(epoch.fetchers):
                device_fetchers.start()
        except BaseException:  # no more threads can be started, or Ctrl-C
            self.close()
            raise

    def report(self) -> EpochReport:
        """Return the report of the epoch so far."""
        monitor = self.monitor
        with monitor.lock:
            notes = monitor.messages.for_report()
            if self._controller is not None:
                notes += (self._controller.note(),)
            return self.counts.report(monitor.strategy.name, monitor.rates, monitor.full_batch, notes)

    def live(self, life: Life) -> Live:
        """Return the epoch's numbers at this moment. ``life``: the numbers of its loader."""
        with self.monitor.lock:
            ledger = self.ledger
            return Live(
                self.report(), life.total(), ledger.length if ledger.closed else None, len(ledger.delivered),
                self.counts.waiting_now_s, len(ledger.ready_host), len(ledger.ready_csd),
            )  # fmt: skip

    def delivered(self) -> list[tuple[int, int]]:
        """Return the delivered positions, as ranges."""
        with self.monitor.lock:
            return self.ledger.delivered.ranges()

    def close(self) -> None:
        """End all threads and give the devices' space back. May be called twice, and from any thread."""
        monitor = self.monitor
        if os.getpid() != monitor.pid:
            return  # a forked child: the threads and the devices are its parent's
        with monitor.lock:
            if monitor.closing:
                return
            monitor.closing = True
            if self.counts.ended_s is None:
                self.counts.over()
            monitor.wake_all()
            sources = self.devices.detach()
        try:
            for source in sources:
                source.close()  # first, so that nobody waits for a batch that is being fetched
            if self.resources.own_steps is not None:
                self.resources.own_steps.close()
            if not self._threads.join(STALLED_AT_LEAST_S) and not monitor.messages.hanging:  # else the user was told
                warn_user("ddlp: a device's spool does not answer; the threads that read from it are left to themselves")
        finally:  # Ctrl-C: the threads end by themselves
            monitor.ready.clear()
            monitor.reactions = ()  # as with the threads, they would keep the parts, and so the epoch's files and memory
            self._threads.forget_owner()
            self.resources.reader.close()
            self.resources.pool.close()
            self._host.close()
            if self.resources.gpu_transfer is not None:
                self.resources.gpu_transfer.settle()
            self._on_closed()
            monitor.hooks.closed()

    def _thread_failed(self, error: BaseException) -> None:
        """End the epoch after an error in one of its threads, since the thread's batches would never come."""
        with self.monitor.lock:  # the training thread raises it again
            self.monitor.error = None if self.monitor.closing else self.monitor.error or error
        self.close()
