"""The engine's service loop: hosts on one side, worker processes on the other, one poller between them."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import resource
import signal
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import zmq

import csd_engine
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import ARRAY, MANIFEST
from csd_engine.data.roots import Roots
from csd_engine.machine.computer import memory
from csd_engine.machine.sensors import read_all, sensors
from csd_engine.machine.versions import versions
from csd_engine.prepare.large_image_lock import large_bytes
from csd_engine.prepare.operator_file import OperatorDirectory
from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import KeyPair
from csd_engine.service.auth_socket import AuthSocket
from csd_engine.service.file_chunks import FileChunks
from csd_engine.service.job_service import RETIRES, JobService
from csd_engine.service.members import Members
from csd_engine.service.sealed_streams import SealedStreams
from csd_engine.service.spool import Spool
from csd_engine.service.turns import LONG_S, Inbox, Turns
from csd_engine.service.uploads import MAX_MANIFEST_BYTES, FileCache
from csd_engine.service.worker_process import WorkerProcess

__all__ = ["EngineOptions", "Service"]

_LOG = logging.getLogger("csd_engine")
_MANIFESTS_IN_RESERVE = 64 << 20
_GREET_FIRST = "send Hello first; was the engine restarted? Connect again."
_TICK_S = 0.5  # the loop looks for a dead parent, silent hosts and freed disk space at least this often
_RESTART_S = 1.0  # pause after a worker that died at once or could not be started
_WORKER_GRACE_S = 2.0  # workers may take this long to end
_TAKE_S = 0.005  # of messages that are taken in a row, and put where they wait
_SERVE_S = 0.001  # of hosts' turns in a row; a worker that has finished meanwhile waits for its next lease
_UNREAD_S = 0.02  # between two looks whether hosts have read the parts that they were sent
_GARBAGE = (50_000, 50, 50)  # objects are made and freed by the message, and hardly ever in cycles; a long lease has 200,000
_FAILED_S = 0.1  # pause after an error
_MAX_FAILURES = 50  # in a row: then the engine ends, and its supervisor starts a fresh one
_MAX_CONNECTIONS = 256  # of one key
_LEAVES_S = 1.0  # a connection that is refused may read why
_MAX_SENSORS = 256  # more than any computer has
_CANCEL_GRACE_S = 5.0  # a worker looks for a cancel after each sample; one that takes longer is killed


@dataclass(frozen=True)
class EngineOptions:
    """Settings of one engine. The help of `csd_engine.__main__` describes each."""

    listen: str
    keys: str
    pair: Optional[KeyPair]  # None: that in `keys`
    spool: str
    roots: Roots
    workers: int
    quota_batches: int
    quota_bytes: int
    reserve_bytes: int
    upload_bytes: int
    memory_bytes: int  # 0: what the computer has
    lease_timeout_s: float
    worker_timeout_s: float
    sample_timeout_s: float
    slowdown: float
    parent: int
    members: Optional[Members]
    operators: Optional[OperatorDirectory]
    sys: str
    mapped: bool
    retire_s: float
    cache: Optional[Shelves]  # what the workers keep


def _clock() -> Tuple[float, float, int]:
    """Return the time, this thread's processor time, and how often another thread or process has got its core."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return time.monotonic(), usage.ru_utime + usage.ru_stime, usage.ru_nivcsw


def _spent_s(began: Tuple[float, float, int], ended: Tuple[float, float, int]) -> float:
    """Return the seconds that a turn has cost. Waits count, for a disk as a rule, but not those for the core."""
    return ended[0] - began[0] if ended[2] == began[2] else ended[1] - began[1]


