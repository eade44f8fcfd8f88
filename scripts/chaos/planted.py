"""Bugs that can be planted, to test that a run finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import csd_engine.batchfile.reader
from ddlp.epoch.iterator import EpochIterator
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.states import CsdCopy, Entry, HostCopy

__all__ = ["PLANTED"]


def _forgotten_reclaim() -> None:
    """A batch that a lost device held is not given back, and counts as delivered."""

    def settle(self: Ledger, entry: Entry) -> None:
        if entry.host is HostCopy.NONE and entry.csd is CsdCopy.NONE:
            del self._open[entry.position]
            self.delivered.add(entry.position)

    Ledger._settle = settle  # type: ignore[method-assign]


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
