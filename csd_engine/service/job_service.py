"""Jobs and leases: handles the hosts' messages about them and the workers' reports. It reads no socket."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from csd_engine.batchfile.reader import Layout, file_name
from csd_engine.data.base import ARRAY, MANIFEST
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.roots import Roots
from csd_engine.errors import EngineError
from csd_engine.machine import computer
from csd_engine.machine.build import build
from csd_engine.machine.directory import Entry
from csd_engine.machine.sizes import size_text
from csd_engine.machine.versions import versions
from csd_engine.prepare.operator_file import OperatorDirectory
from csd_engine.protocol import codec as say
from csd_engine.protocol.fields import MAX_ITEMS
from csd_engine.service.admission import check_job
from csd_engine.service.fair_queue import FairQueue, Quota, learned, to_tell
from csd_engine.service.jobs import Job, LeaseState, Measurement, Member, Meter, ProbeWork, Work
from csd_engine.service.parcels import Parcels
from csd_engine.service.spool import Spool
from csd_engine.service.uploads import FileCache, needed_files
from csd_engine.service.worker_process import WorkerProcess

__all__ = ["RETIRES", "JobService"]

RETIRES = "the engine retires"  # how the note of its status begins then
_LOG = logging.getLogger("csd_engine")
_FULL_DISK_PAUSE_S = 1.0
_MOST_EXPECTED = 8  # leases whose samples a worker may request before their turn
_MAX_OPEN_JOBS = 256
_MAX_JOBS_OF_HOST = 128
_MAX_DESCRIPTION_BYTES = 16 << 20  # of one host's jobs, as JSON; one with a thousand parts takes 0.3 MB
# What may wait for one host, over all its jobs. Each rank sends a lease more than there are workers, and a probe or two.
_MAX_LEASES = 4096
_LEAST_ITEMS = 2 * MAX_ITEMS  # samples of leases; about 30 MB
_BYTES_PER_ITEM = 4096  # of the computer's memory: one host's samples take about a thirtieth
_MAX_PROBES = 64


@dataclasses.dataclass(frozen=True)
class _Opening:
    """A job that waits for files of its host. A file is (kind, fingerprint)."""

    peer: bytes
    message: say.OpenJob
    files: Tuple[Tuple[str, str], ...]
    missing: Tuple[str, str]
    host: str
    description_bytes: int


class JobService:
    """The jobs of all hosts on one spool.

    Args:
        spool: the spool for batch files.
        manifests, arrays: files that hosts have sent or are sending.
        workers: the worker processes; the engine adds and removes them.
        send: sends a message to a host.
        host_of: returns the key of a connection's host, for fairness.
        roots_of: returns the directories that may be read for a connection's host.
        operators: directory of the files of users' operators; None: there is none.
        sys: the path of /sys.
        memory_bytes: of this computer; it limits the samples whose leases wait for one host.
    """

    def __init__(
        self,
        spool: Spool,
        manifests: FileCache,
        arrays: FileCache,
        workers: List[WorkerProcess],
        send: Callable[[bytes, say.Message], None],
        host_of: Callable[[bytes], str],
        roots_of: Callable[[bytes], Roots],
        operators: Optional[OperatorDirectory],
        sys: str,
        memory_bytes: int,
    ) -> None:
        self.note = ""  # why leases are held back now
        self.trouble = ""  # what is wrong with the workers
        self._spool = spool
        self._roots_of = roots_of
        self._workers = workers
        self._send = send
        self._host_of = host_of
        self._quota = Quota(spool.quota_batches, spool.quota_bytes)
        self._manifests = manifests
        self._received = {MANIFEST: manifests, ARRAY: arrays}
        self._operators = operators
        self._parcels = Parcels(spool, send)
        self._sys = sys
        self._most_items = max(_LEAST_ITEMS, memory_bytes // _BYTES_PER_ITEM)
        self._queue = FairQueue()
        self._opening: List[_Opening] = []
        self._full_until = 0.0
        self._began = time.monotonic()
        build()  # read now: the files may be replaced while the engine runs
        self._meter = Meter(self._began)
        self._retires = ""  # why the engine is about to end; empty: it is not
        self.cache_hits = self.cache_misses = 0  # samples of published leases whose jobs have a shelf

    def refuse(self, peer: bytes, job: str, reason: str) -> None:
        """Refuse a job, or the whole connection if `job` is empty."""
        _LOG.warning("refused %s: %s", job or "connection", reason)
        self._send(peer, say.Refused(job, say.shorten(reason)))

    def refuses(self, peer: bytes, said: say.Announced) -> bool:
        """Refuse a long message before it is parsed, if it will be refused. Return whether it was."""
        if said.lease is None:
            try:
                self._check_count(self._host_of(peer))
            except EngineError as error:
                self.refuse(peer, said.job, str(error))
                return True
            return False
        job = self._job_of(peer, said.job)
        return job is None or self._fails(job, said.lease, said.items)

    def stalled(self, host: str, seconds: float) -> None:
        """Charge a host for a turn that was too long by so many seconds: all workers may have waited for its end."""
        self._queue.stalled(host, seconds * len(self._workers))

    def ping(self, peer: bytes, message: say.Ping, _: bytes) -> None:
        """Note which jobs' training waits, and answer the ping."""
        for job in self._queue.of(peer):
            job.waiting = job.name in message.waiting
        at_work = [worker.lease for worker in self._workers if worker.lease is not None and worker.lease[0].peer == peer]
        progress = [(job.name, work.lease.lease, work.samples) for job, work in at_work]
        self._send(peer, say.Pong(tuple(progress), self._full_note(self.note)))

    def _full_note(self, note: str) -> str:
        return say.shorten("; ".join(filter(None, (note, self.trouble))))

    def status(self, peer: bytes, _: say.AskStatus, __: bytes) -> None:
        """Tell the state of the engine and its computer."""
        now, spool = time.monotonic(), self._spool
        jobs = [
            say.JobStatus(
                hashlib.blake2b(job.host.encode("utf-8"), digest_size=4).hexdigest(), job.key, job.samples, job.layout.batch,
                job.batches_made, job.meter.per_s(now), job.unfetched, len(job.queue),
                say.shorten(job.held_back) if job.queue else "",
            )  # fmt: skip
            for job in self._queue.of()
        ]
        memory = computer.memory()
        kernel = next((worker.kernel for worker in self._workers if worker.ready), "")
        status = say.Status(
            {**versions(), "kernel": kernel}, now - self._began, len(self._workers), computer.cpus(), tuple(jobs),
            self._meter.total, self._meter.per_s(now),
            *computer.process_memory([os.getpid(), *(worker.pid for worker in self._workers)]), memory.total, memory.available,
            spool.batches, spool.bytes, spool.free_bytes(), spool.quota_batches, spool.quota_bytes, spool.reserve_bytes,
            computer.temperature_c(self._sys), computer.load(), self._full_note(self.note or self._retires),
        )  # fmt: skip
        self._send(peer, status)

    def drop_host(self, peer: bytes) -> int:
        """End all jobs of a host that is gone; return how many it had. Nothing is sent to it."""
        self._set_opening([opening for opening in self._opening if opening.peer != peer], peer)
        jobs = list(self._queue.of(peer))
        for job in jobs:
            job.silent = True
            self._end_job(job)
        return len(jobs)

    # -- jobs

    def open_job(self, peer: bytes, message: say.OpenJob, _: bytes) -> None:
        """Open a job or refuse it. If a file of its data set is missing, ask the host for the file first."""
        try:
            if self._queue.find(peer, message.job) is not None:
                raise EngineError(f"job {message.job} is open already. Close it first.")
            host = self._host_of(peer)
            description_bytes = len(json.dumps((message.pipeline, message.dataset)))
            self._check_share(host, description_bytes)
            dataset = parse_dataset(message.dataset)
            layout = Layout.parse(message.layout)
            roots = self._roots_of(peer)
            check_job(message.pipeline, dataset, layout, roots, self._spool, self._operators)
            files = tuple(needed_files(dataset, self._spool.arrays))
            missing = next((file for file in files if not self._received[file[0]].has(file[1], host)), None)
            if missing is not None:
                asked = any((opening.peer, opening.missing) == (peer, missing) for opening in self._opening)
                self._opening.append(_Opening(peer, message, files, missing, host, description_bytes))
                if not asked:
                    self._send(peer, say.NeedFile(*missing, self._received[missing[0]].wanted(peer, missing[1])))
                return
            directory = self._spool.make_job_directory()
        except EngineError as error:
            self.refuse(peer, message.job, str(error))
            return
        command = {
            "job": directory.name,
            "pipeline": message.pipeline,
            "dataset": message.dataset,
            "layout": message.layout,
            "most_pixels": message.most_pixels,
            "directory": directory.path,
            "place": directory.place,
            "roots": roots.to_data(),
            "operators": None if self._operators is None else self._operators.path,
            "manifests": self._manifests.directory.path,
        }
        meter = Meter(time.monotonic())
        job = Job(peer, host, message.job, directory.name, layout, len(dataset), files, command, meter, description_bytes)
        job.member = Member(message.run, message.rank, message.after_lower)
        job.carried, job.requested = dataset.carried, bool(dataset.urls()) and not dataset.carried
        self._queue.add(job)
        _LOG.info("job %s opened: %d samples, batches of %d", directory.name, len(dataset), layout.batch)
        self._send(peer, say.JobOpen(message.job, directory.name))
        self._send_measurements(job, learned(job, self._queue.of()))

    def _check_count(self, host: str) -> None:
        """Raise EngineError if the host may not open a further job, whatever it is."""
        if self._retires:
            raise EngineError(self._retires)
        if len(self._queue.of()) + len(self._opening) >= _MAX_OPEN_JOBS:
            raise EngineError(f"{_MAX_OPEN_JOBS} jobs are open already. Close one first.")
        if (count := len(self._descriptions(host))) >= _MAX_JOBS_OF_HOST:
            raise EngineError(f"this host has {count} jobs open, as many as one host may. Close one first.")

    def _descriptions(self, host: str) -> List[int]:
        """Return the bytes of the descriptions of a host's jobs."""
        sizes = [job.description_bytes for job in self._queue.of_host(host)]
        return sizes + [opening.description_bytes for opening in self._opening if opening.host == host]

    def _check_share(self, host: str, description_bytes: int) -> None:
        """Raise EngineError if the host may not open a further job, whose description is so long."""
        self._check_count(host)
        sizes = self._descriptions(host)
        if sum(sizes) + description_bytes > _MAX_DESCRIPTION_BYTES:
            raise EngineError(
                f"the descriptions of this host's {len(sizes) + 1} jobs take more than {size_text(_MAX_DESCRIPTION_BYTES)}. "
                "Close a job, or describe data sets by fewer parts."
            )

    def file_part(self, peer: bytes, message: say.FilePart, part: say.Payload) -> None:
        """Store a part of a data set's file. Once the file is complete, open the jobs that waited for it."""
        kind, fingerprint = file = (message.kind, message.fingerprint)
        cache = self._received[kind]
        waiting = [opening for opening in self._opening if (opening.peer, opening.missing) == (peer, file)]
        if not waiting or message.offset != cache.wanted(peer, fingerprint):
            return  # the part was sent twice, or its job was closed meanwhile
        rest = [opening for opening in self._opening if opening not in waiting]

        def in_use() -> Set[str]:
            of_jobs = {file for job in self._queue.of() for file in job.files}
            files = of_jobs.union(*(opening.files for opening in self._opening))
            return {name for file_kind, name in files if file_kind == kind}

        try:
            following = cache.add(peer, fingerprint, message.offset, message.total, part, in_use, waiting[0].host)
        except EngineError as error:
            self._set_opening(rest, peer)
            for opening in waiting:
                self.refuse(peer, opening.message.job, str(error))
            return
        if following is not None:
            self._send(peer, say.NeedFile(kind, fingerprint, following))
            return
        self._set_opening(rest, peer)
        for opening in waiting:
            self.open_job(opening.peer, opening.message, b"")

    def _set_opening(self, opening: List[_Opening], peer: bytes) -> None:
        """Note which jobs wait, and drop the files that no job of this connection waits for any more."""
        self._opening = opening
        for kind, cache in self._received.items():
            missing = (waiting.missing for waiting in opening if waiting.peer == peer)
            cache.forget(peer, {fingerprint for missing_kind, fingerprint in missing if missing_kind == kind})

    def _job_of(self, peer: bytes, name: str) -> Optional[Job]:
        job = self._queue.find(peer, name)
        if job is None or job.closing:
            self.refuse(peer, name, f"there is no open job {name}. Open it first; was the host silent for too long?")
            return None
        return job

    def close_job(self, peer: bytes, message: say.CloseJob, _: bytes) -> None:
        """End a job."""
        rest = [opening for opening in self._opening if (opening.peer, opening.message.job) != (peer, message.job)]
        self._set_opening(rest, peer)
        job = self._queue.find(peer, message.job)
        if job is None:
            self._send(peer, say.JobClosed(message.job))
        else:
            self._end_job(job)

    def _end_job(self, job: Job) -> None:
        """Drop queued leases now, and the rest once no worker works for the job."""
        job.closing = True
        job.probes.clear()
        while job.queue:
            self._discard(job, job.work[job.queue[0]])
        for worker in self._workers:
            if worker.lease is not None and worker.lease[0] is job and not worker.lease[1].cancelled:
                worker.lease[1].cancelled = True
                worker.cancel()
            elif worker.probe is not None and worker.probe[0] is job and not worker.cancelled:
                worker.cancel()
        if job.working or any(worker.probe is not None and worker.probe[0] is job for worker in self._workers):
            return
        for work in job.work.values():
            self._spool.remove_batch(self._file(job, work), work.file_bytes)
        self._drop_probe_parcel(job)
        for worker in self._workers:
            worker.forget(job)
        self._queue.remove(job)
        self._spool.remove_job(job.key)
        _LOG.info("job %s closed", job.key)
        if not job.silent:
            self._send(job.peer, say.JobClosed(job.name))

    # -- the end

    def retire(self, reason: str) -> None:
        """Begin nothing more. What is begun is finished, and stays until its host has released it."""
        self._retires = reason
        for opening in list(self._opening):
            self.refuse(opening.peer, opening.message.job, reason)
            self._set_opening([other for other in self._opening if other is not opening], opening.peer)

    def begun(self, peer: bytes) -> List[Tuple[str, int]]:
        """Return (job, lease) of each of a connection's leases that a worker is at."""
        leases = [worker.lease for worker in self._workers if worker.lease is not None]
        return [(job.name, work.lease.lease) for job, work in leases if job.peer == peer and not work.cancelled]

    def drop_finished(self) -> bool:
        """Drop the jobs of which nothing is begun, and nothing published is left to fetch. Return whether no job is left.

        Their hosts make what they have leased. A host that does not know of retiring takes it that the engine is lost.
        """
        for job in self._queue.of():
            if not (job.held or job.closing):
                self.refuse(job.peer, job.name, self._retires)
                self._end_job(job)
        return not self._queue.of()

    # -- leases

    def probe(self, peer: bytes, message: say.Probe, _: bytes) -> None:
        """Queue a probe."""
        job = self._job_of(peer, message.job)
        if job is None:
            return
        if sum(len(host_job.probes) for host_job in self._queue.of_host(job.host)) >= _MAX_PROBES:
            self._tell_digests(job, ["error: too many probes wait already"] * len(message.items))
        else:
            job.probes.append(ProbeWork(message))

    def lease(self, peer: bytes, message: say.Lease, _: bytes) -> None:
        """Queue a lease."""
        job = self._job_of(peer, message.job)
        if job is None:
            return
        number, count = message.lease, len(message.items)
        if self._fails(job, number, count):
            return
        if any(index >= job.samples for index, _ in message.items):
            self._fail(job, number, f"lease {number} names a sample beyond the data set's {job.samples}")
            return
        job.add(Work(message, dataclasses.replace(job.layout, batch=count)))

    def _fails(self, job: Job, number: int, count: int) -> bool:
        """Refuse a lease of so many samples, whatever they are, if it may not wait. Return whether it was refused."""
        reason = self._spool.refusal(dataclasses.replace(job.layout, batch=max(1, count)).file_bytes) or ""
        jobs = self._queue.of_host(job.host)
        if not count:
            reason = f"lease {number} has no items"
        elif sum(len(host_job.queue) for host_job in jobs) >= _MAX_LEASES:
            reason = f"{_MAX_LEASES} leases of this host wait already; cancel some"
        elif sum(host_job.items for host_job in jobs) + count > self._most_items:
            reason = f"leases of {self._most_items} samples are the most that may wait for one host; cancel some"
        elif number in job.work:
            reason = f"lease {number} is in use already"
        if reason:
            self._fail(job, number, reason)
        return bool(reason)

    def _fail(self, job: Job, lease: int, reason: str) -> None:
        self._send(job.peer, say.Failed(job.name, lease, say.shorten(reason), False))

    def parcel_part(self, peer: bytes, message: say.ParcelPart, part: say.Payload) -> None:
        """Store a part of the bytes that a lease's or a probe's samples are made of."""
        job = self._queue.find(peer, message.job)
        if job is None:
            return
        try:
            self._parcels.add(job, message, part)
        except EngineError as error:
            self._without_parcel(job, message.lease, str(error))

    def _without_parcel(self, job: Job, lease: int, reason: str) -> None:
        """Fail a lease, or the next probe, whose samples' bytes do not come."""
        if lease != say.OF_PROBE:
            self._discard(job, job.work[lease])
            self._fail(job, lease, reason)
        elif job.probes:
            probe = job.probes.popleft()
            self._drop_probe_parcel(job)
            self._tell_digests(job, [f"error: {reason}"] * len(probe.probe.items))

    def _drop_probe_parcel(self, job: Job) -> None:
        self._parcels.drop(job, job.probe_parcel)
        job.probe_parcel = None

    def release(self, peer: bytes, message: say.Release, _: bytes) -> None:
        """Drop a lease, whatever its state: a batch that was delivered, or is not wanted."""
        job = self._queue.find(peer, message.job)
        work = job.work.get(message.lease) if job is not None else None
        if job is None or work is None:
            return
        if work.state is not LeaseState.WORKING:
            self._discard(job, work)
            return
        for worker in self._workers:
            if worker.lease is not None and worker.lease[1] is work and not work.cancelled:
                work.cancelled = True
                worker.cancel()

    def published(self, peer: bytes, name: str, lease: int) -> Optional[Tuple[Entry, int]]:
        """Return a published batch's file and its size in bytes, or None if the host has no such batch here."""
        job = self._queue.find(peer, name)
        work = job.work.get(lease) if job is not None else None
        if job is None or work is None or work.state is not LeaseState.PUBLISHED:
            return None
        return self._file(job, work), work.file_bytes

    def _file(self, job: Job, work: Work) -> Entry:
        return self._spool.job_file(job.key, file_name(work.lease.identity, work.lease.lease))

    def _discard(self, job: Job, work: Work) -> None:
        """Drop a lease that no worker works on: its files, and its part of the quota."""
        self._parcels.drop(job, work.parcel)
        if work.state is not LeaseState.QUEUED:
            self._spool.remove_batch(self._file(job, work), work.file_bytes)
        job.drop(work)

    def dispatch(self) -> None:
        """Give each idle worker the next probe or lease. Ask hosts for the samples' bytes of those that come then."""
        carried = [job for job in self._queue.of() if job.carried and not (job.closing or self._retires)]
        for job, lease, reason in self._parcels.ask(carried, len(self._workers) + 1):
            self._without_parcel(job, lease, reason)
        self.note = ""
        for number, worker in enumerate(() if self._retires else self._workers):
            if not worker.idle:
                continue
            probe = self._queue.next_probe(in_turn=True)
            taken = self._next_lease(number) if probe is None else None
            if taken is not None:
                begun = self._spool.begin_batch(self._file(*taken), taken[1].file_bytes)
                worker.begin(*taken, begun)
                continue
            probe = probe or self._queue.next_probe(in_turn=False)
            if probe is None:
                break
            worker.begin_probe(*probe)
        self._announce()

    def _bring_forward(self, number: int) -> None:
        """Make the lease that a worker expects the next one; without it, one that no other worker expects."""
        own = self._workers[number].following
        for job in self._queue.of():
            if job.requested and (work := next(iter(job.queued(own)), None) or job.unexpected(self._expected())) is not None:
                job.bring_forward(work)

    def _expected(self) -> Iterator[Work]:
        return itertools.chain.from_iterable(worker.following for worker in self._workers)

    def _announce(self) -> None:
        """Have busy workers request the samples of the leases that come next, each of others; who expects least is the next."""
        busy: List[Tuple[WorkerProcess, Job]] = []
        for worker in () if self._retires else self._workers:
            if worker.lease is not None and worker.lease[0].requested:
                worker.following = worker.lease[0].queued(worker.following)
                busy.append((worker, worker.lease[0]))
        while busy:
            worker, job = min(busy, key=lambda pair: len(pair[0].following))
            work = job.unexpected(self._expected()) if len(worker.following) < _MOST_EXPECTED else None
            if work is None:
                busy.remove((worker, job))
            else:
                worker.expect(job, work)

    def _next_lease(self, number: int) -> Optional[Tuple[Job, Work]]:
        """Return the next lease that a worker may begin, if there is one, and note why leases are held back."""
        if time.monotonic() < self._full_until:
            self.note = "the spool's disk is full: leases are held back"
            for job in self._queue.of():
                job.held_back = "the spool's disk is full"
            return None
        self._bring_forward(number)
        taken, note = self._queue.next_lease(self._spool.shortage, self._quota)
        self.note = note and f"leases are held back: {note}"
        return taken

    def progressed(self, job: Job, work: Work, samples: int) -> None:
        """Note how many samples of a lease a worker has made."""
        now = time.monotonic()
        for meter in (job.meter, self._meter):
            meter.add(samples - work.samples, now)
        work.samples = samples

    def finished(self, job: Job, work: Work, kind: str, report: Dict[str, Any]) -> None:
        """Handle a worker's final report on a lease. `kind`: published, failed or cancelled."""
        number = work.lease.lease
        self._queue.ended(job, work, report["spent_s"], kind == "published")
        if kind == "failed" and report["full"] and not work.cancelled:
            self._spool.give_back(work.file_bytes)
            work.samples = 0
            job.step(work, LeaseState.QUEUED)
            self._full_until = time.monotonic() + _FULL_DISK_PAUSE_S
            return
        if kind == "published" and not work.cancelled:
            self._parcels.drop(job, work.parcel)
            work.parcel = None
            job.step(work, LeaseState.PUBLISHED)
        else:
            self._discard(job, work)
        if job.closing:
            self._end_job(job)
        elif work.cancelled:  # its host has forgotten it
            return
        elif kind == "published":
            job.batches_made += 1
            self.cache_hits, self.cache_misses = self.cache_hits + report["hits"], self.cache_misses + report["misses"]
            self.progressed(job, work, work.layout.batch)
            busy_s = report["busy_s"]
            self._send(job.peer, say.Published(job.name, number, f"{job.key}/{report['name']}", busy_s))
            measurement = (work.layout.batch, busy_s)
            for other in to_tell(job, self._queue.of()):
                self._send_measurements(other, (measurement,))
            job.measured.append(measurement)
        else:
            self._send(job.peer, say.Failed(job.name, number, say.shorten(report["reason"]), report["fatal"]))

    def _send_measurements(self, job: Job, batches: Tuple[Measurement, ...]) -> None:
        """Send a job's host the measurements of other ranks' batches."""
        job.measurements_sent += len(batches)
        if batches:
            self._send(job.peer, say.Measured(job.name, batches))

    def probed(self, job: Job, digests: Sequence[str], spent_s: float) -> None:
        """Charge for a turn of a probe, and send its digests once it has all. `spent_s`: a worker's time, in seconds."""
        probe = self._queue.probed(job, digests, spent_s)
        if job.closing:
            self._end_job(job)
        elif probe is not None:
            self._drop_probe_parcel(job)
            self._tell_digests(job, probe.digests)

    def _tell_digests(self, job: Job, digests: Sequence[str]) -> None:
        self._send(job.peer, say.ProbeDone(job.name, tuple(map(say.shorten, digests))))
