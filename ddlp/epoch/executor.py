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

from ddlp.epoch.delivery import Delivery
from ddlp.epoch.devices import Devices
from ddlp.epoch.fetchers import Fetchers
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.host_workers import HostWorkers
from ddlp.epoch.monitor import Monitor
from ddlp.epoch.step_clock import EventClock
from ddlp.epoch.threads import Threads
from ddlp.planning.controller import Controller
from ddlp.process.user_warnings import warn_user
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STALLED_AT_LEAST_S, Strategy
from ddlp.sources.base import EpochSpec, HostSource
from ddlp.stats.engines import devices_live
from ddlp.stats.live import Life, Live
from ddlp.stats.replaced import ReplacedSamples
from ddlp.stats.report import Counts, EpochReport

__all__ = ["EpochExecutor"]


class EpochExecutor:
    """Runs an epoch from its first batch to its last, or to `close`.

    Args:
        spec: the epoch's spec.
        ledger: records who holds which batch. It has the devices that are expected already.
        strategy: chooses the next source.
        rates: how fast each side is. They are the loader's, and outlive the epoch.
        host: prepares the host's batches.
        workers: the number of threads that ask ``host``.
        fetchers: the number of threads that fetch devices' batches; 0: no device can join.
        on_cpu: batches are finished in the CPU's memory, the host's own sample by sample.
        pin: a kind of device, for which batches are copied to torch's page-locked memory, see `HostWorkers`; None: they are
            not copied.
        full_batch: the number of samples in a full batch; 0: not known yet.
        replaced: counts the samples that are replaced, since their images are bad.
        hooks: told what the threads do.
        controller: decides which devices take part, for a strategy that wants that.
        clock: measures the training steps of an accelerator; None: the time between two batches counts.
        on_closed: called when the epoch is over and all threads have ended.

    Attributes:
        monitor: the state that the parts share.
        devices: takes the calls of lease sources.
        delivery: gives the batches to the training thread.
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
        self.spec, self.ledger = spec, ledger
        self._host, self._controller, self._on_closed = host, controller, on_closed
        rates.epoch_begins(workers, full_batch, math.prod(spec.shape) * spec.plan.views)
        self.counts = Counts(ledger, spec.epoch, replaced=replaced)
        self.monitor = Monitor(ledger, strategy, rates, self.counts, hooks, prefetches=spec.gpu_transfer is not None)
        self._threads = Threads(self._thread_failed)
        host_workers = HostWorkers(self.monitor, spec, host, on_cpu=on_cpu, pin=pin)
        self.devices = Devices(self.monitor, spec, controller)
        self.delivery = Delivery(self.monitor, spec, self.devices.waiting, controller, clock)
        device_fetchers = Fetchers(self.monitor, spec, self.devices, host_workers.finish, self._threads)
        if fetchers:
            self.monitor.reactions = device_fetchers.replace_hanging, self.devices.serve
        try:
            host.begin(self.devices)
            for number in range(workers):
                self._threads.start(partial(host_workers.run, number))
            for _ in range(fetchers):
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
                devices_live(ledger, self.monitor.rates, self.monitor.full_batch),
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
            if self.spec.own_steps is not None:
                self.spec.own_steps.close()
            if not self._threads.join(STALLED_AT_LEAST_S) and not monitor.messages.hanging:  # else the user was told
                warn_user("ddlp: a device's spool does not answer; the threads that read from it are left to themselves")
        finally:  # Ctrl-C: the threads end by themselves
            monitor.ready.clear()
            self.spec.reader.close()
            self.spec.pool.close()
            self._host.close()
            self._on_closed()
            monitor.hooks.closed()

    def _thread_failed(self, error: BaseException) -> None:
        """End the epoch after an error in one of its threads, since the thread's batches would never come."""
        with self.monitor.lock:  # the training thread raises it again
            self.monitor.error = None if self.monitor.closing else self.monitor.error or error
        self.close()
