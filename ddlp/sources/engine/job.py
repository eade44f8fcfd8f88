"""One job on an engine, as its owner sees it: leases, cancels, releases, probes. Owns no thread and no socket."""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from csd_engine.batchfile.reader import BatchReceiver
from csd_engine.data.base import ARRAY
from csd_engine.errors import EngineError, EngineGone
from csd_engine.protocol import codec as say
from csd_engine.service.uploads import read_part
from ddlp.sources.engine.events import EngineEvent, EngineLost, LeaseFailed, LeasePublished, RanksMeasured
from ddlp.sources.engine.parcels import Parcels
from ddlp.sources.engine.part_stream import PartStream
from ddlp.sources.engine.sealed_fetch import SealedFetch

__all__ = ["JobHandle", "Probed"]

_LOG = logging.getLogger("ddlp")
ANSWER_TIMEOUT_S = 60.0
_LOOK_UP_S = 1.0  # a caller that waits for an answer looks this often whether anybody still wants it

Item = tuple[int, int]


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
    def read(told: str) -> Probed:
        """Parse one entry of `csd_engine.protocol.messages.ProbeDone.digests`."""
        kind, _, why = told.partition(":")
        if kind in ("error", "refused", "left"):
            return Probed(error=why.strip(), refused=kind == "refused", left=kind == "left")
        return Probed(told)


class Connection(Protocol):
    """The connection that carries a job. `ddlp.sources.engine.link.EngineLink` implements it.

    Attributes:
        address: of the engine.
        welcome: the engine's first message, about itself; None before it came.
        stream: the batch files that are being fetched.
        sealed: the same, over the connection for sealed parts.
    """

    address: str
    welcome: say.Welcome | None
    stream: PartStream
    sealed: SealedFetch

    def submit(self, frames: list[say.Payload], at_once: bool = True) -> None:
        """Send a message. Unless ``at_once``, it goes out with the next one."""

    def ping_now(self) -> None:
        """Send a heartbeat now, instead of at its usual time. It tells which jobs training waits for."""

    def on_its_thread(self) -> bool:
        """Whether the caller is the thread that receives the engine's answers. It can't wait for one."""


