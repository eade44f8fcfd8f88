"""Jobs and their leases on the engine: who is next, and who may fill the spool. Pure; no socket, file, process or clock.

Hosts are served fairly by the workers' time, whatever they ask for and however many jobs they have; the jobs of one host
take turns, those whose training waits first.

The spool's quota is shared in the same way. Who holds less than a fair share takes what is free; who holds more takes it
only where that leaves the others theirs. A published batch is never taken away again, so a share that somebody else fills
and does not fetch could not be had back: two small parts stay free, one for hosts and one for jobs that hold next to
nothing, and nobody can be shut out by a job that is not being drained.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Tuple

from csd_engine.batchfile.reader import Layout
from csd_engine.protocol.codec import Lease, Probe
from csd_engine.service import groups
from csd_engine.service.groups import Measurement, Member
from csd_engine.service.meter import Meter

__all__ = ["FairQueue", "Job", "LeaseState", "Quota", "Work"]

_KEPT = 1 / 16  # of the quota, or one batch: kept free for newcomers among the hosts, and as much for those among the jobs
_SMALL = 1 / 64  # of the quota, or one batch: who holds no more is a newcomer
_EPSILON = 1e-9
_TOO_FEW = 1 / 8  # where a batch takes more of the quota than this, nothing is kept


@dataclass(frozen=True)
class Quota:
    """What the spool may hold: batches, and their bytes."""

    batches: int
    bytes: int

    def part(self, batches: int, size: int) -> float:
        """Return the part of the quota that so many batches of `size` bytes together take, 0 to 1."""
        return max(batches / self.batches, size / self.bytes)

    def usable(self, file_bytes: int) -> int:
        """Return how many batches of this size one job can hold, alone on the engine."""
        one = self.part(1, file_bytes)
        return int((1 - 2 * _kept_free(one)) / one + _EPSILON)


def _kept_free(one: float) -> float:
    """Return the part of the quota that is kept for newcomers, where a batch takes this part of it."""
    return 0.0 if one > _TOO_FEW else max(_KEPT, one)


class LeaseState(enum.Enum):
    """Where a lease stands. QUEUED -> WORKING -> PUBLISHED; a full disk sends WORKING back to QUEUED, and one that comes to
    nothing is dropped from where it stands.
    """

    QUEUED = "queued"
    WORKING = "working"
    PUBLISHED = "published"


@dataclass
class Work:
    """A lease on the engine."""

    lease: Lease
    layout: Layout  # of this batch: the job's with as many rows as the lease has items
    state: LeaseState = LeaseState.QUEUED
    samples: int = 0
    cancelled: bool = False
    charged_s: float = 0.0  # workers' time that its host was charged for it

    def __post_init__(self) -> None:
        self.file_bytes = self.layout.file_bytes


@dataclass
class Job:
    """One open job of one connection. `key` is its directory's name, unique in this engine; `command` opens it in a
    worker. `host` is who is served fairly: the connections of one computer are one.
    """

    peer: bytes
    host: str
    name: str
    key: str
    layout: Layout
    samples: int
    files: Tuple[Tuple[str, str], ...]  # (kind, fingerprint) of what its host has sent
    command: Dict[str, Any]
    meter: Meter  # of its images
    work: Dict[int, Work] = field(default_factory=dict)
    queue: Deque[int] = field(default_factory=deque)
    probes: Deque[Probe] = field(default_factory=deque)
    waiting: bool = False
    closing: bool = False
    silent: bool = False  # its host is gone: no answers
    sample_s: Optional[float] = None  # workers' time for one of its samples, last measured
    made: int = 0  # batches published
    member: Member = Member()
    measured: Deque[Measurement] = field(default_factory=lambda: deque(maxlen=groups.CALIBRATION))  # of its last batches
    told: int = 0  # measurements of its group's other jobs that its host has heard of
    held_back: str = ""  # why its next lease was not begun when a worker was free

    holds: Tuple[int, int] = (0, 0)  # batches and bytes that count against the quota
    wants: Tuple[int, int] = (0, 0)  # of those in its queue
    unfetched: int = 0  # batches published and not yet released

    @property
    def held(self) -> int:
        """Batches of this job that count against the quota."""
        return self.holds[0]

    @property
    def working(self) -> bool:
        """Whether a worker is at one of its leases."""
        return self.holds[0] > self.unfetched

    def add(self, work: Work) -> None:
        """Put a lease at the end of the queue."""
        self.work[work.lease.lease] = work
        self.queue.append(work.lease.lease)
        self._count(work, 1)

    def step(self, work: Work, state: LeaseState) -> None:
        """Note a lease's new state. One that goes back to QUEUED is the next again; one that leaves it was popped."""
        self._count(work, -1)
        work.state = state
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
        """Counted as they change: thousands of published batches may lie in the spool, and each lease begun asks."""
        change = (sign, sign * work.file_bytes)
        if work.state is LeaseState.QUEUED:
            self.wants = (self.wants[0] + change[0], self.wants[1] + change[1])
        else:
            self.holds = (self.holds[0] + change[0], self.holds[1] + change[1])
        if work.state is LeaseState.PUBLISHED:
            self.unfetched += sign

    def next_bytes(self) -> int:
        """Return the size of the batch that is next in its queue."""
        return self.work[self.queue[0]].file_bytes


