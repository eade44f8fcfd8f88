"""What an epoch hears of its devices beside their batches: progress, speeds, warnings, that one is full, fails or is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from ddlp.epoch.gpu_prefetch import PendingTransfer
from ddlp.epoch.prepared import Failure
from ddlp.epoch.user_messages import UserMessages
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.sources.host.native import EpochSpec, PreparedBatch

__all__ = ["DeviceEvents"]


class DeviceEvents:
    """The part of an `EpochRun` that listens, and that tells who brings devices in when it is over.

    Its methods may be called from any thread.
    """

    spec: EpochSpec
    ledger: Ledger
    rates: Rates
    _lock: threading.RLock
    _ends: threading.Condition
    _closing: bool
    _gone: set[str]
    _barred: set[str]
    _messages: UserMessages
    _error: BaseException | None
    _ready: dict[int, PreparedBatch | Failure | PendingTransfer]

    @property
    def _full_batch(self) -> int:
        """Samples of a full batch."""
        return max(1, self.rates.full_batch)

    def _act(self) -> None:
        """After something has changed that a decision may depend on; under the lock."""
        raise NotImplementedError

    def _part(self, position: int) -> float:
        """A batch as a part of a full one."""
        return self.spec.plan.size(position) / self._full_batch

    def take_warnings(self) -> list[str]:
        """What the training thread should tell the user, once."""
        if not self._messages:  # mostly: not worth the lock
            return []
        with self._lock:
            return self._messages.take(time.monotonic(), self.ledger.done)

    def warn(self, text: str) -> None:
        """Have the training thread tell the user."""
        with self._lock:
            self._messages.warn(text)

    def remark(self, device: str, text: str, about: str = "") -> None:
        """What the report should tell about a device, in the place of what it told of the same thing before."""
        with self._lock:
            self._messages.remarks[device, about] = text

    def note(self, device: str, text: str) -> None:
        """What a device says of itself (its spool is full, ...): for the report."""
        with self._lock:
            self._messages.notes[device] = text
            self.ledger.hold_back(device, bool(text))
            self._act()

    def progressed(self, device: str, done: dict[int, int]) -> None:
        """Samples that a device has made of its leases."""
        with self._lock:
            for lease, samples in done.items():
                position = self.ledger.devices[device].outstanding.get(lease)
                if position is not None:
                    self.ledger.progressed(device, lease, samples / max(1, self.spec.plan.size(position)), time.monotonic())

    def measured(self, device: str, batches: Iterable[tuple[int, float]]) -> None:
        """How long (busy seconds) batches of so many samples took that a device has made for other ranks."""
        with self._lock:
            for samples, busy_s in batches:
                self.rates.device(device).add(busy_s, samples / self._full_batch)
            self._act()

    def shared(self, device: str, ranks: int) -> None:
        """So many ranks share a device."""
        with self._lock:
            self.rates.device(device).ranks = ranks

    def failed(self, device: str, lease: int, reason: str, *, fatal: bool, told: bool) -> None:
        """A device could not make a batch: the host does, and says if it is the sample's fault. ``told``: it is known why."""
        with self._lock:
            account = self.ledger.devices[device]
            if lease not in account.outstanding:
                return  # taken back meanwhile
            self.ledger.failed(device, lease, fatal)
            if account.failing:  # it would take up all that is free, and leave it to the host
                self.lost(device, f"it can't prepare batches: {reason}")
            elif not told:
                self._messages.warn(f"{device} could not prepare a batch, the host does: {reason}")
            self._act()

    def absent(self, device: str, reason: str, told: bool) -> bool:
        """An engine of our own does not start: its batches are the host's until it does.

        Warns of it unless it was ``told`` before; returns whether it is told now. The report of each epoch says it.
        """
        with self._lock:
            if self._closing or device in self._gone:
                return told
            self.remark(device, f"it did not start: {reason}")
            if not told:
                self._messages.warn(
                    f"the embedded engine takes no part yet, the host prepares its batches: {reason.rstrip('.')}. "
                    "It is tried again from time to time, without a further warning; strategy='cpu' does without it."
                )
            self.lost(device, reason, told=True)
            return True

    def lost(self, device: str, reason: str, error: BaseException | None = None, told: bool = False) -> None:
        """A device is gone: its batches go back to the host. With ``error`` it is the user's to know at once.

        Warns of it, unless it was ``told``.
        """
        with self._lock:
            if self._closing or device in self._gone:
                return
            self._gone.add(device)
            self._ends.notify_all()
            self._messages.gone(device, None if told or error is not None else reason)
            self._messages.notes.pop(device, None)
            self.ledger.leave(device, time.monotonic())
            if error is not None:
                self._barred.add(device)
                self._error = error
            self._act()

    def _distrust(self, device: str, reason: str) -> None:
        """A device, which may be lost by now, has computed wrong pixels."""
        with self._lock:
            self.ledger.distrust(device, time.monotonic())
            for position in [position for position in self._ready if not self.ledger.is_ready(position)]:
                del self._ready[position]
            if device not in self._barred:
                self._gone.add(device)
                self._barred.add(device)
                self._ends.notify_all()
                self._messages.warn(f"device {device} is not used any more in this epoch: {reason}.")
            self._act()

    def _too_late(self, device: str) -> None:
        """A device is about to join, for too long to be waited for; under the lock. Once it joins it is used all the same."""
        self.ledger.no_longer_expect(device)
        self._messages.warn(f"device {device} is not ready yet; the host prepares its batches until it is.")
        self._act()

    def lost_or_over(self, device: str) -> bool:
        """Wait until a device is lost, or the epoch is over for it. True where it was lost and may come back."""
        with self._lock:
            while not (self._closing or device in self._gone):
                self._ends.wait()
            return not self._closing and device not in self._barred

    def over_within(self, seconds: float) -> bool:
        """Wait, but not longer than the epoch. True where it is over."""
        with self._lock:
            return self._ends.wait_for(lambda: self._closing, seconds)
