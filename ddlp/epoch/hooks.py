"""`EpochHooks`: the calls by which an epoch can be watched. Its methods do nothing."""

from __future__ import annotations

from typing import Any

from ddlp.schedule.ledger import Side
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import Capacity, PreparedBatch, Resources

__all__ = ["EpochHooks"]


class EpochHooks:
    """The epoch's threads call these methods, several at once, some under its lock. They must be quick, and must not raise.

    ``worker`` and ``fetcher`` number the threads of a kind, from 0. A ``began`` and its ``ended`` come in the same thread.
    """

    wants_whole = False  # the hooks look at all batches' indices when the epoch is over

    def began(self, resources: Resources, strategy: Strategy) -> None:
        """The epoch is ready. Its threads run already, and may have called other hooks."""

    def rest_began(self, kind: str, number: int) -> None:
        """A thread of the kind ``"host"`` or ``"transfer"`` looks for work."""

    def rest_ended(self, kind: str, number: int, over: bool) -> None:
        """The thread has found work, or the epoch is ``over``."""

    def host_batch_began(self, worker: int, position: int) -> None:
        """A worker of the host prepares a batch."""

    def host_batch_ended(self, worker: int, position: int, outcome: str) -> None:
        """The batch is ``"made"``, ``"failed"``, or ``"dropped"`` because it is not wanted any more."""

    def fetch_began(self, fetcher: int, device: str, lease: int, position: int, handle: Any) -> None:
        """A device's batch is about to be read."""

    def fetch_read(self, lease: int, position: int, batch: PreparedBatch) -> None:
        """The batch was read and verified."""

    def fetch_ended(self, fetcher: int, device: str, lease: int, position: int, trouble: str) -> None:
        """The batch is ready for the training thread, or ``trouble`` says why not."""

    def joined(self, device: str, capacity: Capacity, ranks: int) -> None:
        """A device takes part. ``ranks`` ranks share it."""

    def lease_given(self, device: str, lease: int, position: int) -> None:
        """A device is asked for a batch."""

    def lease_cancelled(self, device: str, lease: int) -> None:
        """The lease is not wanted any more."""

    def lease_failed(self, device: str, lease: int, reason: str) -> None:
        """The device could not make the batch. ``reason`` is empty if it was told before."""

    def published(self, device: str, lease: int, position: int, busy_s: float) -> None:
        """The device has made the batch. ``position`` is -1 if the lease was taken back meanwhile."""

    def retires(self, device: str, reason: str) -> None:
        """A device finishes what it has, and is gone after that: `lost` is told then as well."""

    def lost(self, device: str, reason: str) -> None:
        """A device is gone."""

    def decided(self, about: str, text: str) -> None:
        """ddlp has decided by itself: ``about`` ``"devices"``, ``"engines"`` (of a pool), ``"cache"`` or ``"workers"``."""

    def assembled(self, position: int, side: Side, prepared: PreparedBatch, batch: Any) -> None:
        """The training thread has joined the images of a ``prepared`` batch and targets. batch_transform comes after this."""

    def stepped(self, position: int, side: Side, samples: int, asked_at: float, got_at: float) -> None:
        """The training loop is about to get a batch of ``samples`` samples, asked for and ready at these times."""

    def exhausted(self, asked_at: float) -> None:
        """The training loop has asked for one more batch than the epoch has."""

    def closed(self) -> None:
        """The epoch is over; all its threads have ended."""
