"""The two copies of a batch, as tables.

A batch may exist in two copies at once, the host's and a device's, because a late lease is taken back while the
device may still finish it. Each copy is a small machine of its own (``HOST``, ``CSD``). What makes the pair
right: a copy counts as made only when it is whole and verified in this process's memory (READY); the moment one copy
is READY the other is dropped, so at most one READY copy exists; and only delivery is final, which needs a READY
copy and happens once, as it ends the batch's entry. Every other event either moves a copy that is still wanted or
concerns a claim or lease number that is no longer known, and is answered by dropping what it brought.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class HostCopy(Enum):
    """The host's copy of a batch."""

    __hash__ = object.__hash__  # Enum's own is in Python, and each step looks into a table

    NONE = auto()
    CLAIMED = auto()  # a worker of the pool prepares it
    READY = auto()


class CsdCopy(Enum):
    """A device's copy of a batch."""

    __hash__ = object.__hash__  # Enum's own is in Python, and each step looks into a table

    NONE = auto()
    LEASED = auto()  # the device was told to prepare it
    PUBLISHED = auto()  # the file is in the spool, nobody has looked into it
    FETCHING = auto()  # being read and verified
    READY = auto()


class Event(Enum):
    """What can happen to a copy."""

    __hash__ = object.__hash__  # Enum's own is in Python, and each step looks into a table

    CLAIM = auto()
    MADE = auto()
    LEASE = auto()
    PUBLISH = auto()
    FETCH = auto()
    VERIFY = auto()
    LOSE = auto()  # the device failed, its file is damaged or gone, or its pixels can't be trusted
    DROP = auto()  # the other copy won
    DELIVER = auto()


HOST: dict[tuple[HostCopy, Event], HostCopy] = {
    (HostCopy.NONE, Event.CLAIM): HostCopy.CLAIMED,
    (HostCopy.CLAIMED, Event.MADE): HostCopy.READY,
    (HostCopy.CLAIMED, Event.DROP): HostCopy.NONE,
    (HostCopy.READY, Event.DELIVER): HostCopy.NONE,
}
CSD: dict[tuple[CsdCopy, Event], CsdCopy] = {
    (CsdCopy.NONE, Event.LEASE): CsdCopy.LEASED,
    (CsdCopy.LEASED, Event.PUBLISH): CsdCopy.PUBLISHED,
    (CsdCopy.LEASED, Event.LOSE): CsdCopy.NONE,
    (CsdCopy.LEASED, Event.DROP): CsdCopy.NONE,
    (CsdCopy.PUBLISHED, Event.FETCH): CsdCopy.FETCHING,
    (CsdCopy.PUBLISHED, Event.LOSE): CsdCopy.NONE,
    (CsdCopy.PUBLISHED, Event.DROP): CsdCopy.NONE,
    (CsdCopy.FETCHING, Event.VERIFY): CsdCopy.READY,
    (CsdCopy.FETCHING, Event.LOSE): CsdCopy.NONE,
    (CsdCopy.FETCHING, Event.DROP): CsdCopy.NONE,
    (CsdCopy.READY, Event.LOSE): CsdCopy.NONE,
    (CsdCopy.READY, Event.DELIVER): CsdCopy.NONE,
}


class LedgerError(RuntimeError):
    """An event that the rules do not allow: a bug in the caller, never a fault of a device."""


@dataclass
class Entry:
    """A batch that somebody holds; free and delivered batches have none."""

    position: int
    host: HostCopy = HostCopy.NONE
    csd: CsdCopy = CsdCopy.NONE
    claim: int | None = None
    lease: int | None = None
    device: str | None = None
    progress: float = 0.0  # of the lease, 0 to 1
    progress_s: float = 0.0  # when the progress last moved

    def step_host(self, event: Event) -> None:
        """Move the host's copy. Raises `LedgerError` where its table has no such step."""
        try:
            self.host = HOST[self.host, event]
        except KeyError:
            raise LedgerError(f"batch {self.position}: {event.name} of the host's copy, {self.host.name}") from None

    def step_csd(self, event: Event) -> None:
        """Move the device's copy. Raises `LedgerError` where its table has no such step."""
        try:
            self.csd = CSD[self.csd, event]
        except KeyError:
            raise LedgerError(f"batch {self.position}: {event.name} of the device's copy, {self.csd.name}") from None
