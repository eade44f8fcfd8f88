"""What an epoch hears of its devices beside their batches: progress, speeds, remarks, warnings, and that one has no room."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from ddlp.ledger import Ledger
from ddlp.rates import Rates
from ddlp.sources.host import Recipe
from ddlp.tidings import Tidings

__all__ = ["Heard"]


class Heard:
    """The part of an `EpochRun` that listens, and that tells who brings devices in when it is over.

    Its methods may be called from any thread.
    """

    recipe: Recipe
    ledger: Ledger
    rates: Rates
    _lock: threading.RLock
    _ends: threading.Condition
    _closing: bool
    _gone: set[str]
    _barred: set[str]
    _tidings: Tidings

    @property
    def _full_batch(self) -> int:
        """Samples of a full batch."""
        return max(1, self.rates.full_batch)

    def _act(self) -> None:
        """After something has changed that a decision may depend on; under the lock."""
        raise NotImplementedError

    def _part(self, position: int) -> float:
        """A batch as a part of a full one."""
        return self.recipe.plan.size(position) / self._full_batch

    def take_warnings(self) -> list[str]:
        """What the training thread should tell the user, once."""
        if not self._tidings:  # mostly: not worth the lock
            return []
        with self._lock:
            return self._tidings.take(time.monotonic(), self.ledger.done)

    def warn(self, text: str) -> None:
        """Have the training thread tell the user."""
        with self._lock:
            self._tidings.warn(text)

    def remark(self, device: str, text: str, about: str = "") -> None:
        """What the report should tell about a device, in the place of what it told of the same thing before."""
        with self._lock:
            self._tidings.remarks[device, about] = text

    def note(self, device: str, text: str) -> None:
        """What a device says of itself (its spool is full, ...): for the report."""
        with self._lock:
            self._tidings.notes[device] = text
            self.ledger.hold_back(device, bool(text))
            self._act()

    def progressed(self, device: str, done: dict[int, int]) -> None:
        """Samples that a device has made of its leases."""
        with self._lock:
            for lease, samples in done.items():
                position = self.ledger.devices[device].outstanding.get(lease)
                if position is not None:
                    self.ledger.progressed(device, lease, samples / max(1, self.recipe.plan.size(position)), time.monotonic())

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
