"""Jobs and their leases on the engine: who is next. Pure state; no socket, file, process or clock."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from csd_engine.batchfile import Layout
from csd_engine.meter import Meter
from csd_engine.protocol import Lease, Probe

__all__ = ["Board", "Job", "LeaseState", "Work"]


class LeaseState(enum.Enum):
    """Where a lease stands. QUEUED -> WORKING -> PUBLISHED; a full disk sends WORKING back to QUEUED."""

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


@dataclass
class Job:
    """One open job of one host. `key` is its directory's name, unique in this engine; `command` opens it in a
    worker.
    """

    peer: bytes
    name: str
    key: str
    layout: Layout
    samples: int
    manifests: Tuple[str, ...]
    command: Dict[str, Any]
    meter: Meter  # of its images
    work: Dict[int, Work] = field(default_factory=dict)
    queue: Deque[int] = field(default_factory=deque)
    probes: Deque[Probe] = field(default_factory=deque)
    waiting: bool = False
    closing: bool = False
    silent: bool = False  # its host is gone: no answers
    made: int = 0  # batches published
    held_back: str = ""  # why its next lease was not begun when a worker was free

    @property
    def held(self) -> int:
        """Batches of this job that count against the quota."""
        return sum(one.state is not LeaseState.QUEUED for one in self.work.values())

    @property
    def unfetched(self) -> int:
        """Batches of this job that are published and not yet released."""
        return sum(one.state is LeaseState.PUBLISHED for one in self.work.values())

    @property
    def working(self) -> bool:
        """Whether a worker is at one of its leases."""
        return any(one.state is LeaseState.WORKING for one in self.work.values())


class Board:
    """All jobs, in the order of their turns."""

    def __init__(self) -> None:
        self._jobs: Dict[str, Job] = {}  # by key; the first is the next one's turn

    def add(self, job: Job) -> None:
        """Put a new job at the end of the turn."""
        self._jobs[job.key] = job

    def remove(self, job: Job) -> None:
        """Take a job off."""
        del self._jobs[job.key]

    def get(self, key: str) -> Optional[Job]:
        """Return the job of that key."""
        return self._jobs.get(key)

    def find(self, peer: bytes, name: str) -> Optional[Job]:
        """Return the host's open job of that name."""
        return next((job for job in self._jobs.values() if job.peer == peer and job.name == name), None)

    def of(self, peer: Optional[bytes] = None) -> List[Job]:
        """Return all jobs, or those of one host."""
        return [job for job in self._jobs.values() if peer is None or job.peer == peer]

    def _in_turn(self) -> List[Job]:
        """Jobs in the order to serve them: those whose training waits, then the others, each in turn."""
        open_jobs = [job for job in self._jobs.values() if not job.closing]
        return [job for job in open_jobs if job.waiting] + [job for job in open_jobs if not job.waiting]

    def _served(self, job: Job) -> None:
        del self._jobs[job.key]
        self._jobs[job.key] = job

    def next_probe(self) -> Optional[Tuple[Job, Probe]]:
        """Take the next probe; probes come before leases, they take no space and somebody waits for each."""
        for job in self._in_turn():
            if job.probes:
                return job, job.probes.popleft()
        return None

    def next_lease(self, shortage: Callable[[int], str], free_batches: int) -> Tuple[Optional[Tuple[Job, Work]], str]:
        """Take the next lease to begin, and say what holds leases back.

        Args:
            shortage: why a batch of so many bytes may not be begun now; empty if it may.
            free_batches: batches that the quota still allows.

        Returns:
            (job and lease, now WORKING, or None; the reason for holding back, or empty). The last slots are kept for
            jobs that hold none, so that one job that is not being drained cannot shut out the others.
        """
        ready = [job for job in self._in_turn() if job.queue]
        note = ""
        for job in ready:
            kept = sum(other is not job and other.held == 0 for other in ready) if job.held else 0
            short = shortage(job.work[job.queue[0]].layout.file_bytes)
            if not short and free_batches <= kept:
                short = f"the last {free_batches} batches of the spool quota are kept for {kept} jobs that hold none"
            job.held_back = short
            if short:
                note = note or short
                continue
            work = job.work[job.queue.popleft()]
            work.state = LeaseState.WORKING
            self._served(job)
            return (job, work), note
        return None, note
