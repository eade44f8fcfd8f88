"""Jobs and their leases on the engine, as data. No socket, file, process or clock."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Deque, Dict, Iterable, List, NamedTuple, Optional, Tuple

from csd_engine.batchfile.reader import Layout
from csd_engine.protocol.codec import Lease, Probe

__all__ = ["CALIBRATION", "Job", "LeaseState", "Measurement", "Member", "Meter", "Parcel", "ProbeWork", "Work"]

_STOCK = 2  # batches that wait to be fetched: a job with more is not in need
WINDOW_S = 10.0  # of a meter
_LEAST_SPAN_S = 1.0  # else one image in the first millisecond would be a thousand a second
_SLOT_S = 0.5  # counts that are closer together are kept as one
CALIBRATION = 10  # batches after which a rate counts as known; the paper's number

Measurement = Tuple[int, float]  # samples of a batch, seconds that a worker was busy with it


class Member(NamedTuple):
    """A job's run (empty: none), its rank, and whether leases of lower ranks come before its own."""

    run: str = ""
    rank: int = 0
    after_lower: bool = False


class Meter:
    """Counts images. `now` is the time of any monotonic clock, in seconds; it never goes back."""

    def __init__(self, now: float) -> None:
        self.total = 0
        self._began = now
        self._slots: Deque[List[float]] = deque()  # [when it was begun, images]

    def add(self, images: int, now: float) -> None:
        """Count images that are done now."""
        self.total += images
        if self._slots and now - self._slots[-1][0] < _SLOT_S:
            self._slots[-1][1] += images
        else:
            self._forget(now)
            self._slots.append([now, images])

    def per_s(self, now: float) -> float:
        """Return images a second over the last WINDOW_S, or since the meter's start if that is later (at least 1 s)."""
        self._forget(now)
        span = max(_LEAST_SPAN_S, min(WINDOW_S, now - self._began))
        return sum(images for _, images in self._slots) / span

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] > WINDOW_S:
            self._slots.popleft()


class LeaseState(enum.Enum):
    """The state of a lease: QUEUED -> WORKING -> PUBLISHED.

    A full disk sends it from WORKING back to QUEUED. A lease that fails or is cancelled is dropped from any state.
    """

    QUEUED = "queued"
    WORKING = "working"
    PUBLISHED = "published"


@dataclass
class Parcel:
    """The source bytes of a lease's or a probe's samples, which its host sends (`csd_engine.data.carried`).

    Attributes:
        name: of its file in the job's directory.
        total, digest: as its first part says; 0 and "" before that.
        asked, come: bytes that the engine has asked for, and that it has.
        reserved: its bytes count in the spool.
        taken: a worker makes the probe.
        heard_s: when a part came last.
    """

    name: str
    heard_s: float
    total: int = 0
    digest: str = ""
    asked: int = 0
    come: int = 0
    reserved: bool = False
    taken: bool = False

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return self.reserved and self.come == self.total


@dataclass
class Work:
    """A lease on the engine."""

    lease: Lease
    layout: Layout  # the job's, with one row for each item of the lease
    state: LeaseState = LeaseState.QUEUED
    samples: int = 0
    cancelled: bool = False
    estimated_s: float = 0.0  # workers' time that its host is charged while it is at work
    parcel: Optional[Parcel] = None

    def __post_init__(self) -> None:
        self.file_bytes = self.layout.file_bytes


@dataclass
class ProbeWork:
    """A probe on the engine. One of many samples takes several turns of a worker."""

    probe: Probe
    digests: List[str] = field(default_factory=list)  # of its first items
    spent_s: float = 0.0  # workers' time

    @property
    def left(self) -> Tuple[Tuple[int, int], ...]:
        """Its items that have no digest yet."""
        return self.probe.items[len(self.digests) :]


