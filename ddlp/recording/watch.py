"""Watching an epoch: calls of its hooks become events."""

from __future__ import annotations

import threading
import time
from typing import Any

from csd_engine.prepare.read_time import READING
from ddlp.epoch.hooks import EpochHooks
from ddlp.recording.events import (
    Decided,
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

__all__ = ["Watch"]


class _Begun(threading.local):
    """What the calling thread has begun: when, and what its clocks showed then."""

    rest_at = 0.0
    host: tuple[float, float, float] = (0.0, 0.0, 0.0)  # began_at, read and processor seconds
    fetch_at = 0.0
    read_at: float | None = None  # None: the batch is not read yet


class Watch(EpochHooks):
    """Makes an event of each call. The epoch holds this object, which does not hold the epoch: it can be freed."""

    def __init__(self) -> None:
        self._begun = _Begun()
        self._ledger: Ledger | None = None

    def saw(self, event: Event) -> None:
        """Something happened. Several of the epoch's threads call this at once, some under its lock."""
        raise NotImplementedError

    def began(self, resources: Resources, strategy: Strategy) -> None:
        """As `EpochHooks.began`."""
        self._ledger = strategy.ledger

    def rest_began(self, kind: str, number: int) -> None:
        """As `EpochHooks.rest_began`."""
        self._begun.rest_at = time.monotonic()

    def rest_ended(self, kind: str, number: int, over: bool) -> None:
        """As `EpochHooks.rest_ended`."""
        self.saw(Rested(kind, number, self._begun.rest_at, time.monotonic(), over))

    def host_batch_began(self, worker: int, position: int) -> None:
        """As `EpochHooks.host_batch_began`."""
        self._begun.host = time.monotonic(), READING.seconds, thread_cpu_s()

    def host_batch_ended(self, worker: int, position: int, outcome: str) -> None:
        """As `EpochHooks.host_batch_ended`."""
        began_at, read_s, cpu_s = self._begun.host
        read_s, cpu_s = READING.seconds - read_s, thread_cpu_s() - cpu_s
        self.saw(HostBatch(worker, position, began_at, time.monotonic(), read_s, cpu_s, outcome))

    def fetch_began(self, fetcher: int, device: str, lease: int, position: int, handle: Any) -> None:
        """As `EpochHooks.fetch_began`."""
        self._begun.fetch_at, self._begun.read_at = time.monotonic(), None

    def fetch_read(self, lease: int, position: int, batch: PreparedBatch) -> None:
        """As `EpochHooks.fetch_read`."""
        self._begun.read_at = time.monotonic()

    def fetch_ended(self, fetcher: int, device: str, lease: int, position: int, trouble: str) -> None:
        """As `EpochHooks.fetch_ended`."""
        now, begun = time.monotonic(), self._begun
        read_at = now if begun.read_at is None else begun.read_at
        self.saw(Fetched(fetcher, device, lease, position, begun.fetch_at, read_at, now, trouble))

    def joined(self, device: str, capacity: Capacity, ranks: int) -> None:
        """As `EpochHooks.joined`."""
        self.saw(Joined(device, time.monotonic(), capacity.workers, capacity.batches, ranks, capacity.node))

    def lease_given(self, device: str, lease: int, position: int) -> None:
        """As `EpochHooks.lease_given`."""
        self.saw(LeaseGiven(device, lease, position, time.monotonic()))

    def lease_cancelled(self, device: str, lease: int) -> None:
        """As `EpochHooks.lease_cancelled`."""
        self.saw(LeaseCancelled(device, lease, time.monotonic()))

    def lease_failed(self, device: str, lease: int, reason: str) -> None:
        """As `EpochHooks.lease_failed`."""
        self.saw(LeaseFailed(device, lease, time.monotonic(), reason))

    def published(self, device: str, lease: int, position: int, busy_s: float) -> None:
        """As `EpochHooks.published`."""
        self.saw(Published(device, lease, position, time.monotonic(), busy_s))

    def retires(self, device: str, reason: str) -> None:
        """As `EpochHooks.retires`."""
        self.saw(Retires(device, time.monotonic(), reason))

    def lost(self, device: str, reason: str) -> None:
        """As `EpochHooks.lost`."""
        self.saw(Lost(device, time.monotonic(), reason))

    def decided(self, about: str, text: str) -> None:
        """As `EpochHooks.decided`."""
        self.saw(Decided(about, text, time.monotonic()))

    def stepped(self, position: int, side: Side, samples: int, asked_at: float, got_at: float) -> None:
        """As `EpochHooks.stepped`."""
        ledger = self._ledger
        assert ledger is not None
        self.saw(
            Step(
                position, side.value, samples, asked_at, got_at, time.monotonic(),
                len(ledger.ready_host), len(ledger.ready_csd), len(ledger.in_spool),
                sum(account.held for account in list(ledger.devices.values())),  # one may join at this moment
            )
        )  # fmt: skip

    def exhausted(self, asked_at: float) -> None:
        """As `EpochHooks.exhausted`."""
        self.saw(Exhausted(asked_at, time.monotonic()))
