"""The host's end of an engine: one connection, one thread, several jobs.

`EngineLink` speaks the protocol and gives the engine's messages to its jobs; it decides nothing. A `JobHandle` is a job as its
owner sees it: leases, releases, probes; it owns no thread and no socket. Any thread may call both. Each job's callback gets its
messages on the link's own thread, in the order in which they came.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from csd_engine.batchfile.reader import BatchReceiver, Layout
from csd_engine.data.base import ARRAY, Dataset, Reader
from csd_engine.data.image_files import most_pixels
from csd_engine.errors import BadMessage, EngineError, EngineGone, EngineRefused, EngineUnreachable
from csd_engine.protocol import codec as say
from csd_engine.service.jobs import Member
from csd_engine.service.parcels import most_bytes
from csd_engine.service.uploads import pack, read_part
from csd_engine.transforms.pipeline import Pipeline
from ddlp.sources.engine.parcels import Parcels
from ddlp.sources.engine.part_stream import PartStream
from ddlp.sources.engine.sealed_fetch import SealedFetch
from ddlp.sources.engine.wire import ClientKeys, Wakeup, Wire

__all__ = ["ARRAYS", "EngineLink", "JobHandle"]

ARRAYS = "arrays"  # the directory below the spool in which an engine keeps the arrays that hosts send
ANSWER_TIMEOUT_S = 60.0

Item = tuple[int, int]
OnMessage = Callable[[say.Message], None]
M = TypeVar("M", bound=say.Message)

_LOG = logging.getLogger("ddlp")
_OF_A_JOB = (
    say.Refused, say.JobOpen, say.ProbeDone, say.NeedParcel, say.Published, say.Measured, say.Failed, say.JobClosed,
)  # fmt: skip
_CLOSE_TIMEOUT_S = 2.0
_LOOK_UP_S = 1.0  # a caller that waits for an answer looks this often whether anybody still wants it
_PING_GAP_S = 0.25  # slow batches make training wait several times a second: not every change is sent
_AT_ONCE = 1000  # messages that are handled before the thread looks whether it has anything to send, or should end
_MOST_PARTS = 16  # of files, 1 MiB each, that wait for the engine to read: it asks for the next one when it has the last
_PAUSE_S = 1.0  # after a longer gap between two rounds, this process was stopped and not the engine


class Probed(NamedTuple):
    """The engine's answer to the probe of one sample.

    Attributes:
        digest: `csd_engine.prepare.sample.sample_digest` of the sample; empty if it failed.
        error: why it failed, else empty.
        refused: it failed because a user's operator does not run there.
        left: only this host may make it.
    """

    digest: str = ""
    error: str = ""
    refused: bool = False
    left: bool = False

    @staticmethod
    def read(text: str) -> Probed:
        """Parse one entry of `csd_engine.protocol.messages.ProbeDone.digests`."""
        kind, _, why = text.partition(":")
        if kind in ("error", "refused", "left"):
            return Probed(error=why.strip(), refused=kind == "refused", left=kind == "left")
        return Probed(text)


class JobHandle:
    """One job on the engine at the other end of a link.

    ``on_message`` is called on the link's thread, and must return soon. It gets what the engine says about the job's leases
    (`Published` or `Failed`, once for each) and about itself (`Pong`, `Retires`, `Measured`). `Refused` is the last: the engine
    is lost, or has dropped the job. After that, or `close`, the methods do nothing.
    """

    def __init__(self, link: EngineLink, on_message: OnMessage) -> None:
        self.name = f"{os.getpid()}-{next(link.numbers)}"
        self.directory = Path()  # where its batch files appear, as a path on this host
        self._link = link
        self._on_message = on_message
        self.answers: queue.SimpleQueue[say.Message | Exception] = queue.SimpleQueue()
        self._files: frozenset[tuple[str, str]] = frozenset()  # (kind, fingerprint) of those that the engine may ask for
        self._manifests: Callable[[str], str | os.PathLike[str]] | None = None
        self._arrays: Callable[[str, int], tuple[say.Payload, int]] | None = None
        self._parcels: Parcels | None = None  # the samples' bytes, if they go with the leases
        self._closed = False
        self._awaits = False  # an answer; any other one is dropped
        self._unanswered: set[int] = set()  # leases of which the engine has told neither that they are published nor failed
        self._sent: dict[str, int] = {}  # the offset of the last part sent, by the file's fingerprint
        self._wanted: Callable[[], bool] = lambda: True  # False: nobody waits for an answer any more
        self.is_waiting = False

    def begin(
        self,
        pipeline: Pipeline,
        dataset: Dataset,
        layout: Layout,
        manifest_file: Callable[[str], str | os.PathLike[str]] | None,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        array_part: Callable[[str, int], tuple[say.Payload, int]] | None = None,
        member: Member = Member(),  # noqa: B008  (immutable)
        wanted: Callable[[], bool] | None = None,
        source: Callable[[], Reader] | None = None,
    ) -> None:
        """Open the job. Manifests, and arrays that the engine keeps itself, are sent if the engine does not have them yet.

        Args:
            pipeline, dataset, layout: what to prepare.
            manifest_file: maps a manifest's fingerprint to its file here; None for data sets without files.
            timeout_s: how long the engine may send nothing about this job.
            array_part: maps an array's fingerprint and an offset to a part of its .npy file, and the file's size.
            member: the rank, and its run, that the job is for.
            wanted: False once nobody waits for the job's answers any more; None: somebody always does.
            source: opens a reader of the data set's files, if they go with the leases (`parcels.carried`).

        Raises:
            EngineRefused: the engine does not take the job; says why.
            EngineGone: the engine is lost, or gave an answer that is none.
        """
        link = self._link
        welcome = link.open()
        self._manifests, self._arrays, self._wanted = manifest_file, array_part, wanted or self._wanted
        self._files = frozenset(dataset.uploads(Path(welcome.spool) / ARRAYS))
        if source is not None:
            most = most_bytes(welcome.quota_bytes)
            self._parcels = Parcels(self.name, source(), most, link.send_parcel_part, self._parcel_failed)
        try:
            link.add(self)
            parts = (pipeline.to_data(), dataset.to_data(), layout.to_data())
            self._ask(say.OpenJob(self.name, *parts, *member, most_pixels=most_pixels()))
            answer = self._answer(timeout_s)
            while isinstance(answer, say.NeedFile):  # a sign of life while a file is on its way
                answer = self._answer(timeout_s)
            if isinstance(answer, say.Refused):
                raise EngineRefused(f"the engine at {link.address} refused the job: {answer.reason}")
            if not isinstance(answer, say.JobOpen):
                raise self._wrong(answer, "the opening of a job")
            self.directory = (link.spool or Path(welcome.spool)) / answer.directory
        except BaseException:
            self.close()
            link.forget(self)
            raise

    def _check(self) -> None:
        if self._closed:
            raise EngineGone(f"job {self.name} at {self._link.address} is over. Open another one.")

    def _send(self, message: say.Message, at_once: bool = True) -> None:
        if not self._closed:
            self._link.submit(say.encode(message), at_once)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the parts on the engine's side."""
        return {} if self._link.welcome is None else dict(self._link.welcome.versions)

    def send_lease(self, lease: int, identity: str, seed: int, epoch: int, items: Sequence[Item]) -> None:
        """Ask for a batch; leases are begun in the order asked. `lease` must not be in use in this job."""
        self._unanswered.add(lease)
        if self._parcels is not None:
            self._parcels.expect(lease, (index for index, _ in items))
        self._send(say.Lease(self.name, lease, identity, seed, epoch, tuple(map(tuple, items))))  # type: ignore[arg-type]

    def path(self, published: say.Published) -> Path:
        """Return where the file of a published batch is on this host. It is not yet verified."""
        return self.directory / published.file.rpartition("/")[2]

    def parts(self, lease: int, size: int) -> Iterator[say.Payload]:
        """Fetch the ``size`` bytes of a published batch file over the connection, as `PartStream.fetch` does."""
        self._check()
        return self._link.stream.fetch(self.name, lease, size)

    def fetch_sealed(self, lease: int, receiver: BatchReceiver, size: int) -> bool:
        """Fetch a published batch file sealed, as `SealedFetch.fetch` does. False: use `parts`."""
        self._check()
        return self._link.sealed.fetch(self.name, lease, size, receiver, lambda: not self._closed)

    @property
    def sealed_remark(self) -> str:
        """Why batches do not come sealed; empty: they do, or nothing is known."""
        return self._link.sealed.remark

    @property
    def open(self) -> bool:
        """False once it was closed or the engine was lost."""
        return not self._closed

    def release(self, lease: int) -> None:
        """Tell the engine that a lease's batch was delivered, or is not wanted. It stops working on it, or removes the file.

        A lease that it may be at is told at once, any other one before the next lease: the space is free in time for that.
        """
        if self._parcels is not None:
            self._parcels.forget(lease)
        self._send(say.Release(self.name, lease), at_once=lease in self._unanswered)

    def parcel_cpu_s(self, lease: int) -> float:
        """Return this host's processor seconds for reading and sending a lease's samples. They are told once."""
        return 0.0 if self._parcels is None else self._parcels.cpu_s(lease)

    def _end_streams(self) -> None:
        self._link.stream.drop(self.name)
        self._link.sealed.drop(self.name)
        if self._parcels is not None:
            self._parcels.close()

    def _parcel_failed(self, lease: int, reason: str) -> None:
        """Note that the samples of a lease, or of the probe, can't be sent: the host prepares them."""
        if lease == say.OF_PROBE:
            self.answers.put(EngineGone(f"the samples to compare can't be sent: {reason}"))
        elif lease in self._unanswered:
            self._unanswered.discard(lease)  # first: the engine's answer comes too late now
            assert self._parcels is not None
            self._parcels.forget(lease)
            self._send(say.Release(self.name, lease))
            self.tell(say.Failed(self.name, lease, reason, False))

    def waiting(self, waiting: bool) -> None:
        """Tell the engine whether a training step waits for this job now. The engine serves such a job first."""
        if waiting != self.is_waiting and not self._closed:
            self.is_waiting = waiting
            self._link.ping_now()

    def probe(self, seed: int, epoch: int, items: Sequence[Item], timeout_s: float = ANSWER_TIMEOUT_S) -> list[Probed]:
        """Have the engine prepare these items, and return its answer for each.

        Raises:
            EngineGone: the engine is lost, or did not answer in time.
        """
        while not self.answers.empty():  # answers to a request that was given up
            self.answers.get()
        self._check()
        if self._parcels is not None:
            self._parcels.expect(say.OF_PROBE, (index for index, _ in items))
        self._ask(say.Probe(self.name, seed, epoch, tuple(map(tuple, items))))  # type: ignore[arg-type]
        answer = self._answer(timeout_s)
        if not isinstance(answer, say.ProbeDone) or len(answer.digests) != len(items):
            raise self._wrong(answer, f"the probe of {len(items)} samples")
        return list(map(Probed.read, answer.digests))

    def close(self, wait_s: float = 0.0) -> None:
        """End the job; the engine removes everything of it. No message comes afterwards, except one under way."""
        if self._closed:
            return
        self._closed = True
        self._ask(say.CloseJob(self.name))
        self._end_streams()
        if wait_s and not self._link.on_its_thread():
            try:
                self._answer(wait_s)
            except EngineError:
                pass

    def part(self, wanted: say.NeedFile) -> tuple[say.Payload, int]:
        """The part of a file that the engine asks for, and the file's size. Each part is given once, in order.

        Raises:
            KeyError: this job does not have the file.
            EngineError: the part was given already, or there is none at this offset.
            OSError: the file can't be read.
        """
        if (wanted.kind, wanted.fingerprint) not in self._files:
            raise KeyError(wanted.fingerprint)
        if wanted.offset % say.MAX_PART_BYTES or wanted.offset <= self._sent.get(wanted.fingerprint, -1):
            raise EngineError(f"no part begins at byte {wanted.offset}, or it was sent already")
        self._sent[wanted.fingerprint] = wanted.offset
        if wanted.kind == ARRAY and self._arrays is not None:
            return self._arrays(wanted.fingerprint, wanted.offset)
        if wanted.kind != ARRAY and self._manifests is not None:
            return read_part(Path(self._manifests(wanted.fingerprint)), wanted.offset)
        raise KeyError(wanted.fingerprint)

    def _ask(self, question: say.Message) -> None:
        """Send a message that `_answer` then returns the answer to."""
        self._awaits = True
        self._link.submit(say.encode(question))

    def _wrong(self, answer: say.Message, question: str) -> EngineGone:
        """Return the error for an answer that is none to the question. A device that gives such answers counts as lost."""
        return EngineGone(f"the engine at {self._link.address} answered {question} with {answer!r:.200}.")

    def _answer(self, timeout_s: float) -> say.Message:
        """Return the engine's next answer. Raises EngineGone after ``timeout_s``, or soon after nobody wants it any more."""
        until, answer = time.monotonic() + timeout_s, None
        while answer is None:
            try:
                answer = self.answers.get(timeout=max(0.0, min(_LOOK_UP_S, until - time.monotonic())))
            except queue.Empty:
                if not self._wanted():
                    raise EngineGone(f"nobody waits for the engine at {self._link.address} any more.") from None
                if time.monotonic() >= until:
                    raise EngineGone(
                        f"the engine at {self._link.address} did not answer within {timeout_s:g} s. Look at its log."
                    ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def handle(self, message: say.Message) -> bool:
        """Handle a message about this job, on the link's thread. Return True if the message ends the job.

        A message that nobody waits for is dropped: nothing of it is kept.
        """
        if isinstance(message, (say.Published, say.Failed)):
            if message.lease in self._unanswered:
                self._unanswered.discard(message.lease)
                self.tell(message)
        elif isinstance(message, say.NeedParcel):
            if self._parcels is not None:
                self._parcels.wanted(message)
        elif isinstance(message, say.Measured):
            self.tell(message)
        elif isinstance(message, say.Refused) and self.directory != Path():
            self.lost(f"the engine at {self._link.address} dropped the job: {message.reason}")
            return True
        elif isinstance(message, say.JobClosed) and not self._closed:
            self.lost(f"the engine at {self._link.address} ended the job by itself")
            return True
        elif self._awaits:
            self._awaits = False
            self.answers.put(message)
        return isinstance(message, say.JobClosed)

    def tell(self, message: say.Message) -> None:
        """Pass a message on, unless the job is over."""
        if not self._closed:
            self._pass_on(message)

    def lost(self, reason: str) -> None:
        """End the job: nothing more will come."""
        self.answers.put(EngineGone(reason))
        if not self._closed:
            self._closed = True
            self._pass_on(say.Refused(self.name, reason))
            self._end_streams()  # the epoch knows of it now, and takes fetches that end for what they are

    def _pass_on(self, message: say.Message) -> None:
        try:
            self._on_message(message)
        except Exception:
            _LOG.exception("the callback for %r failed", message)


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
        self.lost: str | None = None  #: why the engine is lost; None while it is not
        self._last_message_s = time.monotonic()
        self._jobs: dict[str, JobHandle] = {}
        self._asking: deque[_Asked] = deque()  # callers that wait for an answer; the engine answers in order
        self.numbers = itertools.count(1)  # of the jobs
        self._greeting: queue.SimpleQueue[say.Welcome | Exception] = queue.SimpleQueue()
        self._wakeup: Wakeup | None = None  # wakes the thread

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
                self.lost = str(greeting)
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
            what = kind.__name__
            raise EngineGone(f"the engine at {self.address} did not answer with {what} within {timeout_s:g} s.") from None
        if not isinstance(answer, kind):
            raise EngineGone(f"the engine at {self.address} is gone: {self.lost}")
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
            job.close(max(0.0, until - time.monotonic()) if self.lost is None else 0)
        self._stop = True
        self._awake()
        if not self.on_its_thread():
            self._thread.join(_CLOSE_TIMEOUT_S + self._connect_timeout_s)

    # -- called from any thread

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise EngineGone("this process is a fork of the one that is connected to the engine. Connect after forking.")
        if self.lost is not None or self._stop:
            raise EngineGone(f"the engine at {self.address} is gone: {self.lost or 'the link was closed'}")

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
                self.lost = self.lost or reason
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
            for handle in list(self._jobs.values()):
                handle.tell(message)
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
            for job in asking:
                job.answers.put(wanted)
            return
        for job in asking:
            job.answers.put(EngineGone(f"the engine asks for a {wanted.kind} that cannot be sent: {problem}"))
