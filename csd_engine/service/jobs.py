"""Jobs and their leases on the engine: whose lease is next, and who may fill the spool. No socket, file, process or clock.

All hosts get equal shares of the workers' time, however many jobs they have. Each pays for what its leases and probes have
cost, also for those that failed or were cancelled. So it is with the jobs of one host: those that take each batch as soon as it
is made get equal shares, and those that have batches in stock get the rest.

The spool's quota is shared in the same way. A host or job with less than a fair share may take any free part of the quota.
One with more may take a part only if enough stays free for the others' shares. The engine never takes a published batch
away, so a job that does not fetch its batches keeps its part of the quota. Two small parts therefore stay free for
newcomers: one for hosts and one for jobs that hold almost nothing. So no job can shut the others out.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Tuple

from csd_engine.batchfile.reader import Layout
from csd_engine.protocol.codec import Lease, Probe
from csd_engine.service import groups
from csd_engine.service.groups import Measurement, Member
from csd_engine.service.meter import Meter

__all__ = ["FairQueue", "Job", "LeaseState", "Parcel", "ProbeWork", "Quota", "Work"]

_FREE_FOR_NEWCOMERS = 1 / 16  # part of the quota, but at least one batch: for hosts, and as much again for jobs
_NEWCOMER_HOLDS = 1 / 64  # part of the quota, but at least one batch: a newcomer holds no more
_STOCK = 2  # batches that wait to be fetched: a job with more is not in need
_IN_TURN = 4  # batches that one in need may hold by turns: at work, waiting, and on their way to its host
_EPSILON = 1e-9
_LARGE_BATCH = 1 / 8  # part of the quota: if a batch takes more, nothing is kept free for newcomers


@dataclass(frozen=True)
class Quota:
    """What the spool may hold: batches, and their bytes."""

    batches: int
    bytes: int

    def part(self, batches: int, size: int) -> float:
        """Return the part of the quota, 0 to 1, that `batches` batches of `size` bytes in all take."""
        return max(batches / self.batches, size / self.bytes)

    def usable(self, file_bytes: int) -> int:
        """Return how many batches of this size a job can hold if it is alone on the engine."""
        one = self.part(1, file_bytes)
        return int((1 - 2 * _free_for_newcomers(one)) / one + _EPSILON)


def _free_for_newcomers(one: float) -> float:
    """Return the part of the quota that stays free for newcomers. `one`: the part that one batch takes."""
    return 0.0 if one > _LARGE_BATCH else max(_FREE_FOR_NEWCOMERS, one)


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
    made: int = 0  # batches published
    member: Member = Member()
    measured: Deque[Measurement] = field(default_factory=lambda: deque(maxlen=groups.CALIBRATION))  # of its last batches
    told: int = 0  # measurements of its group's other jobs that its host has heard of
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
        told = set(map(id, expected))
        return next((work for work in map(self.work.__getitem__, self.queue) if id(work) not in told), None)

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


class _Holding:
    """The (batches, bytes) that a host or job holds of the quota, and those that it waits for."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._held = (0, 0)
        self._wanted = (0, 0)

    def add(self, held: Tuple[int, int], wanted: Tuple[int, int]) -> None:
        """Count what a job holds and wants, batches and bytes of each."""
        self._held = (self._held[0] + held[0], self._held[1] + held[1])
        self._wanted = (self._wanted[0] + wanted[0], self._wanted[1] + wanted[1])

    @property
    def held(self) -> float:
        """The held part of the quota, 0 to 1."""
        return self._quota.part(*self._held)

    def claim(self, share: float) -> float:
        """Return the part of the quota that others must leave free for this one. `share`: its fair share."""
        return max(0.0, min(share - self.held, self._quota.part(*self._wanted)))


def _wanted(job: Job) -> Tuple[int, int]:
    """Return the batches and bytes that others must leave for a job: its queue's, and more if it is in need.

    Its host leases no more than a batch or two ahead, and others would take all the rest into stock.
    """
    waits = job.in_need and (job.queue or job.working)
    more = max(0, _IN_TURN - job.unfetched - len(job.queue)) if waits else 0
    return job.wants[0] + more, job.wants[1] + more * job.layout.file_bytes


class _Holdings:
    """The parts of the quota that all hosts and jobs hold at this moment."""

    def __init__(self, jobs: Iterable[Job], quota: Quota) -> None:
        self.all = _Holding(quota)
        self.hosts: Dict[str, _Holding] = {}
        self.jobs: Dict[str, Dict[str, _Holding]] = {}  # by host and key
        for job in jobs:
            if not job.work:
                continue
            own = self.jobs.setdefault(job.host, {}).setdefault(job.key, _Holding(quota))
            for one in (self.all, self.hosts.setdefault(job.host, _Holding(quota)), own):
                one.add(job.holds, _wanted(job))


