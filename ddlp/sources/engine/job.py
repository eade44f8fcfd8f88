"""One job on an engine, as its owner sees it: leases, releases, probes. Owns no thread and no socket."""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from csd_engine.batchfile.reader import BatchReceiver, Layout
from csd_engine.data.base import ARRAY, Dataset, Reader
from csd_engine.data.image_files import most_pixels
from csd_engine.errors import EngineError, EngineGone, EngineRefused
from csd_engine.protocol import codec as say
from csd_engine.service.groups import Member
from csd_engine.service.parcels import most_bytes
from csd_engine.service.uploads import read_part
from csd_engine.transforms.pipeline import Pipeline
from ddlp.sources.engine.parcels import Parcels

if TYPE_CHECKING:
    from ddlp.sources.engine.link import EngineLink

__all__ = ["ARRAYS", "JobHandle", "OnMessage", "Probed"]

ARRAYS = "arrays"  # the directory below the spool in which an engine keeps the arrays that hosts send
OnMessage = Callable[[say.Message], None]

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
            self.release(lease)
            self._unanswered.discard(lease)
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
        """End the job; the engine removes everything of it. No event comes afterwards, except one already under way."""
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
