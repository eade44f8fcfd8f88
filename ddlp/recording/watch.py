"""Watching an epoch: calls of its hooks become events for observers."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from csd_engine.machine.computer import processors
from csd_engine.prepare.read_time import READING
from ddlp.epoch.hooks import EpochHooks
from ddlp.process.ranks import here
from ddlp.process.version import __version__
from ddlp.recording.events import (
    FORMAT,
    Decided,
    EpochBegan,
    Event,
    Exhausted,
    Fetched,
    HostBatch,
    Joined,
    LeaseCancelled,
    LeaseFailed,
    LeaseGiven,
    Lost,
    Published,
    Rested,
    Retires,
    Step,
)
from ddlp.schedule.ledger import Ledger, Side
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import Capacity, PreparedBatch, Resources
from ddlp.stats.thread_cpu import thread_cpu_s

__all__ = ["Observer", "Watch"]


class Observer:
    """Sees what happens in an epoch. The epoch's threads call its methods, several at once, some under the epoch's lock."""

    clock: float | None = None  # the wall clock at the epoch's beginning, if the observer has it
    wants_whole = False  # whether it looks at all batches' indices when the epoch is over

    def begins(self, resources: Resources, strategy: Strategy) -> None:
        """The epoch is ready. Its threads run already, so other methods may have been called before."""

    def began(self, event: EpochBegan) -> None:
        """The same, as an event."""

    def saw(self, event: Event) -> None:
        """Something happened."""

    def reading(self, lease: int, position: int, handle: Any) -> None:
        """A device's batch is about to be read."""

    def read(self, lease: int, position: int, batch: PreparedBatch) -> None:
        """The batch was read and verified: its bytes as they came, or finished in an accelerator's memory."""

    def assembled(self, position: int, side: Side, prepared: PreparedBatch, batch: Any) -> None:
        """The training thread has a batch, targets joined; the user's batch_transform comes after this."""

    def closed(self) -> None:
        """The epoch is over, all its threads have ended."""


class _Begun(threading.local):
    """What the calling thread has begun: when, and what its clocks showed then."""

    rest_at = 0.0
    host: tuple[float, float, float] = (0.0, 0.0, 0.0)  # began_at, read and processor seconds
    fetch_at = 0.0
    read_at: float | None = None  # None: the batch is not read yet


