"""Bugs that can be planted, to test that a run finds them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import csd_engine.batchfile.reader
from csd_engine.protocol.sealed import Opener
from ddlp.epoch.iterator import EpochIterator
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.states import CsdCopy, Entry, HostCopy
from tests.chaos.world import World, package_with

__all__ = ["PLANTED"]


def _counts_as_delivered(self: Ledger, entry: Entry) -> None:
    if entry.host is HostCopy.NONE and entry.csd is CsdCopy.NONE:
        del self._open[entry.position]
        self.delivered.add(entry.position)


def _forgotten_reclaim(world: World) -> None:
    """A batch that a lost device held is not given back, and counts as delivered."""
    Ledger._settle = _counts_as_delivered  # type: ignore[method-assign]


def _forgotten_by_retiring(world: World) -> None:
    """A batch that a retiring engine has not begun is not given back, and counts as delivered."""
    settle, retire = Ledger._settle, Ledger.retire

    def forget(self: Ledger, device: str, begun: Collection[int] | None = None) -> None:
        Ledger._settle = _counts_as_delivered  # type: ignore[method-assign]
        try:
            retire(self, device, begun)
        finally:
            Ledger._settle = settle  # type: ignore[method-assign]

    Ledger.retire = forget  # type: ignore[method-assign]


def _skipped_checksum(world: World) -> None:
    """A batch file's checksum is computed, and not compared."""
    csd_engine.batchfile.reader.check_sum = lambda checksum, promised: None


def _skipped_tag(world: World) -> None:
    """Sealed bytes are decrypted, and neither their tag nor the batch's checksum is compared."""
    _skipped_checksum(world)
    Opener.check = lambda self, head: None  # type: ignore[method-assign]


def _skipped_digest(world: World) -> None:
    """The engines do not compare the digest of the images that a host has sent with a lease."""
    where = world.home / "planted"
    world.package = package_with(where, "service/worker.py", r"if found\.hexdigest\(\) != digest:", "if False:")


def _double_delivery(world: World) -> None:
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


PLANTED: dict[str, Callable[[World], None]] = {
    "forgotten-reclaim": _forgotten_reclaim,
    "forgotten-by-retiring": _forgotten_by_retiring,
    "skipped-checksum": _skipped_checksum,
    "skipped-tag": _skipped_tag,
    "skipped-digest": _skipped_digest,
    "double-delivery": _double_delivery,
}