class _Holding:
    """What somebody holds of the quota, and what waits for a part of it: (batches, bytes)."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._held = (0, 0)
        self._wanted = (0, 0)

    def add(self, held: Tuple[int, int], wanted: Tuple[int, int]) -> None:
        """Count a job."""
        self._held = (self._held[0] + held[0], self._held[1] + held[1])
        self._wanted = (self._wanted[0] + wanted[0], self._wanted[1] + wanted[1])

    @property
    def held(self) -> float:
        """The part of the quota that it holds."""
        return self._quota.part(*self._held)

    def claim(self, share: float) -> float:
        """Return what should be left to it."""
        return max(0.0, min(share - self.held, self._quota.part(*self._wanted)))


class _Holdings:
    """What all hold at this moment."""

    def __init__(self, jobs: Iterable[Job], quota: Quota) -> None:
        self.all = _Holding(quota)
        self.hosts: Dict[str, _Holding] = {}
        self.jobs: Dict[str, Dict[str, _Holding]] = {}  # by host and key
        for job in jobs:
            if not job.work:
                continue
            own = self.jobs.setdefault(job.host, {}).setdefault(job.key, _Holding(quota))
            for one in (self.all, self.hosts.setdefault(job.host, _Holding(quota)), own):
                one.add(job.holds, job.wants)


class FairQueue:
    """All jobs and their leases; says whose lease is next, so that hosts get equal shares of the workers' time."""

    def __init__(self) -> None:
        self._jobs: Dict[str, Job] = {}  # by key; the first is the next one's turn
        self._used_s: Dict[str, float] = {}  # workers' time by host, with what it missed while it wanted nothing
        self._served_s = 0.0  # no host that wants something has had less
        self._sample_s = 1.0  # of a job that was not measured yet: as the last one that was

    def add(self, job: Job) -> None:
        """Put a new job at the end of the turn."""
        self._jobs[job.key] = job
        self._used_s.setdefault(job.host, self._served_s)

    def remove(self, job: Job) -> None:
        """Take a job off."""
        del self._jobs[job.key]
        hosts = {one.host for one in self._jobs.values()}
        # One that has had more than the others is remembered: it may come back with its next job.
        self._used_s = {host: s for host, s in self._used_s.items() if host in hosts or s > self._served_s}

    def find(self, peer: bytes, name: str) -> Optional[Job]:
        """Return the connection's open job of that name."""
        return next((job for job in self._jobs.values() if job.peer == peer and job.name == name), None)

    def of(self, peer: Optional[bytes] = None) -> List[Job]:
        """Return all jobs, or those of one connection."""
        return [job for job in self._jobs.values() if peer is None or job.peer == peer]

    def _in_turn(self) -> List[Job]:
        """Jobs in the order to serve them: those whose training waits in turn, then the others, ranks as they wish."""
        open_jobs = [job for job in self._jobs.values() if not job.closing]
        return [job for job in open_jobs if job.waiting] + groups.without_turns(
            [job for job in open_jobs if not job.waiting]
        )

    def next_probe(self) -> Optional[Tuple[Job, Probe]]:
        """Take the next probe; probes come before leases, they take no space and somebody waits for each."""
        for job in self._in_turn():
            if job.probes:
                return job, job.probes.popleft()
        return None

    # -- leases

    def next_lease(self, shortage: Callable[[int], str], quota: Quota) -> Tuple[Optional[Tuple[Job, Work]], str]:
        """Take the next lease to begin, and say what holds leases back.

        Args:
            shortage: why a batch of so many bytes may not be begun now; empty if it may.
            quota: what the spool may hold.

        Returns:
            (job and lease, now WORKING, or None; the reason for holding back, or empty).
        """
        ready = [job for job in self._in_turn() if job.queue]
        note = ""
        if ready:
            self._served_s = max(self._served_s, min(self._used_s[job.host] for job in ready))
            for job in ready:  # what it did not want then is not made up for now
                self._used_s[job.host] = max(self._used_s[job.host], self._served_s)
        holdings = _Holdings(self._jobs.values() if ready else (), quota)
        for job in sorted(ready, key=lambda job: self._used_s[job.host]):
            short = shortage(job.next_bytes()) or self._kept_from(job, quota, holdings)
            job.held_back = short
            if not short:
                return (job, self._begin(job)), note
            note = note or short
        return None, note

    def _begin(self, job: Job) -> Work:
        work = job.work[job.queue.popleft()]
        job.step(work, LeaseState.WORKING)
        work.charged_s = len(work.lease.items) * (self._sample_s if job.sample_s is None else job.sample_s)
        self._used_s[job.host] += work.charged_s
        for one in groups.served_together(job, list(self._jobs.values())):
            self._jobs[one.key] = self._jobs.pop(one.key)  # the end of the turn
        return work

    def ended(self, job: Job, work: Work, busy_s: Optional[float]) -> None:
        """Take note of the workers' time that a lease has cost; None: it was broken off, and cost its part."""
        items = len(work.lease.items)
        if busy_s is None:
            busy_s = work.charged_s * min(1.0, work.samples / items)
        else:
            job.sample_s = self._sample_s = busy_s / items
        self._used_s[job.host] += busy_s - work.charged_s
        work.charged_s = 0.0

    # -- the quota

    @staticmethod
    def _kept_from(job: Job, quota: Quota, holdings: _Holdings) -> str:
        """Return why the job may not have what is free of the quota; empty if it may."""
        one = quota.part(1, job.next_bytes())
        hosts, jobs = holdings.hosts, holdings.jobs[job.host]
        host, own = hosts[job.host], jobs[job.key]
        share = (1 - 2 * _kept_free(one)) / len(hosts)
        claimed = 0.0
        if host.held >= share:
            claimed += sum(other.claim(share) for name, other in hosts.items() if name != job.host)
        share /= len(jobs)
        if own.held >= share:
            claimed += sum(other.claim(share) for key, other in jobs.items() if key != job.key)
        newcomer = max(one, _SMALL) - one + _EPSILON
        kept = ((host.held > newcomer) + (own.held > newcomer)) * _kept_free(one)
        free = 1 - holdings.all.held - one + _EPSILON
        if free >= claimed + kept:
            return ""
        who = "others that hold less than their share" if claimed else "hosts and jobs that hold nothing yet"
        return f"the rest of the spool quota is kept for {who}"
