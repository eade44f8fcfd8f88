"""The host's end of an engine: one connection, one thread, several jobs.

`EngineLink` speaks the protocol and gives the engine's messages to its jobs; it decides nothing. Any thread may call it. Each
job's callback gets its messages on the link's own thread, in the order in which they came.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from csd_engine.batchfile.reader import Layout
from csd_engine.data.base import Dataset
from csd_engine.errors import BadMessage, EngineError, EngineGone, EngineUnreachable
from csd_engine.protocol import codec as say
from csd_engine.service.uploads import pack
from csd_engine.transforms.pipeline import Pipeline
from ddlp.sources.engine.job import ANSWER_TIMEOUT_S, JobHandle, OnMessage
from ddlp.sources.engine.part_stream import PartStream
from ddlp.sources.engine.sealed_fetch import SealedFetch
from ddlp.sources.engine.wakeup import Wakeup
from ddlp.sources.engine.wire import ClientKeys, Wire

__all__ = ["EngineLink"]

M = TypeVar("M", bound=say.Message)

_LOG = logging.getLogger("ddlp")
_OF_A_JOB = (
    say.Refused, say.JobOpen, say.ProbeDone, say.NeedParcel, say.Published, say.Measured, say.Failed, say.JobClosed,
)  # fmt: skip
_CLOSE_TIMEOUT_S = 2.0
_PING_GAP_S = 0.25  # slow batches make training wait several times a second: not every change is sent
_AT_ONCE = 1000  # messages that are handled before the thread looks whether it has anything to send, or should end
_MOST_PARTS = 16  # of files, 1 MiB each, that wait for the engine to read: it asks for the next one when it has the last
_PAUSE_S = 1.0  # after a longer gap between two rounds, this process was stopped and not the engine


class _Asked(NamedTuple):
    """A question to the engine: the kind of its answer, and where the caller waits for it. None: the engine is lost."""

    kind: type[say.Message]
    answers: queue.SimpleQueue[say.Message | None]


class EngineLink:
    """A connection to the engine at `address`, shared by any number of jobs and threads.

    Args:
        address: ipc:///path or tcp://HOST:PORT.
        server_key: the engine's public key (40 Z85 characters).
        public_key, secret_key: this host's pair.
        spool: where this host sees the engine's spool; None: under the same path as the engine.
        connect_timeout_s: how long `open` tries.
        heartbeat_s: between two pings; the answers also bring progress.
        heartbeat_timeout_s: silence after which the engine counts as lost.
        ended: returns why the engine's process has ended, or None while it runs; None if that can't be known.

    After a fork only the parent is connected: the child's calls raise EngineGone, its `close` does nothing.
    """

    def __init__(
        self,
        address: str,
        server_key: bytes,
        public_key: bytes,
        secret_key: bytes,
        *,
        spool: str | os.PathLike[str] | None = None,
        connect_timeout_s: float = 10.0,
        heartbeat_s: float = 0.5,
        heartbeat_timeout_s: float = 5.0,
        ended: Callable[[], str | None] | None = None,
    ) -> None:
        self.address = address
        self.spool = None if spool is None else Path(spool)
        self.welcome: say.Welcome | None = None
        self._keys = ClientKeys(server_key, public_key, secret_key)
        self._connect_timeout_s = connect_timeout_s
        self._heartbeat_s = heartbeat_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._ended = ended
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._outbox: deque[list[say.Payload]] = deque()
        self._parts: deque[list[say.Payload]] = deque()  # of files; the engine has not read what was sent before
        self._parcels: deque[list[say.Payload]] = deque()  # parts of samples' bytes, as well
        self.stream = PartStream(self.submit)
        self.sealed = SealedFetch(address, self.submit)
        self._ping_due = True
        self._stop = False
        self._lost: str | None = None
        self._last_message_s = time.monotonic()
        self._jobs: dict[str, JobHandle] = {}
        self._asking: deque[_Asked] = deque()  # callers that wait for an answer; the engine answers in order
        self.numbers = itertools.count(1)  # of the jobs
        self._greeting: queue.SimpleQueue[say.Welcome | Exception] = queue.SimpleQueue()
        self._wakeup: Wakeup | None = None  # wakes the thread

    @property
    def lost(self) -> str | None:
        """Why the engine is lost, or None while it is not."""
        return self._lost

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's last message. It answers a ping every ``heartbeat_s``."""
        return time.monotonic() - self._last_message_s

    def open(self) -> say.Welcome:
        """Connect (once; later calls return the same) and return the engine's Welcome.

        Raises:
            EngineRefused: wrong key, not on the allow-list, or another protocol version.
            EngineUnreachable: nothing answered in time.
            EngineGone: what answers speaks no sense; this link was lost or closed before, or belongs to the parent process.
        """
        with self._lock:
            self._check()
            if self.welcome is not None:
                return self.welcome
            self._wakeup = Wakeup()
            thread = threading.Thread(target=self._run, args=(self._wakeup,), name="ddlp-engine-link", daemon=True)
            thread.start()
            self._thread = thread  # set only when it can be joined: `close` does not wait for this lock
            greeting = self._greeting.get()
            if isinstance(greeting, Exception):
                self._lost = str(greeting)
                thread.join()
                raise greeting
            self.welcome = greeting
            self.sealed.offered(greeting.versions.get("stream", ""))
            self.spool = Path(greeting.spool) if self.spool is None else self.spool
            return greeting

    def open_job(
        self,
        pipeline: Pipeline,
        dataset: Dataset,
        layout: Layout,
        manifest_file: Callable[[str], str | os.PathLike[str]] | None,
        on_message: OnMessage,
        **more: Any,
    ) -> JobHandle:
        """Open a job: see `JobHandle` for ``on_message``, and `JobHandle.begin` for all else."""
        job = JobHandle(self, on_message)
        job.begin(pipeline, dataset, layout, manifest_file, **more)
        return job

    def add(self, job: JobHandle) -> None:
        """Give a job its messages from now on. Raises EngineGone: the engine is lost."""
        with self._lock:
            self._check()
            self._jobs[job.name] = job

    def forget(self, job: JobHandle) -> None:
        """Give a job no more messages."""
        self._jobs.pop(job.name, None)

    def look(self, file: str, timeout_s: float = ANSWER_TIMEOUT_S) -> say.Seen:
        """Ask what the engine sees in this host's ``file`` below its spool (may be empty), and for a file of the engine's.

        Raises as `status`.
        """
        return self._ask(say.Look(file), say.Seen, timeout_s)

    def status(self, timeout_s: float = ANSWER_TIMEOUT_S) -> say.Status:
        """Ask the engine for its state and its computer's.

        Raises:
            EngineRefused, EngineUnreachable: as `open`.
            EngineGone: the engine is lost, or did not answer in time.
        """
        return self._ask(say.AskStatus(), say.Status, timeout_s)

    def sensors(self, timeout_s: float = ANSWER_TIMEOUT_S) -> tuple[say.Reading, ...]:
        """Ask for the readings of the device's power and energy sensors. Raises as `status`."""
        return self._ask(say.AskSensors(), say.Sensors, timeout_s).readings

    def cache(self, timeout_s: float = ANSWER_TIMEOUT_S) -> say.CacheState | None:
        """Ask what the engine's cache holds. None if it has none. Raises as `status`."""
        return self._ask(say.AskCache(), say.CacheState, timeout_s) if "cache" in self.open().versions else None

    def _ask(self, question: say.Message, kind: type[M], timeout_s: float) -> M:
        self.open()
        answers: queue.SimpleQueue[say.Message | None] = queue.SimpleQueue()
        with self._lock:
            self._check()
            self._asking.append(_Asked(kind, answers))  # under the lock, to keep the order of the questions
            self.submit(say.encode(question))
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            told: dict[type[say.Message], str] = {
                say.Look: "what it sees", say.AskStatus: "its status", say.AskSensors: "what its sensors say",
                say.AskCache: "what its cache holds",
            }  # fmt: skip
            what = told[type(question)]
            raise EngineGone(f"the engine at {self.address} did not tell {what} within {timeout_s:g} s.") from None
        if not isinstance(answer, kind):
            raise EngineGone(f"the engine at {self.address} is gone: {self._lost}")
        return answer

    def close(self) -> None:
        """Close all jobs and the connection. May be called again, and from a forked child, where it does nothing."""
        if os.getpid() != self._pid:
            return
        if self._thread is None:
            self._stop = True  # a thread that `open` starts meanwhile ends by itself
            return
        until = time.monotonic() + _CLOSE_TIMEOUT_S
        for job in list(self._jobs.values()):
            job.close(max(0.0, until - time.monotonic()) if self._lost is None else 0)
        self._stop = True
        self._awake()
        if not self.on_its_thread():
            self._thread.join(_CLOSE_TIMEOUT_S + self._connect_timeout_s)

    # -- called from any thread

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise EngineGone("this process is a fork of the one that is connected to the engine. Connect after forking.")
        if self._lost is not None or self._stop:
            raise EngineGone(f"the engine at {self.address} is gone: {self._lost or 'the link was closed'}")

    def submit(self, frames: list[say.Payload], at_once: bool = True) -> None:
        """Send a message. Unless ``at_once``, it waits for the next message or heartbeat and does not wake the thread."""
        if os.getpid() != self._pid:
            self._check()
        self._outbox.append(frames)
        if at_once:
            self._awake()

    def send_parcel_part(self, frames: list[say.Payload]) -> bool:
        """Send a part of samples' bytes. False: too many wait for the engine to read, so ask again later."""
        if len(self._parcels) >= _MOST_PARTS:
            return False
        self._parcels.append(frames)
        self._awake()
        return True

    def on_its_thread(self) -> bool:
        """Whether the caller is the thread that receives the engine's answers."""
        return threading.current_thread() is self._thread

    def ping_now(self) -> None:
        """Send the next heartbeat now: it tells which jobs training waits for."""
        if os.getpid() == self._pid:
            self._ping_due = True
            self._awake()

    def _awake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.ring()

    # -- the link's thread

    def _run(self, wakeup: Wakeup) -> None:
        wire: Wire | None = None
        reason = "the link was closed"
        try:
            wire = Wire(self.address, self._keys, wakeup.descriptor)
            self._greeting.put(self._greeted(wire))
            reason = self._serve(wire, wakeup)
        except EngineError as error:
            if isinstance(error, BadMessage):
                error = EngineGone(f"the engine at {self.address} sent what it should not have: {error}")
            reason = str(error)
            self._greeting.put(error)
        except Exception as error:
            _LOG.exception("the link to the engine at %s failed", self.address)
            reason = f"{type(error).__name__}: {error}"
            self._greeting.put(EngineGone(reason))
        finally:
            # Before the greeting `open` holds the lock, and waits for this thread.
            with self._lock if self.welcome is not None else contextlib.nullcontext():
                self._lost = self._lost or reason
                jobs = list(self._jobs.values())
                asking, self._asking = self._asking, deque()
            for asked in asking:
                asked.answers.put(None)
            self.stream.end(reason)  # before the jobs, which close then: a thread that fetches learns what came first
            self.sealed.end(reason)
            for job in jobs:
                job.lost(reason)
            if wire is not None:
                wire.close()
            wakeup.close()

    def _greeted(self, wire: Wire) -> say.Welcome:
        ended = self._ended or (lambda: None)
        try:
            return wire.greet(self._connect_timeout_s, lambda: self._stop or ended() is not None)
        except (EngineGone, EngineUnreachable) as error:
            why = ended()
            raise error if why is None else EngineUnreachable(f"no engine answered at {self.address}: {why}") from None

    def _serve(self, wire: Wire, wakeup: Wakeup) -> str:
        """Send and receive messages until the link ends; return why it ended."""
        silent_since = last_round = time.monotonic()
        pinged, sent_s, gap_s = silent_since - self._heartbeat_s, -math.inf, min(_PING_GAP_S, self._heartbeat_s)
        sent: tuple[str, ...] = ()
        while True:
            wakeup.rest()
            rest_s = self._heartbeat_s if not self._ping_due else max(0.0, sent_s + gap_s - time.monotonic())
            wakeup.awake(wire.wait(0.0 if self._stop or (self._outbox and not wire.full) else rest_s))
            now = time.monotonic()
            if now - last_round > self._heartbeat_s + _PAUSE_S:
                silent_since += now - last_round
            last_round = now
            broken = wire.broken()
            alive = False
            for message, payload in itertools.islice(wire.messages(), _AT_ONCE):
                silent_since = self._last_message_s = now
                alive = True
                gone = self._take(wire, message, payload)
                if gone:
                    return gone
            for waiting_frames in (self._outbox, self._parts, self._parcels):
                while waiting_frames and wire.send(waiting_frames[0]):
                    waiting_frames.popleft()
            ended = self._ended() if self._ended is not None and not alive else None
            if ended is not None or broken:
                return ended or f"the connection to the engine at {self.address} was broken off"
            if now - silent_since > self._heartbeat_timeout_s:
                return f"the engine at {self.address} has been silent for {now - silent_since:.1f} s"
            if self._stop:
                return "the link was closed"
            beat = now - pinged >= self._heartbeat_s
            if beat or (self._ping_due and now - sent_s >= gap_s):
                self._ping_due = False
                waiting = tuple(job.name for job in list(self._jobs.values()) if job.is_waiting and job.open)
                if waiting != sent:
                    sent, sent_s, beat = waiting, now, True
                if beat:
                    if wire.hoards():
                        return f"the engine at {self.address} sends a message without end"
                    pinged = now
                    wire.send(say.encode(say.Ping(waiting)))

    def _take(self, wire: Wire, message: say.Message, payload: say.Payload) -> str | None:
        """Handle one message; return a reason if it ends the connection."""
        if isinstance(message, (say.Pong, say.Retires)):
            for one in list(self._jobs.values()):
                one.tell(message)
        elif isinstance(message, (say.Part, say.NoPart)):
            self.stream.arrived(message, payload)
        elif isinstance(message, (say.StreamOpen, say.NoStream)):
            self.sealed.answered(message, payload)
        elif isinstance(message, say.NeedFile):
            if len(self._parts) >= _MOST_PARTS:
                return f"the engine at {self.address} asks for more parts of files than it reads"
            self._send_part(message)
        elif isinstance(message, (say.Seen, say.Status, say.Sensors, say.CacheState)):
            if self._asking:
                asked = self._asking.popleft()
                asked.answers.put(message)
                if not isinstance(message, asked.kind):
                    return f"the engine at {self.address} answered with {type(message).__name__} to {asked.kind.__name__}"
        elif isinstance(message, say.Refused) and not message.job:
            return f"the engine at {self.address} broke off: {message.reason}"
        elif isinstance(message, _OF_A_JOB):
            job = self._jobs.get(message.job)
            if job is not None and job.handle(message):
                self._jobs.pop(job.name, None)
        else:
            return f"the engine at {self.address} sent {type(message).__name__}, which it should not have"
        return None

    def _send_part(self, wanted: say.NeedFile) -> None:
        """Send the part of a file that the engine asks for, from the first job that has it."""
        problem: Exception = EngineError(f"no job here has {wanted.kind} {wanted.fingerprint}")
        asking = [job for job in list(self._jobs.values()) if job.directory == Path() and job.open]
        for job in asking:
            try:
                part, total = job.part(wanted)
                frames = say.encode(
                    say.FilePart(wanted.kind, wanted.fingerprint, wanted.offset, total), pack(wanted.kind, part)
                )
            except (OSError, EngineError, KeyError) as error:
                problem = error if not isinstance(error, KeyError) else problem
                continue
            self._parts.append(frames)
            for one in asking:
                one.answers.put(wanted)
            return
        for job in asking:
            job.answers.put(EngineGone(f"the engine asks for a {wanted.kind} that cannot be sent: {problem}"))