@dataclass
class Job:
    """One open job of one connection.

    `key` is the name of the job's directory, unique in this engine. `command` opens the job in a worker. `host` is who is
    served fairly, the public key of a client: all connections that have it are one host.
    """

    peer: bytes
    host: str
    name: str
    key: str
    layout: Layout
    samples: int
    files: Tuple[Tuple[str, str], ...]  # (kind, fingerprint) of the files that its host has sent
    command: Dict[str, Any]
    meter: Meter  # of its images
    description_bytes: int  # of its pipeline and data set, as JSON
    work: Dict[int, Work] = field(default_factory=dict)
    queue: Deque[int] = field(default_factory=deque)
    probes: Deque[ProbeWork] = field(default_factory=deque)
    probing: bool = False  # a worker is at its first probe: their answers come in order
    waiting: bool = False
    closing: bool = False
    silent: bool = False  # its host is gone: the engine sends no answers
    sample_s: Optional[float] = None  # workers' time for one of its samples, as last measured
    batches_made: int = 0  # batches published
    member: Member = Member()
    measured: Deque[Measurement] = field(default_factory=lambda: deque(maxlen=CALIBRATION))  # of its last batches
    measurements_sent: int = 0  # measurements of its group's other jobs that its host has heard of
    used_s: float = 0.0  # workers' time beside the host's other jobs; the time in which it wanted nothing counts as used
    held_back: str = ""  # why its next lease was not begun when a worker was free
    carried: bool = False  # its host sends the samples' bytes with each lease
    requested: bool = False  # its workers request samples from a storage
    probe_parcel: Optional[Parcel] = None

    items: int = 0  # of its leases that are not yet published: samples to make
    holds: Tuple[int, int] = (0, 0)  # batches and bytes that count against the quota
    wants: Tuple[int, int] = (0, 0)  # batches and bytes of its queue
    unfetched: int = 0  # batches published and not yet released

    @property
    def held(self) -> int:
        """Batches of this job that count against the quota."""
        return self.holds[0]

    @property
    def working(self) -> bool:
        """Whether a worker is at one of its leases."""
        return self.holds[0] > self.unfetched

    @property
    def in_need(self) -> bool:
        """Whether its training waits, or takes each batch at once; or it is a rank that comes after lower ones."""
        return self.waiting or self.unfetched <= _STOCK or self.member.after_lower

    @property
    def can_begin(self) -> bool:
        """Whether a lease waits whose samples can be read now."""
        return bool(self.queue) and (not self.carried or _is_here(self.work[self.queue[0]].parcel))

    @property
    def can_probe(self) -> bool:
        """Whether a probe waits whose samples can be read now."""
        return bool(self.probes) and not self.probing and (not self.carried or _is_here(self.probe_parcel))

    def add(self, work: Work) -> None:
        """Put a lease at the end of the queue."""
        self.work[work.lease.lease] = work
        self.queue.append(work.lease.lease)
        self._count(work, 1)

    def queued(self, leases: Iterable[Work]) -> List[Work]:
        """Return those of these leases that are in the queue, in their order."""
        return [work for work in leases if work.state is LeaseState.QUEUED and self.work.get(work.lease.lease) is work]

    def unexpected(self, expected: Iterable[Work]) -> Optional[Work]:
        """Return the first lease of the queue that is none of these, which workers expect. None: there is none."""
        expected_ids = set(map(id, expected))
        return next((work for work in map(self.work.__getitem__, self.queue) if id(work) not in expected_ids), None)

    def bring_forward(self, work: Work) -> None:
        """Make a lease of the queue the next one."""
        self.queue.remove(work.lease.lease)
        self.queue.appendleft(work.lease.lease)

    def step(self, work: Work, state: LeaseState) -> None:
        """Set a lease's state. A lease that goes back to QUEUED is the next one. One that leaves QUEUED is off the queue.

        One that is published keeps no items: it may stay for long, and they take memory.
        """
        self._count(work, -1)
        work.state = state
        if state is LeaseState.PUBLISHED:
            work.lease = replace(work.lease, items=())
        self._count(work, 1)
        if state is LeaseState.QUEUED:
            self.queue.appendleft(work.lease.lease)

    def drop(self, work: Work) -> None:
        """Forget a lease."""
        if work.state is LeaseState.QUEUED:
            self.queue.remove(work.lease.lease)
        del self.work[work.lease.lease]
        self._count(work, -1)

    def _count(self, work: Work, sign: int) -> None:
        """Update the sums with each change: each lease needs them, and thousands of published batches may be in the spool."""
        change = (sign, sign * work.file_bytes)
        if work.state is LeaseState.QUEUED:
            self.wants = (self.wants[0] + change[0], self.wants[1] + change[1])
        else:
            self.holds = (self.holds[0] + change[0], self.holds[1] + change[1])
        if work.state is LeaseState.PUBLISHED:
            self.unfetched += sign
        else:
            self.items += sign * work.layout.batch

    def next_bytes(self) -> int:
        """Return the size of the batch that is next in its queue."""
        return self.work[self.queue[0]].file_bytes


def _is_here(parcel: Optional[Parcel]) -> bool:
    return parcel is not None and parcel.complete and not parcel.taken
