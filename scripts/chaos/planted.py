"""Bugs to plant, so that it shows that a run finds them."""

from __future__ import annotations

from collections.abc import Callable

import csd_engine.batchfile.reader
from ddlp.schedule.ledger import Ledger, Side

__all__ = ["PLANTED"]


def _forgotten_reclaim() -> None:
    """What a lost device had leased never comes back."""

    def leave(self: Ledger, device: str, now: float) -> int:
        account = self.devices[device]
        account.alive = account.joining = account.held_back = False
        return 0

    Ledger.leave = leave  # type: ignore[method-assign]


def _skipped_checksum() -> None:
    """A batch file's checksum is computed, and not compared."""
    csd_engine.batchfile.reader.check_sum = lambda found, promised: None


def _double_delivery() -> None:
    """Some batches that a device has made are free again once they are delivered."""
    deliver = Ledger.deliver

    def twice(self: Ledger, position: int) -> Side:
        side = deliver(self, position)
        if side is Side.CSD and position % 5 == 0 and self.free:
            self.delivered.discard(position)
            self.free.add(position)
        return side

    Ledger.deliver = twice  # type: ignore[method-assign]


PLANTED: dict[str, Callable[[], None]] = {
    "forgotten-reclaim": _forgotten_reclaim,
    "skipped-checksum": _skipped_checksum,
    "double-delivery": _double_delivery,
}
