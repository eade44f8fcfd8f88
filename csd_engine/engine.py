"""The engine's service loop: hosts on one side, worker processes on the other, one poller between them."""

from __future__ import annotations

import logging
import os
import platform
import signal
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

import numpy
import PIL
import zmq

import csd_engine
from csd_engine import protocol as say
from csd_engine.batchfile import PART_SUFFIX, Layout, file_name
from csd_engine.crew import WorkerProcess
from csd_engine.datasets import ArraySet, ConcatSet, Dataset, fingerprints, parse_dataset
from csd_engine.door import Door
from csd_engine.errors import DatasetError, EngineError, PipelineError
from csd_engine.jobs import Board, Job, LeaseState, Work
from csd_engine.manifests import ManifestCache
from csd_engine.roots import Roots
from csd_engine.spool import Spool
from csd_engine.transforms import Pipeline

__all__ = ["EngineOptions", "Service", "versions"]

_LOG = logging.getLogger("csd_engine")
_TICK_S = 0.5  # how soon a dead parent, a silent host or freed disk space is noticed
_RESTART_S = 1.0  # pause before a worker that died at once is started again
_FULL_DISK_PAUSE_S = 1.0
_WORKER_GRACE_S = 2.0
_MAX_OPEN_JOBS = 256


@dataclass(frozen=True)
class EngineOptions:
    """Settings of one engine; `csd_engine.__main__` documents each."""

    listen: str
    keys: str
    spool: str
    roots: Roots
    workers: int = 1
    quota_batches: int = 64
    quota_bytes: int = 8 << 30
    reserve_bytes: int = 1 << 30
    lease_timeout_s: float = 30.0
    slowdown: float = 1.0
    parent: int = 0
    exit_with_stdin: bool = False


def versions() -> Dict[str, str]:
    """Return the versions of what decides about pixels and messages."""
    return {
        "csd_engine": csd_engine.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "pillow": PIL.__version__,
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "machine": platform.machine(),
    }


def _image_size(dataset: Dataset) -> Optional[Tuple[int, int]]:
    """Return (width, height) if every sample of the data set has it, else None."""
    parts = dataset.parts if isinstance(dataset, ConcatSet) else (dataset,)
    sizes = {(part.shape[2], part.shape[1]) if isinstance(part, ArraySet) else None for part in parts}
    return sizes.pop() if len(sizes) == 1 else None


