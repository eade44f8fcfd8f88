"""What may be told of an epoch to whoever watches it: `EpochHooks`, whose methods do nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddlp.epoch.prepared import Delivered
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import Capacity, EpochSpec, PreparedBatch
from ddlp.translate.portable import Portable

__all__ = ["Beginning", "EpochHooks"]


@dataclass(frozen=True)
class Beginning:
    """An epoch as it begins."""

    spec: EpochSpec
    portable: Portable
    collate: Callable[[Any], Any]
    strategy: Strategy
    batches: int  # as far as they are known
    batch_size: int  # samples of a full batch
    workers: int
    fetchers: int
    devices: tuple[str, ...]
    target: str  # where batches are delivered
    delivered: tuple[tuple[int, int], ...]  # ranges of positions, before a resume


class EpochHooks:
    """Called by an epoch's threads, several at once, some under its lock: they must be quick, and must not raise.

    ``worker`` and ``fetcher`` number the threads of a kind, from 0. What begins ends in the same thread.
    """

    wants_whole = False  # the hooks look at all batches' indices when the epoch is over

    def began(self, beginning: Beginning) -> None:
        """The epoch is ready; its threads run already, and may have called other hooks."""

    def rest_began(self, kind: str, number: int) -> None:
        """A thread, of ``"host"`` or ``"transfer"``, looks for work."""

    def rest_ended(self, kind: str, number: int, over: bool) -> None:
        """It has found some; or the epoch is ``over``."""

    def host_batch_began(self, worker: int, position: int) -> None:
        """A worker of the host prepares a batch."""

    def host_batch_ended(self, worker: int, position: int, outcome: str) -> None:
        """It is ``"made"``, ``"failed"``, or ``"dropped"`` since nobody wants it any more."""

    def fetch_began(self, fetcher: int, device: str, lease: int, position: int, handle: Any) -> None:
        """A device's batch is about to be read."""

    def fetch_read(self, lease: int, position: int, batch: PreparedBatch) -> None:
        """It was read and verified."""

    def fetch_ended(self, fetcher: int, device: str, lease: int, position: int, trouble: str) -> None:
        """It is ready for the training thread, or ``trouble`` says why not."""

    def joined(self, device: str, capacity: Capacity, ranks: int) -> None:
        """A device takes part, shared by so many ranks."""

    def lease_given(self, device: str, lease: int, position: int) -> None:
        """A device is asked for a batch."""

    def lease_cancelled(self, device: str, lease: int) -> None:
        """It is not wanted any more."""

    def lease_failed(self, device: str, lease: int, reason: str) -> None:
        """The device could not make it; ``reason`` is empty where it was told before."""

    def published(self, device: str, lease: int, position: int, busy_s: float) -> None:
        """The device has made it; ``position`` is -1 where the lease was taken back meanwhile."""

    def lost(self, device: str, reason: str) -> None:
        """A device is gone."""

    def assembled(self, delivered: Delivered, batch: Any) -> None:
        """The training thread has joined images and targets; the user's batch_transform comes after this."""

    def stepped(self, delivered: Delivered, samples: int, asked_at: float, got_at: float) -> None:
        """The training loop is about to get a batch of so many samples. It was asked for and was there at these moments."""

    def exhausted(self, asked_at: float) -> None:
        """The training loop has asked for one more batch than there are."""

    def closed(self) -> None:
        """The epoch is over; all its threads have ended."""