class Watch(EpochHooks):
    """Tells observers of an epoch. The epoch holds this object, which does not hold the epoch: it can be freed."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self._begun = _Begun()
        self._ledger: Ledger | None = None
        self.wants_whole = any(observer.wants_whole for observer in observers)

    def _saw(self, event: Event) -> None:
        for observer in self._observers:
            observer.saw(event)

    def began(self, resources: Resources, strategy: Strategy) -> None:
        """As `EpochHooks.began`."""
        epoch, ledger, ranks = resources.epoch, strategy.ledger, here()
        self._ledger = ledger
        for observer in self._observers:
            event = EpochBegan(
                FORMAT,
                __version__,
                clock=observer.clock or time.time(),
                pid=os.getpid(),
                rank=0 if ranks is None else ranks.rank,
                epoch=epoch.number,
                strategy=strategy.name,
                batches=ledger.length,
                batch_size=max(1, strategy.rates.full_batch),
                workers=epoch.host_threads,
                fetchers=epoch.fetchers,
                devices=list(ledger.devices),
                target="cpu" if epoch.target is None else str(epoch.target),
                processors=processors(),
            )
            observer.begins(resources, strategy)
            observer.began(event)

    def rest_began(self, kind: str, number: int) -> None:
        """As `EpochHooks.rest_began`."""
        self._begun.rest_at = time.monotonic()

    def rest_ended(self, kind: str, number: int, over: bool) -> None:
        """As `EpochHooks.rest_ended`."""
        self._saw(Rested(kind, number, self._begun.rest_at, time.monotonic(), over))

    def host_batch_began(self, worker: int, position: int) -> None:
        """As `EpochHooks.host_batch_began`."""
        self._begun.host = time.monotonic(), READING.seconds, thread_cpu_s()

    def host_batch_ended(self, worker: int, position: int, outcome: str) -> None:
        """As `EpochHooks.host_batch_ended`."""
        began_at, read_s, cpu_s = self._begun.host
        read_s, cpu_s = READING.seconds - read_s, thread_cpu_s() - cpu_s
        self._saw(HostBatch(worker, position, began_at, time.monotonic(), read_s, cpu_s, outcome))

    def fetch_began(self, fetcher: int, device: str, lease: int, position: int, handle: Any) -> None:
        """As `EpochHooks.fetch_began`."""
        self._begun.fetch_at, self._begun.read_at = time.monotonic(), None
        for observer in self._observers:
            observer.reading(lease, position, handle)

    def fetch_read(self, lease: int, position: int, batch: PreparedBatch) -> None:
        """As `EpochHooks.fetch_read`."""
        for observer in self._observers:
            observer.read(lease, position, batch)
        self._begun.read_at = time.monotonic()

    def fetch_ended(self, fetcher: int, device: str, lease: int, position: int, trouble: str) -> None:
        """As `EpochHooks.fetch_ended`."""
        now, begun = time.monotonic(), self._begun
        read_at = now if begun.read_at is None else begun.read_at
        self._saw(Fetched(fetcher, device, lease, position, begun.fetch_at, read_at, now, trouble))

    def joined(self, device: str, capacity: Capacity, ranks: int) -> None:
        """As `EpochHooks.joined`."""
        self._saw(Joined(device, time.monotonic(), capacity.workers, capacity.batches, ranks, capacity.node))

    def lease_given(self, device: str, lease: int, position: int) -> None:
        """As `EpochHooks.lease_given`."""
        self._saw(LeaseGiven(device, lease, position, time.monotonic()))

    def lease_cancelled(self, device: str, lease: int) -> None:
        """As `EpochHooks.lease_cancelled`."""
        self._saw(LeaseCancelled(device, lease, time.monotonic()))

    def lease_failed(self, device: str, lease: int, reason: str) -> None:
        """As `EpochHooks.lease_failed`."""
        self._saw(LeaseFailed(device, lease, time.monotonic(), reason))

    def published(self, device: str, lease: int, position: int, busy_s: float) -> None:
        """As `EpochHooks.published`."""
        self._saw(Published(device, lease, position, time.monotonic(), busy_s))

    def retires(self, device: str, reason: str) -> None:
        """As `EpochHooks.retires`."""
        self._saw(Retires(device, time.monotonic(), reason))

    def lost(self, device: str, reason: str) -> None:
        """As `EpochHooks.lost`."""
        self._saw(Lost(device, time.monotonic(), reason))

    def decided(self, about: str, text: str) -> None:
        """As `EpochHooks.decided`."""
        self._saw(Decided(about, text, time.monotonic()))

    def assembled(self, position: int, side: Side, prepared: PreparedBatch, batch: Any) -> None:
        """As `EpochHooks.assembled`."""
        for observer in self._observers:
            observer.assembled(position, side, prepared, batch)

    def stepped(self, position: int, side: Side, samples: int, asked_at: float, got_at: float) -> None:
        """As `EpochHooks.stepped`."""
        ledger = self._ledger
        assert ledger is not None
        self._saw(
            Step(
                position, side.value, samples, asked_at, got_at, time.monotonic(),
                len(ledger.ready_host), len(ledger.ready_csd), len(ledger.in_spool),
                sum(account.held for account in list(ledger.devices.values())),  # one may join at this moment
            )
        )  # fmt: skip

    def exhausted(self, asked_at: float) -> None:
        """As `EpochHooks.exhausted`."""
        self._saw(Exhausted(asked_at, time.monotonic()))

    def closed(self) -> None:
        """As `EpochHooks.closed`."""
        for observer in self._observers:
            observer.closed()
