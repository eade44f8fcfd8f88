"""The fetchers: threads that bring the devices' published batches into this process's memory."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from functools import partial

from csd_engine.errors import WrongPixels
from ddlp.epoch.devices import Devices, Published
from ddlp.epoch.gpu_prefetch import PendingTransfer
from ddlp.epoch.monitor import Monitor
from ddlp.epoch.threads import Threads
from ddlp.schedule.slots import FETCHERS
from ddlp.sources.base import BatchState, PreparedBatch, Resources
from ddlp.stats.thread_cpu import thread_cpu_s

__all__ = ["Fetchers"]


class Fetchers:
    """The part of an epoch that fetches what devices have published.

    Args:
        monitor: the state that the epoch's parts share.
        resources: what lives in the epoch.
        devices: gives the published batches, and is told of those that can't be used.
        finish: makes a batch at a position ready for the training thread.
        threads: the epoch's.
    """

    def __init__(
        self,
        monitor: Monitor,
        resources: Resources,
        devices: Devices,
        finish: Callable[[int, PreparedBatch], PreparedBatch | PendingTransfer],
        threads: Threads,
    ) -> None:
        self._monitor, self._resources, self._devices = monitor, resources, devices
        self._finish, self._threads = finish, threads
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start a fetcher. Raises RuntimeError if no more threads can be started."""
        number = next(self._numbers) % FETCHERS  # a later one replaces a fetcher that hangs
        self._threads.start(partial(self._run, number), may_hang=True)

    def replace_hanging(self) -> None:
        """Give up hanging fetches. It is called after every event, under the lock."""
        monitor = self._monitor
        while not monitor.closing and (hanging := monitor.strategy.hanging_fetch(time.monotonic())) is not None:
            monitor.messages.hangs(monitor.ledger.give_up(hanging))
            with contextlib.suppress(RuntimeError):  # no more threads can be started: one fetcher less
                self.start()  # replaces the one that hangs

    def _run(self, number: int) -> None:
        """Take a published batch, fetch it from its source, and hand it in, until the epoch is over."""
        monitor, ledger = self._monitor, self._monitor.ledger
        cpu = thread_cpu_s()
        published: Published | None = None
        while (published := published or self._next(number)) is not None:
            position, device, lease, _, _ = published
            batch, trouble, vanished, seconds = self._fetch(number, published)
            with monitor.lock:
                cpu, before = monitor.counts.cpu(cpu), cpu
                if seconds:
                    part = self._resources.plan.size(position) / monitor.full_batch
                    monitor.rates.fetched(device, seconds, part, FETCHERS, cpu - before)
                given_up = lease not in ledger.fetching
                if batch is None:
                    # The loss of a device was told already, and a file may be removed once the host's copy was first.
                    if ledger.damaged(lease) and ledger.devices[device].alive and not monitor.closing:
                        self._devices.unusable(device, position, trouble, vanished)
                elif ledger.verified(lease):
                    self._devices.states[device].unusable_in_a_row = 0
                    monitor.ready[position] = batch
                published = None if given_up else self._devices.take_published()  # while the lock is held anyway
                monitor.act()
            batch = None  # dropped before this thread waits
            if given_up:
                return  # another thread has replaced this one

    def _next(self, number: int) -> Published | None:
        """Wait for a published batch. Returns None if the epoch is over."""
        monitor = self._monitor
        monitor.hooks.rest_began("transfer", number)
        published: Published | None = None
        with monitor.lock:
            while not monitor.closing:
                if (published := self._devices.take_published()) is not None:
                    monitor.wake()
                    break
                monitor.wait(monitor.fetchers, None)
        monitor.hooks.rest_ended("transfer", number, published is None)
        return published

    def _fetch(
        self, number: int, published: Published
    ) -> tuple[PreparedBatch | PendingTransfer | None, str, bool, float]:
        """Fetch a published batch. Returns it; or None with the error's text, and whether the file is gone.

        Last come the seconds that its source took; 0 if it did not come.
        """
        position, device, lease, source, handle = published
        hooks = self._monitor.hooks
        ready: PreparedBatch | PendingTransfer | None = None
        trouble, vanished, seconds = "", False, 0.0
        hooks.fetch_began(number, device, lease, position, handle)
        began = time.monotonic()
        try:
            batch = source.fetch(lease, position, handle)
            seconds = time.monotonic() - began
            if batch.state is not BatchState.FAILED:
                hooks.fetch_read(lease, position, batch)
            if self._resources.own_steps is not None:  # the user's steps may be slow: the fetch must not count as hanging
                with self._monitor.lock:
                    self._monitor.ledger.read(lease)
            ready = self._finish(position, batch)
            if isinstance(ready, PendingTransfer):
                ready.call()  # at once, since only few of the devices' batches are in memory
        except WrongPixels as error:
            trouble = str(error)
            self._devices.distrust(device, trouble)
        except BaseException as error:
            trouble, vanished = str(error) or type(error).__name__, isinstance(error.__cause__, FileNotFoundError)
        hooks.fetch_ended(number, device, lease, position, trouble)
        return ready, trouble, vanished, seconds
