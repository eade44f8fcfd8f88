"""The jobs of one training run's ranks: the order in which they are served, and the measurements that they share.

With DistributedDataParallel each rank has its own loader, and so its own job. Ranks of one run that prepare the same data set
by the same pipeline are a group. The jobs of a group take turns, like all jobs of a host (the paper's WRR), or one rank's
directory is filled before the next one is begun (the paper's MTE). All ranks of a group learn the device's speed from each
rank's batches: if one directory is filled first, the other ranks would otherwise take the device for dead.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, List, NamedTuple, Protocol, Tuple, TypeVar

__all__ = ["CALIBRATION", "Measurement", "Member", "learned", "others", "served_together", "to_tell", "without_turns"]

CALIBRATION = 10  # batches after which a rate counts as known; the paper's number

Measurement = Tuple[int, float]  # samples of a batch, seconds that a worker was busy with it


class Member(NamedTuple):
    """A job's run (empty: none), its rank, and whether leases of lower ranks come before its own."""

    run: str = ""
    rank: int = 0
    after_lower: bool = False


class RankJob(Protocol):
    """A rank's job, as far as its group needs it. `csd_engine.service.jobs.Job` is one."""

    @property
    def host(self) -> str:
        """The host that has opened the job."""

    @property
    def member(self) -> Member:
        """Its place in the run."""

    @property
    def waiting(self) -> bool:
        """Whether its training waits for a batch."""

    @property
    def command(self) -> Dict[str, Any]:
        """The command that opens the job in a worker: "pipeline", "dataset" and others."""

    @property
    def measured(self) -> "Collection[Measurement]":
        """The measurements of its last batches."""

    @property
    def told(self) -> int:
        """The number of other ranks' measurements that its host was sent."""


AJob = TypeVar("AJob", bound=RankJob)


def others(job: AJob, jobs: Iterable[AJob]) -> List[AJob]:
    """Return the other jobs of the job's group. They are all of one host: only a run's own host knows it."""
    if not job.member.run:
        return []
    return [
        one
        for one in jobs
        if one is not job
        and (one.host, one.member.run) == (job.host, job.member.run)
        and all(one.command.get(key) == job.command.get(key) for key in ("pipeline", "dataset"))
    ]


def without_turns(jobs: List[AJob]) -> List[AJob]:
    """Sort the jobs of each group whose lower ranks come first: those whose training waits, in their order, then by rank.

    The group's jobs keep their places in the list.
    """
    order = list(jobs)
    seen: List[AJob] = []
    for job in jobs:
        if not job.member.after_lower or any(job is one for one in seen):
            continue
        group = [one for one in [job, *others(job, jobs)] if one.member.after_lower]
        seen += group
        places = [k for k, one in enumerate(jobs) if any(one is member for member in group)]
        for place, one in zip(places, sorted(group, key=lambda one: (not one.waiting, 0 if one.waiting else one.member.rank))):
            order[place] = one
    return order


def served_together(job: AJob, jobs: Iterable[AJob]) -> List[AJob]:
    """Return the jobs whose turn is over when this job is served; this job is the last.

    If lower ranks come first, that is the whole group. If each member had a turn of its own, one of them would always stand
    before the host's other jobs, and the lowest rank would be served in its place for ever.
    """
    return [*(others(job, jobs) if job.member.after_lower else ()), job]


def learned(job: AJob, jobs: Iterable[AJob]) -> Tuple[Measurement, ...]:
    """Return the others' last measurements, which a job that joins its group gets at once."""
    found = [measurement for one in others(job, jobs) for measurement in one.measured]
    return tuple(found[-CALIBRATION:])


def to_tell(job: AJob, jobs: Iterable[AJob]) -> List[AJob]:
    """Return the jobs of the group that do not know the device's speed yet, and so get this job's new measurement."""
    return [one for one in others(job, jobs) if one.told + len(one.measured) < CALIBRATION]