class JobHandle:
    """One job on the engine, made by `EngineLink.open_job`. After `EngineLost` or `close` its methods do nothing."""

    def __init__(self, link: Connection, name: str, on_event: Callable[[EngineEvent], None]) -> None:
        self.name = name
        self.directory = Path()  # where its batch files appear, as a path on this host
        self._link = link
        self._on_event = on_event
        self.answers: queue.SimpleQueue[say.Message | Exception] = queue.SimpleQueue()
        self.files: frozenset[tuple[str, str]] = frozenset()  # (kind, fingerprint) of those that the engine may ask for
        self.manifests: Callable[[str], str | os.PathLike[str]] | None = None
        self.arrays: Callable[[str, int], tuple[say.Payload, int]] | None = None
        self.parcels: Parcels | None = None  # the samples' bytes, if they go with the leases
        self._closed = False
        self._awaits = False  # an answer; any other one is dropped
        self._unanswered: set[int] = set()  # leases of which the engine has told neither that they are published nor failed
        self._sent: dict[str, int] = {}  # the offset of the last part sent, by the file's fingerprint
        self.wanted: Callable[[], bool] = lambda: True  # False: nobody waits for an answer any more
        self.is_waiting = False
        self.told_note = ""

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

    def lease(self, lease: int, identity: str, seed: int, epoch: int, items: Sequence[Item]) -> None:
        """Ask for a batch; leases are begun in the order asked. `lease` must not be in use in this job."""
        self._unanswered.add(lease)
        if self.parcels is not None:
            self.parcels.expect(lease, (index for index, _ in items))
        self._send(say.Lease(self.name, lease, identity, seed, epoch, tuple(map(tuple, items))))  # type: ignore[arg-type]

    def cancel(self, lease: int) -> None:
        """Take a lease back; a `LeasePublished` that is under way may still come."""
        self._forget_parcel(lease)
        self._send(say.Release(self.name, lease))

    def fetch(self, lease: int, size: int) -> Iterator[say.Payload]:
        """Fetch the ``size`` bytes of a published batch file over the connection, as `PartStream.fetch` does."""
        self._check()
        return self._link.stream.fetch(self.name, lease, size)

    def fetch_sealed(self, lease: int, receiver: BatchReceiver, size: int) -> bool:
        """Fetch a published batch file sealed, as `SealedFetch.fetch` does. False: use `fetch`."""
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
        """Tell the engine that the batch was delivered or dropped. It removes the file, half a second later at most.

        The message is sent before the next lease, so that the space is free in time for it.
        """
        self._forget_parcel(lease)
        self._send(say.Release(self.name, lease), at_once=False)

    def _forget_parcel(self, lease: int) -> None:
        if self.parcels is not None:
            self.parcels.forget(lease)

    def parcel_cpu_s(self, lease: int) -> float:
        """Return this host's processor seconds for reading and sending a lease's samples. They are told once."""
        return 0.0 if self.parcels is None else self.parcels.cpu_s(lease)

    def _end_streams(self) -> None:
        self._link.stream.drop(self.name)
        self._link.sealed.drop(self.name)
        if self.parcels is not None:
            self.parcels.close()

    def parcel_failed(self, lease: int, reason: str) -> None:
        """Note that the samples of a lease, or of the probe, can't be sent: the host prepares them."""
        if lease == say.OF_PROBE:
            self.answers.put(EngineGone(f"the samples to compare can't be sent: {reason}"))
        elif lease in self._unanswered:
            self._unanswered.discard(lease)
            self.cancel(lease)
            self.tell(LeaseFailed(lease, reason, False))

    def set_waiting(self, waiting: bool) -> None:
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
        if self.parcels is not None:
            self.parcels.expect(say.OF_PROBE, (index for index, _ in items))
        self.ask(say.Probe(self.name, seed, epoch, tuple(map(tuple, items))))  # type: ignore[arg-type]
        answer = self.answer(timeout_s)
        if not isinstance(answer, say.ProbeDone) or len(answer.digests) != len(items):
            raise self.wrong(answer, f"the probe of {len(items)} samples")
        return list(map(Probed.read, answer.digests))

    def close(self, wait_s: float = 0.0) -> None:
        """End the job; the engine removes everything of it. No event comes afterwards, except one already under way."""
        if self._closed:
            return
        self._closed = True
        self.ask(say.CloseJob(self.name))
        self._end_streams()
        if wait_s and not self._link.on_its_thread():
            try:
                self.answer(wait_s)
            except EngineError:
                pass

    def part(self, wanted: say.NeedFile) -> tuple[say.Payload, int]:
        """The part of a file that the engine asks for, and the file's size. Each part is given once, in order.

        Raises:
            KeyError: this job does not have the file.
            EngineError: the part was given already, or there is none at this offset.
            OSError: the file can't be read.
        """
        if (wanted.kind, wanted.fingerprint) not in self.files:
            raise KeyError(wanted.fingerprint)
        if wanted.offset % say.MAX_PART_BYTES or wanted.offset <= self._sent.get(wanted.fingerprint, -1):
            raise EngineError(f"no part begins at byte {wanted.offset}, or it was sent already")
        self._sent[wanted.fingerprint] = wanted.offset
        if wanted.kind == ARRAY and self.arrays is not None:
            return self.arrays(wanted.fingerprint, wanted.offset)
        if wanted.kind != ARRAY and self.manifests is not None:
            return read_part(Path(self.manifests(wanted.fingerprint)), wanted.offset)
        raise KeyError(wanted.fingerprint)

    def ask(self, question: say.Message) -> None:
        """Send a message that `answer` then returns the answer to."""
        self._awaits = True
        self._link.submit(say.encode(question))

    def wrong(self, answer: say.Message, question: str) -> EngineGone:
        """Return the error for an answer that is none to the question. A device that gives such answers counts as lost."""
        return EngineGone(f"the engine at {self._link.address} answered {question} with {answer!r:.200}.")

    def answer(self, timeout_s: float) -> say.Message:
        """Return the engine's next answer. Raises EngineGone after ``timeout_s``, or soon after nobody wants it any more."""
        until, answer = time.monotonic() + timeout_s, None
        while answer is None:
            try:
                answer = self.answers.get(timeout=max(0.0, min(_LOOK_UP_S, until - time.monotonic())))
            except queue.Empty:
                if not self.wanted():
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
            if message.lease not in self._unanswered:
                return False
            self._unanswered.discard(message.lease)
            if isinstance(message, say.Published):
                path = self.directory / message.file.rpartition("/")[2]
                self.tell(LeasePublished(message.lease, path, message.busy_s))
            else:
                self.tell(LeaseFailed(message.lease, message.reason, message.fatal))
        elif isinstance(message, say.NeedParcel):
            if self.parcels is not None:
                self.parcels.wanted(message)
        elif isinstance(message, say.Measured):
            self.tell(RanksMeasured(message.batches))
        elif isinstance(message, say.Refused) and self.directory != Path():
            self.tell(EngineLost(f"the engine at {self._link.address} dropped the job: {message.reason}"))
            return True
        elif isinstance(message, say.JobClosed) and not self._closed:
            self.tell(EngineLost(f"the engine at {self._link.address} ended the job by itself"))
            return True
        elif self._awaits:
            self._awaits = False
            self.answers.put(message)
        return isinstance(message, say.JobClosed)

    def tell(self, event: EngineEvent) -> None:
        if self._closed:
            return
        if isinstance(event, EngineLost):
            self._closed = True
            self.answers.put(EngineGone(event.reason))
        try:
            self._on_event(event)
        except Exception:
            _LOG.exception("the callback for %r failed", event)
        if isinstance(event, EngineLost):  # the epoch knows of it now, and takes fetches that end for what they are
            self._end_streams()
