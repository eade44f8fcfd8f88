"""The two copies of a batch, as tables.

A batch may exist in two copies at once, the host's and a device's, because a late lease is taken back while the
device may still finish it. Each copy is a small state machine of its own (``HOST``, ``CSD``).

The pair is right for three reasons. A copy counts as made only when it is complete and verified in this process's memory
(READY). The moment one copy is READY the other is dropped, so at most one READY copy exists. Only delivery is final; it
needs a READY copy, and happens once, since it ends the batch's entry. Every other event either moves a copy that is
still wanted, or has a claim or lease number that is no longer known. In the second case its copy is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class HostCopy(Enum):
    """The host's copy of a batch."""

    __hash__ = object.__hash__  # fast; Enum's hash is in Python, and each step looks into a table

    NONE = auto()
    CLAIMED = auto()  # a worker prepares it
    READY = auto()


class CsdCopy(Enum):
    """A device's copy of a batch."""

    __hash__ = object.__hash__  # fast; Enum's hash is in Python, and each step looks into a table

    NONE = auto()
    LEASED = auto()  # the device was told to prepare it
    PUBLISHED = auto()  # the file is in the spool, and nobody has read it yet
    FETCHING = auto()  # it is being read and verified
    READY = auto()


class Event(Enum):
    """An event that can happen to a copy."""

    __hash__ = object.__hash__  # fast; Enum's hash is in Python, and each step looks into a table

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
    """The state of a batch that somebody holds. Free and delivered batches have no entry."""

    position: int
    host: HostCopy = HostCopy.NONE
    csd: CsdCopy = CsdCopy.NONE
    claim: int | None = None
    lease: int | None = None
    device: str | None = None
    progress: float = 0.0  # of the lease, 0 to 1
    progress_s: float = 0.0  # when the progress last moved

    def step_host(self, event: Event) -> None:
        """Move the host's copy. Raises `LedgerError` if its table has no such step."""
        try:
            self.host = HOST[self.host, event]
        except KeyError:
            raise LedgerError(f"batch {self.position}: {event.name} of the host's copy, {self.host.name}") from None

    def step_csd(self, event: Event) -> None:
        """Move the device's copy. Raises `LedgerError` if its table has no such step."""
        try:
            self.csd = CSD[self.csd, event]
        except KeyError:
            raise LedgerError(f"batch {self.position}: {event.name} of the device's copy, {self.csd.name}") from None
