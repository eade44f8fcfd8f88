"""The jobs of one training run's ranks: in which order they are served, and what they learn from each other. Pure.

With DistributedDataParallel each rank has a loader, and so a job, of its own. The ranks of one run that prepare the same data
set by the same pipeline are a group. Its jobs take turns, as all jobs of a host do (the paper's WRR), or one rank's directory
is filled before the next one's is begun (the paper's MTE). And what one rank's batches have shown of the device's speed all
of them are told: where one directory is filled first, the other ranks would take the device for dead.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, List, NamedTuple, Protocol, Tuple, TypeVar

__all__ = ["CALIBRATION", "Measurement", "Member", "learned", "others", "served_together", "to_tell", "without_turns"]

CALIBRATION = 10  # batches, from which any rate counts as known (the paper's number, too)

Measurement = Tuple[int, float]  # samples of a batch, seconds that a worker was busy with it


class Member(NamedTuple):
    """A job's place in a run: its name (empty: of none), the rank, and whether lower ranks' leases come before its own."""

    run: str = ""
    rank: int = 0
    after_lower: bool = False


class RankJob(Protocol):
    """What a group must know of a rank's job: `csd_engine.service.jobs.Job` is one."""

    @property
    def host(self) -> str:
        """The host that has opened it."""

    @property
    def member(self) -> Member:
        """Its place in the run."""

    @property
    def command(self) -> Dict[str, Any]:
        """What it prepares: "pipeline" and "dataset" among others."""

    @property
    def measured(self) -> "Collection[Measurement]":
        """Its last batches."""

    @property
    def told(self) -> int:
        """How many measurements of other ranks it was told."""


AJob = TypeVar("AJob", bound=RankJob)


def others(job: AJob, jobs: Iterable[AJob]) -> List[AJob]:
    """Return the other jobs of its group. A run is known to its host alone, so other hosts' jobs are never among them."""
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
    """Put those that come after their group's lower ranks behind them; the places that a group has in the order stay."""
    order = list(jobs)
    seen: List[AJob] = []
    for job in jobs:
        if not job.member.after_lower or any(job is one for one in seen):
            continue
        group = [one for one in [job, *others(job, jobs)] if one.member.after_lower]
        seen += group
        places = [k for k, one in enumerate(jobs) if any(one is member for member in group)]
        for place, one in zip(places, sorted(group, key=lambda one: one.member.rank)):
            order[place] = one
    return order


def served_together(job: AJob, jobs: Iterable[AJob]) -> List[AJob]:
    """Return those whose turn is over once this one has had it, itself last.

    That is its group where one rank comes first: taking turns one by one, it would always have a member in front of the
    host's other jobs, and the lowest rank would be served in that one's place for ever.
    """
    return [*(others(job, jobs) if job.member.after_lower else ()), job]


def learned(job: AJob, jobs: Iterable[AJob]) -> Tuple[Measurement, ...]:
    """Return what a job that joins its group should be told at once: the last measurements of the others."""
    found = [measurement for one in others(job, jobs) for measurement in one.measured]
    return tuple(found[-CALIBRATION:])


def to_tell(job: AJob, jobs: Iterable[AJob]) -> List[AJob]:
    """Return those of its group that do not know the device's speed yet, once this one has a new measurement."""
    return [one for one in others(job, jobs) if one.told + len(one.measured) < CALIBRATION]