class Service:
    """One engine.

    `run()` returns after SIGINT, when the processes that the engine serves are gone, or some time after SIGTERM: then the
    engine retires. It begins nothing more, and ends once its hosts have fetched what it had begun, or after `retire_s`. A
    second SIGTERM ends it at once. `close()` leaves nothing behind.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._spool = Spool(
            options.spool, options.quota_batches, options.quota_bytes, options.reserve_bytes, options.mapped
        )
        self._workers: List[WorkerProcess] = []
        try:
            kept = self._spool.kept
            manifests = FileCache(partial(kept, "manifests"), MANIFEST, MAX_MANIFEST_BYTES, self._manifest_room)
            arrays = FileCache(partial(kept, "arrays"), ARRAY, options.upload_bytes, self._spool.room_bytes)
            self._socket = AuthSocket(options.listen, options.keys, memory_bytes=options.memory_bytes, pair=options.pair)
        except BaseException:
            self._spool.close()
            raise
        send, connections = self._socket.send, self._socket.connections
        memory_bytes = options.memory_bytes or memory().total
        self._job_service = JobService(
            self._spool, manifests, arrays, self._workers, send, connections.key_of, self._roots_of, options.operators,
            options.sys, memory_bytes,
        )
        self._file_chunks = FileChunks(self._job_service.published, send, connections.unread, connections.key_of)
        self._streams = SealedStreams(self._socket.endpoint, connections, self._job_service.published, send)
        self._inbox, self._turns = Inbox(), Turns()
        self.endpoint = self._socket.endpoint
        self._hosts: Dict[bytes, float] = {}  # when each last sent a message
        self._leaving: Dict[bytes, float] = {}  # connections that are refused, and when they are ended
        self._shared_directories: Dict[bytes, str] = {}  # below the spool's files/, of the hosts that see the spool
        self._start_after = self._looked_s = 0.0
        self._worker_arguments = [
            *("--slowdown", repr(options.slowdown), "--large-image-lock", str(self._spool.directory / ".large")),
            *("--large-bytes", str(large_bytes(memory_bytes, options.workers)), "--memory", str(memory_bytes)),
            *("--sample-timeout", repr(options.sample_timeout_s)),
        ]
        if options.cache is not None:
            self._worker_arguments += ["--cache", options.cache.path, "--cache-bytes", str(options.cache.quota_bytes)]
        self._stop = False
        self._told_to_retire = False  # by a signal
        self._retire_until: Optional[float] = None  # when it ends at the latest; None: it does not retire
        self._wakeup_read, self._wakeup_write = os.pipe()
        self._poller = zmq.Poller()
        self._poller.register(self._socket.router, zmq.POLLIN)
        self._poller.register(self._socket.gate, zmq.POLLIN)
        self._poller.register(self._wakeup_read, zmq.POLLIN)
        if self._streams.descriptor is not None:
            self._poller.register(self._streams.descriptor, zmq.POLLIN)
        self._handlers: Dict[Type[say.Message], Callable[[bytes, Any, Any], None]] = {
            say.OpenJob: self._job_service.open_job,
            say.FilePart: self._job_service.file_part,
            say.Look: self._look,
            say.Probe: self._job_service.probe,
            say.Lease: self._job_service.lease,
            say.ParcelPart: self._job_service.parcel_part,
            say.Fetch: self._file_chunks.ask,
            say.Release: self._job_service.release,
            say.Ping: self._job_service.ping,
            say.AskStatus: self._job_service.status,
            say.AskSensors: self._sensors,
            say.AskCache: self._cache_state,
            say.AskStream: self._streams.ask,
            say.FetchSealed: self._streams.fetch,
            say.CloseJob: self._job_service.close_job,
        }

    def _manifest_room(self) -> int:
        """Return the bytes that manifests may take. Small ones may use the reserve: each job of files needs one."""
        return max(self._spool.room_bytes(), min(self._spool.free_bytes(), _MANIFESTS_IN_RESERVE))

    # -- the loop

    def stop(self, *_: Any) -> None:
        """Make `run()` return soon. A signal handler may call this."""
        self._stop = True

    def _on_sigterm(self, *_: Any) -> None:
        """SIGTERM."""
        self._stop = self._told_to_retire
        self._told_to_retire = True

    def run(self, announce: Callable[[], None], retires: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. `announce` is called when the engine serves and a signal can end it, `retires` when it retires.

        Call it from the main thread: it sets the handlers of SIGTERM and SIGINT.
        """
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)  # else a poll goes on after a signal's handler
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self.stop)
        self._start_workers()
        gc.freeze()
        gc.set_threshold(*_GARBAGE)
        announce()
        failures = 0
        while not self._stop:
            try:
                events = dict(self._poller.poll(self._rest_ms()))
                if self._orphaned():
                    _LOG.info("the processes that this engine serves are gone: it ends")
                    break
                if self._told_to_retire and self._retire_until is None:
                    self._retire(retires)
                self._round(events)
                if self._retire_until is not None and self._has_retired(self._retire_until):
                    break
                failures = 0
            except Exception as error:  # all jobs would end with the engine, whatever has failed for one of them
                failures += 1
                if failures > _MAX_FAILURES:
                    raise
                _LOG.exception("the engine goes on after an error: %s", error)
                self._socket.look_after(at_once=True)  # if descriptors were short
                time.sleep(_FAILED_S)

    def _rest_ms(self) -> int:
        now = time.monotonic()
        rest_s = min((self._turns.rest_s(key, now) for key in self._inbox.keys), default=_TICK_S)
        if self._file_chunks.waiting:
            rest_s = 0.0 if self._file_chunks.ready() else min(rest_s, _UNREAD_S)
        return math.ceil(1000 * min(rest_s, _TICK_S))

    def _retire(self, retires: Callable[[], None]) -> None:
        """Begin to retire. Hosts take back the leases that are not begun."""
        self._retire_until = time.monotonic() + self._options.retire_s
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_read, 4096)  # else each poll would return at once from now on
        self._job_service.retire(f"{RETIRES}: it was told to end (SIGTERM)")
        retires()
        for peer in self._hosts:
            self._socket.send(peer, say.Retires(tuple(self._job_service.begun(peer))))

    def _has_retired(self, until: float) -> bool:
        if time.monotonic() < until:
            return self._job_service.drop_finished()
        _LOG.warning("hosts have not fetched all batches within %g s: the engine ends", self._options.retire_s)
        return True

    def _round(self, events: Dict[Any, int]) -> None:
        if self._socket.gate in events:
            self._socket.answer_gate()
        if self._socket.router in events:
            self._take_messages()
        for peer in self._socket.look_after():  # after the messages: a connection that has sent one is no stranger
            self._drop_host(peer)
        for worker in list(self._workers):
            if worker.read_descriptor in events:
                self._read_reports(worker)
            elif worker.write_descriptor in events:
                worker.flush()
        if any(worker.idle for worker in self._workers):
            self._job_service.dispatch()  # before the hosts' turns, which workers need not wait for
        self._streams.look()
        self._serve_hosts()
        self._expire()
        self._end_hanging()
        self._start_workers()
        self._job_service.dispatch()
        self._watch_writes()

    def _orphaned(self) -> bool:
        """Return whether the processes that this engine serves are gone. It looks twice a second."""
        now = time.monotonic()
        if now - self._looked_s < _TICK_S:
            return False
        self._looked_s = now
        if self._options.members is not None and self._options.members.alone():
            return True
        return bool(self._options.parent) and os.getppid() != self._options.parent

    def close(self) -> None:
        """End the workers, remove the job directories and the socket. It may be called again."""
        for worker in self._workers:
            self._unregister(worker)
            worker.close_pipes()
        until = time.monotonic() + _WORKER_GRACE_S
        for worker in self._workers:
            worker.end(max(0.0, until - time.monotonic()))
        self._workers.clear()
        self._spool.close()
        if not self._socket.router.closed:
            signal.set_wakeup_fd(-1)
            os.close(self._wakeup_read)
            os.close(self._wakeup_write)
            self._streams.close()
            self._socket.close()

    # -- hosts

    def _take_messages(self) -> None:
        """Take the messages that have come: libzmq knows no keys, and would have all wait for one that is read no further."""
        until = time.monotonic() + _TAKE_S
        while time.monotonic() < until:
            received = self._socket.receive()
            if received is None:
                return
            peer, frames = received
            if peer in self._hosts:
                self._hosts[peer] = time.monotonic()
            key = self._socket.connections.key_of(peer)
            greedy = self._inbox.add(key, peer, frames)
            if greedy is not None:
                _LOG.warning("a connection is ended: it sends messages faster than they are handled")
                self._socket.connections.end(greedy)

    def _serve_hosts(self) -> None:
        """Handle messages and send parts of batches, a turn each, for a while."""
        until = time.monotonic() + _SERVE_S
        parts = self._file_chunks.ready() | self._streams.ready()
        while True:
            now = time.monotonic()
            messages = {key for key in self._inbox.keys if not self._turns.rest_s(key, now)}
            key = self._turns.next(messages | parts)
            if key is None or now > until:
                return
            began = _clock()
            if key in messages:
                self._handle(*self._inbox.take(key))
                spent_s = _spent_s(began, _clock())
                self._turns.rest(key, spent_s, time.monotonic())
                self._job_service.stalled(key, max(0.0, spent_s - LONG_S))
            if key in parts:
                if not (self._file_chunks.serve(key) | self._streams.serve(key)):
                    parts.remove(key)
                elif self._streams.contended:  # who has one connection would else have one part for each of another's thirty
                    self._streams.look()
                    parts = self._file_chunks.ready() | self._streams.ready()
            self._turns.ended(key, _spent_s(began, _clock()), time.monotonic())

    def _handle(self, peer: bytes, frames: Sequence[say.Payload]) -> None:
        """Handle a message."""
        if self._socket.connections.has_ended(peer):
            return
        said = say.announced(frames)
        known = peer in self._hosts
        if said is not None and (not known or self._job_service.refuses(peer, said)):
            if not known:
                self._job_service.refuse(peer, "", _GREET_FIRST)
            return
        decoded = self._socket.decode(peer, frames)
        if decoded is None:
            return
        message, payload = decoded
        if isinstance(message, say.Hello):
            self._hello(peer, message)
            return
        if not known:
            self._socket.send(peer, say.Refused("", _GREET_FIRST))
            return
        answer = self._handlers.get(type(message))
        if answer is None:
            self._job_service.refuse(peer, "", f"{type(message).__name__} is not a host's message")
            return
        try:
            answer(peer, message, payload)
        except Exception as error:  # a mistake of ours, or the computer's trouble: it is this host's alone
            _LOG.exception("a host's message %s was not handled: %s", type(message).__name__, error)
            job = getattr(message, "job", "")
            self._job_service.refuse(peer, job, f"the engine failed at {type(message).__name__}: {error!r}")

    def _hello(self, peer: bytes, message: say.Hello) -> None:
        if message.protocol != say.PROTOCOL:
            self._job_service.refuse(
                peer,
                "",
                f"the engine speaks protocol {say.PROTOCOL} (csd_engine {csd_engine.__version__}), the host protocol "
                f"{message.protocol} (version {message.version}). Install the same version on both.",
            )
            return
        connections = self._socket.connections
        if peer not in self._hosts and (count := connections.of_key(connections.key_of(peer))) > _MAX_CONNECTIONS:
            why = f"this key has {count} connections, and may have {_MAX_CONNECTIONS}. Close some."
            self._job_service.refuse(peer, "", why)
            self._leaving.setdefault(peer, time.monotonic() + _LEAVES_S)
            return
        self._hosts[peer] = time.monotonic()
        spool = self._spool
        quotas = (spool.quota_batches, spool.quota_bytes)
        # Whether it has a cache, seals parts, and which object storages it may read.
        features = {} if self._options.cache is None else {"cache": "1"}
        urls = self._roots_of(peer).urls
        if urls:
            features["urls"] = " ".join(urls)
        known = {**versions(), **features, **self._streams.offer}
        self._socket.send(peer, say.Welcome(known, *quotas, str(spool.directory), self._options.workers))

    def _sensors(self, peer: bytes, _: say.AskSensors, __: bytes) -> None:
        # Sensors come and go. To look for them each time costs a listing of a small directory.
        readings = read_all(sensors(self._options.sys))[:_MAX_SENSORS]
        self._socket.send(peer, say.Sensors(tuple(readings)))

    def _cache_state(self, peer: bytes, _: say.AskCache, __: bytes) -> None:
        cache, jobs = self._options.cache, self._job_service
        held = (0, 0) if cache is None else (cache.held_bytes(), cache.quota_bytes)
        self._socket.send(peer, say.CacheState(*held, jobs.cache_hits, jobs.cache_misses))

    def _look(self, peer: bytes, message: say.Look, _: bytes) -> None:
        spool = self._spool
        if message.file:
            self._shared_directories[peer] = message.file.split("/")[1]
        digest = spool.look(message.file)
        self._socket.send(peer, say.Seen(digest, spool.sign, spool.look_at_sign() or "0" * 32))

    def _expire(self) -> None:
        limit = time.monotonic() - self._options.lease_timeout_s
        for peer in [peer for peer, last_s in self._hosts.items() if last_s < limit]:
            if jobs := self._drop_host(peer):
                _LOG.warning("a host has sent nothing for %g s: its jobs (%d) are dropped", self._options.lease_timeout_s, jobs)

        now = time.monotonic()
        for peer in [peer for peer, until_s in self._leaving.items() if until_s < now]:
            del self._leaving[peer]
            self._socket.connections.end(peer)

    def _drop_host(self, peer: bytes) -> int:
        """End all that a connection has here; return how many jobs that were."""
        self._hosts.pop(peer, None)
        self._file_chunks.forget(peer)
        self._streams.forget(peer)
        jobs = self._job_service.drop_host(peer)
        if peer in self._shared_directories:  # the host may have removed it already
            self._spool.remove_host(self._shared_directories.pop(peer))
        return jobs

    def _roots_of(self, peer: bytes) -> Roots:
        """Return what a host may read: its own roots, and what hosts bring."""
        roots = self._options.roots.of_host(self._socket.roots_of(peer))
        for directory in (self._spool.files, self._spool.arrays):
            roots = roots.with_files(str(directory), str(directory))
        return roots

    # -- workers

    def _start_workers(self) -> None:
        while len(self._workers) < self._options.workers and time.monotonic() >= self._start_after:
            try:
                worker = WorkerProcess(self._worker_arguments)
            except OSError as error:  # too many processes or descriptors, or too little memory: the other workers go on
                self._job_service.trouble = f"a worker process cannot be started: {error.strerror}; see the engine's log"
                self._start_after = time.monotonic() + _RESTART_S
                _LOG.error("a worker process cannot be started: %s; the next attempt is in %g s", error, _RESTART_S)
                return
            self._poller.register(worker.read_descriptor, zmq.POLLIN)
            self._workers.append(worker)

    def _watch_writes(self) -> None:
        for worker in self._workers:
            if worker.unsent:
                self._poller.register(worker.write_descriptor, zmq.POLLOUT)
            elif worker.write_descriptor in self._poller:
                self._poller.unregister(worker.write_descriptor)

    def _unregister(self, worker: WorkerProcess) -> None:
        for descriptor in (worker.read_descriptor, worker.write_descriptor):
            if descriptor in self._poller:
                self._poller.unregister(descriptor)

    def _read_reports(self, worker: WorkerProcess) -> None:
        reports = worker.reports()
        if reports is None:
            self._replace_worker(worker)
            return
        for report in reports:
            kind = report["say"]
            if kind == "ready":
                worker.is_ready(report["kernel"])
                self._job_service.trouble = ""
            elif kind == "progress" and worker.lease is not None:
                self._job_service.progressed(*worker.lease, report["samples"])
            elif kind == "probed" and worker.probe is not None:
                (job, _), worker.probe = worker.probe, None
                self._job_service.probed(job, report["digests"], report["spent_s"])
            elif worker.lease is not None:
                (job, work), worker.lease = worker.lease, None
                self._job_service.finished(job, work, kind, report)

    def _end_hanging(self) -> None:
        """Kill workers that stay at one sample for ever, for example on a dead network file system. New ones replace them."""
        for worker in self._workers:
            if worker.hangs(self._options.worker_timeout_s, _CANCEL_GRACE_S):
                _LOG.error("worker %d hangs and is killed", worker.pid)
                worker.kill()

    def _replace_worker(self, worker: WorkerProcess) -> None:
        """Note a worker's death: report its lease as failed, and make room for a new worker."""
        self._unregister(worker)
        self._workers.remove(worker)
        status = worker.end(_WORKER_GRACE_S)
        if not worker.ready:
            self._job_service.trouble = f"a worker process ended at its start with status {status}; see the engine's log"
            self._start_after = time.monotonic() + _RESTART_S
        _LOG.error("worker %d ended with status %d and is replaced", worker.pid, status)
        if worker.probe is not None:
            job, probe = worker.probe
            self._job_service.probed(job, ["error: the worker process died"] * len(probe.left), worker.lost_s())
        if worker.lease is not None:
            job, work = worker.lease
            reason = f"the worker process at this lease ended with status {status} after {work.samples} samples"
            report = {"reason": reason, "fatal": False, "full": False, "spent_s": worker.lost_s()}
            self._job_service.finished(job, work, "failed", report)