class FairQueue:
    """All jobs and their leases. It chooses the next lease so that hosts get equal shares of the workers' time."""

    def __init__(self) -> None:
        self._jobs: Dict[str, Job] = {}  # by key, in the order of their turns
        self._used_s: Dict[str, float] = {}  # workers' time by host; the time while a host wanted nothing counts as used
        self._estimated_s: Dict[str, float] = {}  # the part of it that is the estimate for leases at work
        self._served_s = 0.0  # workers' time that every host that wants something has used at least
        self._job_served_s: Dict[str, float] = {}  # the same for the jobs of each host
        self._sample_s: Dict[str, float] = {}  # by host, as last measured: the estimate for its next job

    def add(self, job: Job) -> None:
        """Add a job; its turn comes last."""
        self._jobs[job.key] = job
        self._used_s.setdefault(job.host, self._served_s)
        job.used_s = self._job_served_s.setdefault(job.host, 0.0)

    def remove(self, job: Job) -> None:
        """Remove a job."""
        del self._jobs[job.key]
        hosts = {one.host for one in self._jobs.values()}
        # A host that has had more time than the others is remembered: it may come back with another job.
        self._used_s = {host: s for host, s in self._used_s.items() if host in hosts or s > self._served_s}
        for known in (self._estimated_s, self._sample_s, self._job_served_s):
            for host in set(known) - set(self._used_s):
                del known[host]

    def find(self, peer: bytes, name: str) -> Optional[Job]:
        """Return the connection's open job of that name."""
        return next((job for job in self._jobs.values() if job.peer == peer and job.name == name), None)

    def of_host(self, host: str) -> List[Job]:
        """Return all jobs of a host, over all its connections."""
        return [job for job in self._jobs.values() if job.host == host]

    def of(self, peer: Optional[bytes] = None) -> List[Job]:
        """Return all jobs, or those of one connection."""
        return [job for job in self._jobs.values() if peer is None or job.peer == peer]

    def _service_order(self) -> List[Job]:
        """Return open jobs in the order of service: jobs in need, then those with batches in stock.

        In each part, those that have used less time than the host's other jobs come first, and else whose turn it is. A run's
        ranks may come in the order of their numbers.
        """
        open_jobs = [job for job in self._jobs.values() if not job.closing]
        return groups.without_turns(sorted(open_jobs, key=lambda job: (not job.in_need, job.used_s)))

    def _serve(self) -> None:
        """Note the time that all hosts that want something have used. For a host that wanted nothing, it counts as used.

        So it is with the jobs of one host, where the time in which a job has batches in stock counts as used too.

        A host whose lease is at work wants something, though its queue may be empty for a moment: it keeps the time that is
        due to it.
        """
        jobs = [job for job in self._jobs.values() if job.can_begin or job.can_probe or job.working]
        wanting = {job.host for job in jobs}
        for host in wanting:
            own = [job for job in jobs if job.host == host]
            least_s = min(job.used_s for job in [job for job in own if job.in_need] or own)
            self._job_served_s[host] = max(self._job_served_s[host], least_s)
        for job in jobs:
            job.used_s = max(job.used_s, self._job_served_s[job.host])
        if wanting:
            self._served_s = max(self._served_s, min(self._used_s[host] for host in wanting))
        for host in wanting:
            self._used_s[host] = max(self._used_s[host], self._served_s)

    # -- probes

    def next_probe(self, in_turn: bool) -> Optional[Tuple[Job, ProbeWork]]:
        """Return the next probe, which a worker begins or goes on with.

        A host's probes come before its leases: they take no space, and the host waits for each.

        Args:
            in_turn: not if another host waits for a lease and has used less time. A host's leases at work do not count here:
                it does not wait for their end.
        """
        if not any(job.can_probe for job in self._jobs.values()):  # nearly always; it is asked for each batch
            return None
        self._serve()
        jobs = self._service_order()
        measured_s = {job.host: self._used_s[job.host] - self._estimated_s.get(job.host, 0.0) for job in jobs if job.can_probe}
        job = min((job for job in jobs if job.can_probe), key=lambda job: measured_s[job.host], default=None)
        if job is None:
            return None
        others = (one.host for one in jobs if one.can_begin and one.host != job.host)
        if in_turn and any(self._used_s[host] < measured_s[job.host] for host in others):
            return None
        if job.probe_parcel is not None:
            job.probe_parcel.taken = True
        job.probing = True
        return job, job.probes[0]

    def probed(self, job: Job, digests: Iterable[str], spent_s: float) -> Optional[ProbeWork]:
        """Note what a turn of the probe that a worker was at has brought, and charge its time, in seconds.

        Returns:
            The probe, if that is complete: it is off the queue. Else it waits for its next turn.
        """
        self._used_s[job.host] += spent_s
        job.probing = False
        if job.probe_parcel is not None:
            job.probe_parcel.taken = False
        if not job.probes:  # the job is being closed
            return None
        probe = job.probes[0]
        probe.digests += digests
        probe.spent_s += spent_s
        return None if probe.left else job.probes.popleft()

    def stalled(self, host: str, spent_s: float) -> None:
        """Charge workers' time that a host has cost otherwise, in seconds: whether it has a job now or not."""
        self._used_s[host] = self._used_s.get(host, self._served_s) + spent_s

    # -- leases

    def next_lease(self, shortage: Callable[[int], str], quota: Quota) -> Tuple[Optional[Tuple[Job, Work]], str]:
        """Take the next lease to begin, and say why leases are held back.

        Args:
            shortage: returns why a batch of that many bytes may not be begun now, or an empty text if it may.
            quota: the spool's quota.

        Returns:
            The job and its lease, which is now WORKING, or None; and the reason for holding leases back, or an empty text.
        """
        ready = [job for job in self._service_order() if job.can_begin]
        note = ""
        self._serve()
        holdings = _Holdings(self._jobs.values() if ready else (), quota)
        for job in sorted(ready, key=lambda job: self._used_s[job.host]):
            short = shortage(job.next_bytes()) or self._quota_shortage(job, quota, holdings)
            job.held_back = short
            if not short:
                return (job, self._begin(job)), note
            note = note or short
        return None, note

    def _begin(self, job: Job) -> Work:
        work = job.work[job.queue.popleft()]
        job.step(work, LeaseState.WORKING)
        sample_s = self._sample_s.get(job.host, 0.0) if job.sample_s is None else job.sample_s
        work.estimated_s = len(work.lease.items) * sample_s
        self._charge(job, work.estimated_s, work.estimated_s)
        for one in groups.served_together(job, list(self._jobs.values())):
            self._jobs[one.key] = self._jobs.pop(one.key)  # the end of the turn
        return work

    def ended(self, job: Job, work: Work, spent_s: float, published: bool) -> None:
        """Charge the workers' time that a lease has cost, in seconds, whether it was published, has failed or was cancelled."""
        if published:
            job.sample_s = self._sample_s[job.host] = spent_s / len(work.lease.items)
        self._charge(job, spent_s - work.estimated_s, -work.estimated_s)
        work.estimated_s = 0.0

    def _charge(self, job: Job, used_s: float, estimated_s: float) -> None:
        self._used_s[job.host] += used_s
        self._estimated_s[job.host] = self._estimated_s.get(job.host, 0.0) + estimated_s
        for one in groups.served_together(job, self._jobs.values()):
            one.used_s += used_s

    # -- the quota

    @staticmethod
    def _quota_shortage(job: Job, quota: Quota, holdings: _Holdings) -> str:
        """Return why the job may not take a free part of the quota, or an empty text if it may."""
        one = quota.part(1, job.next_bytes())
        hosts, jobs = holdings.hosts, holdings.jobs[job.host]
        host, own = hosts[job.host], jobs[job.key]
        share = (1 - 2 * _free_for_newcomers(one)) / len(hosts)
        claimed = 0.0
        if host.held >= share - _EPSILON:  # shares are often whole numbers of batches, and floats just miss them
            claimed += sum(other.claim(share) for name, other in hosts.items() if name != job.host)
        share /= len(jobs)
        if own.held >= share - _EPSILON:
            claimed += sum(other.claim(share) for key, other in jobs.items() if key != job.key)
        newcomer = max(one, _NEWCOMER_HOLDS) - one + _EPSILON
        kept = ((host.held > newcomer) + (own.held > newcomer)) * _free_for_newcomers(one)
        free = 1 - holdings.all.held - one + _EPSILON
        if free >= claimed + kept:
            return ""
        who = "others that hold less than their share" if claimed else "hosts and jobs that hold nothing yet"
        return f"the rest of the spool quota is kept for {who}"