class Service:
    """One engine. `run()` returns after SIGTERM, SIGINT or the parent's end; `close()` leaves nothing behind."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._spool = Spool(options.spool, options.quota_batches, options.quota_bytes, options.reserve_bytes)
        try:
            self._manifests = ManifestCache(self._spool.directory / "manifests")
            self._door = Door(options.listen, options.keys)
        except BaseException:
            self._spool.close()
            raise
        self.endpoint = self._door.endpoint
        self._board = Board()
        self._hosts: Dict[bytes, float] = {}  # when each was heard last
        self._opening: List[Tuple[bytes, say.OpenJob, str]] = []  # host, message, the manifest it waits for
        self._crew: List[WorkerProcess] = []
        self._start_after = 0.0
        self._full_until = 0.0
        self._note = ""
        self._trouble = ""
        self._stop = False
        self._wake, self._woken = os.pipe()
        self._poller = zmq.Poller()
        self._poller.register(self._door.router, zmq.POLLIN)
        self._poller.register(self._door.gate, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        if options.exit_with_stdin:
            self._poller.register(0, zmq.POLLIN)
        self._answers: Dict[Type[say.Message], Callable[[bytes, Any, bytes], None]] = {
            say.OpenJob: self._open_job,
            say.ManifestPart: self._manifest_part,
            say.Probe: self._probe,
            say.Lease: self._lease,
            say.Cancel: self._cancel,
            say.Release: self._release,
            say.Ping: self._ping,
            say.CloseJob: self._close_job,
        }

    # -- the loop

    def stop(self, *_: Any) -> None:
        """End `run()` soon; may be called from a signal handler."""
        self._stop = True

    def run(self) -> None:
        """Serve until told to stop. Call from the main thread: it takes over SIGTERM and SIGINT."""
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)  # a poll goes on after a handler otherwise
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        self._start_workers()
        while not self._stop:
            events = dict(self._poller.poll(int(_TICK_S * 1000)))
            if self._orphaned(events):
                _LOG.info("the process that started this engine is gone: ending")
                break
            if self._door.gate in events:
                self._door.answer_gate()
            if self._door.router in events:
                self._hear()
            for worker in list(self._crew):
                if worker.read_descriptor in events:
                    self._hear_worker(worker)
                elif worker.write_descriptor in events:
                    worker.flush()
            self._expire()
            self._start_workers()
            self._dispatch()
            self._watch_writes()

    def _orphaned(self, events: Dict[Any, int]) -> bool:
        if self._options.exit_with_stdin and 0 in events:
            try:
                if not os.read(0, 4096):
                    return True
            except OSError:
                return True
        return bool(self._options.parent) and os.getppid() != self._options.parent

    def close(self) -> None:
        """End the workers, remove job directories and the socket. May be called again."""
        for worker in self._crew:
            self._unregister(worker)
        for worker in self._crew:
            worker.end(_WORKER_GRACE_S)
        self._crew.clear()
        self._spool.close()
        if not self._door.router.closed:
            signal.set_wakeup_fd(-1)
            os.close(self._wake)
            os.close(self._woken)
            self._door.close()

    # -- hosts

    def _hear(self) -> None:
        for _ in range(1000):  # then the workers again
            heard = self._door.receive()
            if heard is None:
                return
            peer, message, payload = heard
            if isinstance(message, say.Hello):
                self._hello(peer, message)
            elif peer not in self._hosts:
                if message is not None:
                    self._door.send(peer, say.Refused("", "say Hello first; was the engine restarted? Connect again."))
            else:
                self._hosts[peer] = time.monotonic()
                if message is None:
                    continue
                answer = self._answers.get(type(message))
                if answer is None:
                    self._refuse(peer, "", f"{type(message).__name__} is not a host's message")
                else:
                    answer(peer, message, payload)

    def _refuse(self, peer: bytes, job: str, reason: str) -> None:
        _LOG.warning("refused %s: %s", job or "connection", reason)
        self._door.send(peer, say.Refused(job, say.shorten(reason)))

    def _hello(self, peer: bytes, message: say.Hello) -> None:
        if message.protocol != say.PROTOCOL:
            self._refuse(
                peer,
                "",
                f"the engine speaks protocol {say.PROTOCOL} (csd_engine {csd_engine.__version__}), the host protocol "
                f"{message.protocol} (version {message.version}). Install the same version on both.",
            )
            return
        self._hosts[peer] = time.monotonic()
        spool = self._spool
        quotas = (spool.quota_batches, spool.quota_bytes)
        self._door.send(peer, say.Welcome(versions(), *quotas, str(spool.directory), self._options.workers))

    def _ping(self, peer: bytes, message: say.Ping, _: bytes) -> None:
        progress = []
        for job in self._board.of(peer):
            job.waiting = job.name in message.waiting
            for number, work in job.work.items():
                if work.state is LeaseState.WORKING:
                    progress.append((job.name, number, work.samples))
        spool = self._spool
        note = "; ".join(filter(None, (self._note, self._trouble)))
        self._door.send(
            peer, say.Pong(tuple(progress), spool.batches, spool.bytes, spool.free_bytes(), say.shorten(note))
        )

    def _expire(self) -> None:
        limit = time.monotonic() - self._options.lease_timeout_s
        for peer in [peer for peer, heard in self._hosts.items() if heard < limit]:
            _LOG.warning("a host was silent for %g s: its jobs are dropped", self._options.lease_timeout_s)
            del self._hosts[peer]
            self._manifests.forget(peer)
            self._opening = [entry for entry in self._opening if entry[0] != peer]
            for job in self._board.of(peer):
                job.silent = True
                self._end_job(job)

    # -- jobs

    def _open_job(self, peer: bytes, message: say.OpenJob, _: bytes) -> None:
        try:
            if self._board.find(peer, message.job) is not None or len(self._board.of()) >= _MAX_OPEN_JOBS:
                raise EngineError(f"job {message.job} is open already, or {_MAX_OPEN_JOBS} jobs are. Close one first.")
            dataset = parse_dataset(message.dataset)
            layout = Layout.parse(message.layout)
            self._check_job(message.pipeline, dataset, layout)
            needed = tuple(fingerprints(dataset))
            missing = [one for one in needed if not self._manifests.has(one)]
            if missing:
                asked = any(entry[0] == peer and entry[2] == missing[0] for entry in self._opening)
                self._opening.append((peer, message, missing[0]))
                if not asked:
                    self._door.send(peer, say.NeedManifest(missing[0], self._manifests.wanted(peer, missing[0])))
                return
            directory = self._spool.make_job_directory()
        except EngineError as error:
            self._refuse(peer, message.job, str(error))
            return
        command = {
            "job": directory.name,
            "pipeline": message.pipeline,
            "dataset": message.dataset,
            "layout": message.layout,
            "directory": str(directory),
            "roots": self._options.roots.to_data(),
            "manifests": str(self._manifests.directory),
        }
        self._board.add(Job(peer, message.job, directory.name, layout, len(dataset), needed, command))
        _LOG.info("job %s opened: %d samples, batches of %d", directory.name, len(dataset), layout.batch)
        self._door.send(peer, say.JobOpen(message.job, directory.name))

    def _check_job(self, pipeline_data: Dict[str, Any], dataset: Dataset, layout: Layout) -> None:
        pipeline = Pipeline.parse(pipeline_data)
        shape = pipeline.output_shape(_image_size(dataset))
        expected = (layout.height, layout.width, layout.channels, layout.boxes)
        if (*shape, pipeline.boxes) != expected:
            raise PipelineError(
                f"the pipeline makes images of {shape} with {pipeline.boxes} boxes, the layout says {expected[:3]} with "
                f"{layout.boxes}. Make the layout from Pipeline.output_shape."
            )
        refusal = self._spool.refusal(layout.file_bytes)
        if refusal:
            raise EngineError(refusal)
        for part in dataset.parts if isinstance(dataset, ConcatSet) else (dataset,):
            place = part.path if isinstance(part, ArraySet) else part.root
            real = self._options.roots.resolve(place)
            if not os.path.exists(real):
                raise DatasetError(f"{place} does not exist on the device (there: {real}). Mount it or correct --root.")

    def _manifest_part(self, peer: bytes, message: say.ManifestPart, part: bytes) -> None:
        waiting = [entry for entry in self._opening if (entry[0], entry[2]) == (peer, message.fingerprint)]
        if not waiting or message.offset != self._manifests.wanted(peer, message.fingerprint):
            return  # sent twice, or its job was closed meanwhile
        in_use = {one for job in self._board.of() for one in job.manifests}
        try:
            following = self._manifests.add(peer, message.fingerprint, message.offset, message.total, part, in_use)
        except EngineError as error:
            self._opening = [entry for entry in self._opening if entry not in waiting]
            for entry in waiting:
                self._refuse(peer, entry[1].job, str(error))
            return
        if following is not None:
            self._door.send(peer, say.NeedManifest(message.fingerprint, following))
            return
        self._opening = [entry for entry in self._opening if entry not in waiting]
        for entry in waiting:
            self._open_job(entry[0], entry[1], b"")

    def _job_of(self, peer: bytes, name: str) -> Optional[Job]:
        job = self._board.find(peer, name)
        if job is None or job.closing:
            self._refuse(peer, name, f"there is no open job {name}. Open it first; was the host silent for too long?")
            return None
        return job

    def _close_job(self, peer: bytes, message: say.CloseJob, _: bytes) -> None:
        self._opening = [entry for entry in self._opening if (entry[0], entry[1].job) != (peer, message.job)]
        job = self._board.find(peer, message.job)
        if job is None:
            self._door.send(peer, say.JobClosed(message.job))
        else:
            self._end_job(job)

    def _end_job(self, job: Job) -> None:
        """Drop queued leases now and the rest when no worker is at the job any more."""
        job.closing = True
        job.probes.clear()
        while job.queue:
            del job.work[job.queue.popleft()]
        for worker in self._crew:
            if worker.lease is not None and worker.lease[0] is job and not worker.lease[1].cancelled:
                worker.lease[1].cancelled = True
                worker.cancel()
        if job.working or any(worker.probe is not None and worker.probe[0] is job for worker in self._crew):
            return
        for work in job.work.values():
            self._unlink(job, work)
            self._spool.give_back(job.layout.file_bytes)
        for worker in self._crew:
            worker.forget(job)
        self._board.remove(job)
        self._spool.remove_job(job.key)
        _LOG.info("job %s closed", job.key)
        if not job.silent:
            self._door.send(job.peer, say.JobClosed(job.name))

    # -- leases

    def _probe(self, peer: bytes, message: say.Probe, _: bytes) -> None:
        job = self._job_of(peer, message.job)
        if job is not None:
            job.probes.append(message)

    def _lease(self, peer: bytes, message: say.Lease, _: bytes) -> None:
        job = self._job_of(peer, message.job)
        if job is None:
            return
        reason = ""
        if len(message.items) != job.layout.batch:
            reason = f"lease {message.lease} has {len(message.items)} items, the job's batches have {job.layout.batch}"
        elif message.lease in job.work:
            reason = f"lease {message.lease} is in use already"
        elif any(index >= job.samples for index, _ in message.items):
            reason = f"lease {message.lease} names a sample beyond the data set's {job.samples}"
        if reason:
            self._door.send(peer, say.Failed(job.name, message.lease, reason, False))
            return
        job.work[message.lease] = Work(message)
        job.queue.append(message.lease)

    def _cancel(self, peer: bytes, message: say.Cancel, _: bytes) -> None:
        job = self._board.find(peer, message.job)
        work = job.work.get(message.lease) if job is not None else None
        if job is not None and work is not None and work.state is LeaseState.WORKING:
            self._cancel_working(job, work)
            return
        if job is not None and work is not None:
            self._discard(job, work)
        self._door.send(peer, say.Cancelled(message.job, message.lease))

    def _cancel_working(self, job: Job, work: Work) -> None:
        for worker in self._crew:
            if worker.lease is not None and worker.lease[1] is work and not work.cancelled:
                work.cancelled = True
                worker.cancel()

    def _release(self, peer: bytes, message: say.Release, _: bytes) -> None:
        job = self._board.find(peer, message.job)
        work = job.work.get(message.lease) if job is not None else None
        if job is None or work is None:
            return
        if work.state is LeaseState.WORKING:
            self._cancel_working(job, work)
        else:
            self._discard(job, work)

    def _discard(self, job: Job, work: Work) -> None:
        """Forget a lease that no worker is at, its file with it."""
        number = work.lease.lease
        if work.state is LeaseState.QUEUED:
            job.queue.remove(number)
        else:
            self._unlink(job, work)
            self._spool.give_back(job.layout.file_bytes)
        del job.work[number]

    def _unlink(self, job: Job, work: Work) -> None:
        path = self._spool.directory / job.key / file_name(work.lease.identity, work.lease.lease)
        for name in (str(path), str(path) + PART_SUFFIX):
            try:
                os.unlink(name)
            except OSError:
                pass

    def _dispatch(self) -> None:
        """Give idle workers what is next."""
        self._note = ""
        for worker in self._crew:
            if not worker.idle:
                continue
            probe = self._board.next_probe()
            if probe is not None:
                worker.begin_probe(*probe)
                continue
            if time.monotonic() < self._full_until:
                self._note = "the spool's disk is full: leases are held back"
                return
            taken, note = self._board.next_lease(self._spool.shortage, self._spool.quota_batches - self._spool.batches)
            self._note = note and f"leases are held back: {note}"
            if taken is None:
                return
            self._spool.take(taken[0].layout.file_bytes)
            worker.begin(*taken)

    # -- workers

    def _start_workers(self) -> None:
        while len(self._crew) < self._options.workers and time.monotonic() >= self._start_after:
            worker = WorkerProcess(["--slowdown", repr(self._options.slowdown)])
            self._poller.register(worker.read_descriptor, zmq.POLLIN)
            self._crew.append(worker)

    def _watch_writes(self) -> None:
        for worker in self._crew:
            if worker.unsent:
                self._poller.register(worker.write_descriptor, zmq.POLLOUT)
            elif worker.write_descriptor in self._poller:
                self._poller.unregister(worker.write_descriptor)

    def _unregister(self, worker: WorkerProcess) -> None:
        for descriptor in (worker.read_descriptor, worker.write_descriptor):
            if descriptor in self._poller:
                self._poller.unregister(descriptor)

    def _hear_worker(self, worker: WorkerProcess) -> None:
        reports = worker.reports()
        if reports is None:
            self._bury(worker)
            return
        for report in reports:
            kind = report["say"]
            if kind == "ready":
                worker.ready, self._trouble = True, ""
            elif kind == "progress" and worker.lease is not None:
                worker.lease[1].samples = report["samples"]
            elif kind == "probed" and worker.probe is not None:
                (job, _), worker.probe = worker.probe, None
                if job.closing:
                    self._end_job(job)
                else:
                    digests = tuple(map(say.shorten, report["digests"]))
                    self._door.send(job.peer, say.ProbeDone(job.name, digests, versions()))
            elif worker.lease is not None:
                (job, work), worker.lease = worker.lease, None
                self._finished(job, work, kind, report)

    def _finished(self, job: Job, work: Work, kind: str, report: Dict[str, Any]) -> None:
        """Take a worker's last word on a lease: published, failed or cancelled."""
        number = work.lease.lease
        work.state = LeaseState.PUBLISHED
        if kind == "failed" and report["full"] and not work.cancelled:
            self._spool.give_back(job.layout.file_bytes)
            work.state, work.samples = LeaseState.QUEUED, 0
            job.queue.appendleft(number)
            self._full_until = time.monotonic() + _FULL_DISK_PAUSE_S
            return
        if kind != "published" or work.cancelled:
            self._discard(job, work)
        if job.closing:
            self._end_job(job)
        elif work.cancelled:
            self._door.send(job.peer, say.Cancelled(job.name, number))
        elif kind == "published":
            size, busy_s = job.layout.file_bytes, report["busy_s"]
            self._door.send(job.peer, say.Published(job.name, number, f"{job.key}/{report['name']}", size, busy_s))
        else:
            self._door.send(job.peer, say.Failed(job.name, number, say.shorten(report["reason"]), report["fatal"]))

    def _bury(self, worker: WorkerProcess) -> None:
        """A worker has died: its lease has failed, another takes its place."""
        self._unregister(worker)
        self._crew.remove(worker)
        status = worker.end(_WORKER_GRACE_S)
        if not worker.ready:
            self._trouble = f"a worker process ended at its start with status {status}; see the engine's log"
            self._start_after = time.monotonic() + _RESTART_S
        _LOG.error("worker %d ended with status %d and is replaced", worker.pid, status)
        if worker.probe is not None:
            job, probe = worker.probe
            digests = tuple("error: the worker process died" for _ in probe.items)
            if job.closing:
                self._end_job(job)
            else:
                self._door.send(job.peer, say.ProbeDone(job.name, digests, versions()))
        if worker.lease is not None:
            job, work = worker.lease
            reason = f"the worker process at this lease ended with status {status} after {work.samples} samples"
            self._finished(job, work, "failed", {"reason": reason, "fatal": False, "full": False})
