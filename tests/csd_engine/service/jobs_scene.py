"""A queue of jobs with a spool and workers, on a simulated clock: for tests of which job is served next."""

from __future__ import annotations

import itertools

from csd_engine.batchfile.reader import Layout
from csd_engine.protocol.codec import Lease
from csd_engine.service.fair_queue import FairQueue, Quota
from csd_engine.service.jobs import Job, LeaseState, Meter, Work

LARGE = Quota(1000, 1 << 30)
FREE = ""


class Scene:
    def __init__(self, quota: Quota, workers: int = 1) -> None:
        self.queue, self.quota, self.workers = FairQueue(), quota, workers
        self.now = 0.0
        self.used: dict[str, float] = {}
        self.used_by_job: dict[str, float] = {}
        self._numbers = itertools.count()
        self._at_work: list[tuple[float, int, Job, Work]] = []
        self._costs: dict[str, float] = {}

    def job(self, host: str, sample_s: float = 1.0, batch: int = 1, size: int = 1) -> Job:
        """A job whose batches of `batch` samples take about `size` KiB in the spool."""
        key = f"job-{next(self._numbers)}"
        layout = Layout(batch, 1, 1024 * size // batch, 1)
        job = Job(host.encode(), host, key, key, layout, 1000, (), {}, Meter(0.0), 0)
        self._costs[key] = sample_s
        self.queue.add(job)
        return job

    def ask(self, job: Job, leases: int) -> None:
        for number in itertools.islice(self._numbers, leases):
            items = tuple((k, 0) for k in range(job.layout.batch))
            job.add(Work(Lease(job.name, number, "0" * 32, 0, 0, items), job.layout))

    def held_bytes(self) -> int:
        works = [work for job in self.queue.of() for work in job.work.values()]
        return sum(work.file_bytes for work in works if work.state is not LeaseState.QUEUED)

    def shortage(self, size: int) -> str:
        batches = sum(job.held for job in self.queue.of())
        full = batches >= self.quota.batches or self.held_bytes() + size > self.quota.bytes
        return "full" if full else FREE

    def begin(self) -> Job | None:
        """Give one lease to a worker."""
        taken, note = self.queue.next_lease(self.shortage, self.quota)
        if taken is None:
            return None
        job, work = taken
        busy_s = self._costs[job.key] * len(work.lease.items)
        self._at_work.append((self.now + busy_s, next(self._numbers), job, work))
        self.used[job.host] = self.used.get(job.host, 0.0) + busy_s
        self.used_by_job[job.key] = self.used_by_job.get(job.key, 0.0) + busy_s
        return job

    def step(self, drain: bool = True) -> Job | None:
        """Let the workers begin what they can, then finish the lease that is ready first."""
        while len(self._at_work) < self.workers and self.begin() is not None:
            pass
        if not self._at_work:
            return None
        self._at_work.sort(key=lambda one: one[:2])
        self.now, _, job, work = self._at_work.pop(0)
        self.queue.ended(job, work, self._costs[job.key] * len(work.lease.items), published=True)
        job.step(work, LeaseState.PUBLISHED)
        if drain:
            job.drop(work)
        return job


def backlog(scene: Scene, jobs: list[Job]) -> None:
    """Keep two leases of each job waiting, as a host does."""
    for job in jobs:
        scene.ask(job, 2 - len(job.queue))


def served(scene: Scene, jobs: list[Job], steps: int) -> list[Job | None]:
    """Return whose leases are finished in so many steps, while each job keeps its backlog."""
    found = []
    for _ in range(steps):
        backlog(scene, jobs)
        found.append(scene.step())
    return found
