"""Whose lease is next on the engine, and who may fill the spool. No socket, file, process or clock.

All hosts get equal shares of the workers' time, however many jobs they have. Each pays for what its leases and probes have
cost, also for those that failed or were cancelled. So it is with the jobs of one host: those that take each batch as soon as it
is made get equal shares, and those that have batches in stock get the rest.

The spool's quota is shared in the same way. A host or job with less than a fair share may take any free part of the quota.
One with more may take a part only if enough stays free for the others' shares. The engine never takes a published batch
away, so a job that does not fetch its batches keeps its part of the quota. Two small parts therefore stay free for
newcomers: one for hosts and one for jobs that hold almost nothing. So no job can shut the others out.

With DistributedDataParallel each rank has its own loader, and so its own job. Ranks of one run that prepare the same data set
by the same pipeline are a group. The jobs of a group take turns, like all jobs of a host (the paper's WRR), or one rank's
directory is filled before the next one is begun (the paper's MTE). All ranks of a group learn the device's speed from each
rank's batches: if one directory is filled first, the other ranks would otherwise take the device for dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from csd_engine.service.jobs import CALIBRATION, Job, LeaseState, Measurement, ProbeWork, Work

__all__ = ["FairQueue", "Quota", "learned", "others", "served_together", "to_tell", "without_turns"]

_FREE_FOR_NEWCOMERS = 1 / 16  # part of the quota, but at least one batch: for hosts, and as much again for jobs
_NEWCOMER_HOLDS = 1 / 64  # part of the quota, but at least one batch: a newcomer holds no more
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
        batch_part = self.part(1, file_bytes)
        return int((1 - 2 * _free_for_newcomers(batch_part)) / batch_part + _EPSILON)


def _free_for_newcomers(batch_part: float) -> float:
    """Return the part of the quota that stays free for newcomers. `batch_part`: what a batch takes."""
    return 0.0 if batch_part > _LARGE_BATCH else max(_FREE_FOR_NEWCOMERS, batch_part)


def others(job: Job, jobs: Iterable[Job]) -> List[Job]:
    """Return the other jobs of the job's group. They are all of one host: only a run's own host knows it."""
    if not job.member.run:
        return []
    return [
        other
        for other in jobs
        if other is not job
        and (other.host, other.member.run) == (job.host, job.member.run)
        and all(other.command.get(key) == job.command.get(key) for key in ("pipeline", "dataset"))
    ]


def without_turns(jobs: List[Job]) -> List[Job]:
    """Sort the jobs of each group whose lower ranks come first: those whose training waits, in their order, then by rank.

    The group's jobs keep their places in the list.
    """
    order = list(jobs)
    seen: List[Job] = []
    for job in jobs:
        if not job.member.after_lower or any(job is earlier for earlier in seen):
            continue
        group = [candidate for candidate in [job, *others(job, jobs)] if candidate.member.after_lower]
        seen += group
        places = [k for k, candidate in enumerate(jobs) if any(candidate is member for member in group)]
        group.sort(key=lambda member: (not member.waiting, 0 if member.waiting else member.member.rank))
        for place, member in zip(places, group):
            order[place] = member
    return order


def served_together(job: Job, jobs: Iterable[Job]) -> List[Job]:
    """Return the jobs whose turn is over when this job is served; this job is the last.

    If lower ranks come first, that is the whole group. If each member had a turn of its own, one of them would always stand
    before the host's other jobs, and the lowest rank would be served in its place for ever.
    """
    return [*(others(job, jobs) if job.member.after_lower else ()), job]


def learned(job: Job, jobs: Iterable[Job]) -> Tuple[Measurement, ...]:
    """Return the others' last measurements, which a job that joins its group gets at once."""
    measurements = [measurement for other in others(job, jobs) for measurement in other.measured]
    return tuple(measurements[-CALIBRATION:])


def to_tell(job: Job, jobs: Iterable[Job]) -> List[Job]:
    """Return the jobs of the group that do not know the device's speed yet, and so get this job's new measurement."""
    return [other for other in others(job, jobs) if other.measurements_sent + len(other.measured) < CALIBRATION]


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
            for holding in (self.all, self.hosts.setdefault(job.host, _Holding(quota)), own):
                holding.add(job.holds, _wanted(job))


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
        hosts = {other.host for other in self._jobs.values()}
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
        return without_turns(sorted(open_jobs, key=lambda job: (not job.in_need, job.used_s)))

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
        hosts = (other.host for other in jobs if other.can_begin and other.host != job.host)
        if in_turn and any(self._used_s[host] < measured_s[job.host] for host in hosts):
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
        for served in served_together(job, list(self._jobs.values())):
            self._jobs[served.key] = self._jobs.pop(served.key)  # the end of the turn
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
        for served in served_together(job, self._jobs.values()):
            served.used_s += used_s

    # -- the quota

    @staticmethod
    def _quota_shortage(job: Job, quota: Quota, holdings: _Holdings) -> str:
        """Return why the job may not take a free part of the quota, or an empty text if it may."""
        batch_part = quota.part(1, job.next_bytes())
        hosts, jobs = holdings.hosts, holdings.jobs[job.host]
        host, own = hosts[job.host], jobs[job.key]
        share = (1 - 2 * _free_for_newcomers(batch_part)) / len(hosts)
        claimed = 0.0
        if host.held >= share - _EPSILON:  # shares are often whole numbers of batches, and floats just miss them
            claimed += sum(other.claim(share) for name, other in hosts.items() if name != job.host)
        share /= len(jobs)
        if own.held >= share - _EPSILON:
            claimed += sum(other.claim(share) for key, other in jobs.items() if key != job.key)
        newcomer = max(batch_part, _NEWCOMER_HOLDS) - batch_part + _EPSILON
        kept = ((host.held > newcomer) + (own.held > newcomer)) * _free_for_newcomers(batch_part)
        free = 1 - holdings.all.held - batch_part + _EPSILON
        if free >= claimed + kept:
            return ""
        who = "others that hold less than their share" if claimed else "hosts and jobs that hold nothing yet"
        return f"the rest of the spool quota is kept for {who}"
