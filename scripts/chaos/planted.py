"""Bugs to plant, so that it shows that a run finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import csd_engine.batchfile.reader
from ddlp.epoch.iterator import EpochIterator
from ddlp.schedule.ledger import Ledger

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
    """In each epoch the fifth batch comes a second time."""
    following = EpochIterator._next_data

    def twice(self: EpochIterator) -> Any:
        kept: list[Any] = self.__dict__.setdefault("_planted", [])
        if len(kept) == 5:
            kept.append(None)
            return kept[4]
        batch = following(self)
        kept.append(batch if len(kept) == 4 else None)
        return batch

    EpochIterator._next_data = twice  # type: ignore[method-assign]


PLANTED: dict[str, Callable[[], None]] = {
    "forgotten-reclaim": _forgotten_reclaim,
    "skipped-checksum": _skipped_checksum,
    "double-delivery": _double_delivery,
}
