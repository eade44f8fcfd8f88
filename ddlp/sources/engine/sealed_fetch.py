"""Batch files over the connection for sealed parts: read to their place, and decrypted there.

The thread that wants a batch reads the connection itself. Whatever goes wrong with it, the batch comes by CURVE, through
`ddlp.sources.engine.part_stream`; after a few such failures in a row all do.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import select
import socket
import sys
import threading
from collections.abc import Callable

from csd_engine.batchfile.checksum import READ_BYTES
from csd_engine.batchfile.reader import BatchReceiver
from csd_engine.errors import BadMessage, DamagedBatch, EngineGone
from csd_engine.protocol import codec as say
from csd_engine.protocol import sealed
from csd_engine.protocol.aead import CHACHA, KEY_BYTES, NotAuthentic, ciphers
from csd_engine.protocol.printable import printable
from csd_engine.protocol.sealed import HEAD_BYTES, MOST_BYTES, NO_PLACE, TICKET_BYTES, Opener, Place, part_bytes

__all__ = ["SealedFetch", "choose_cipher"]

SILENT_S = 30.0  # the heartbeat notices a lost engine long before
_OPEN_S = 2.0  # for each step of the opening; a firewall that drops packets costs it once
_FAILURES = 3  # in a row
_WAKE_LATE = sys.platform == "linux"  # once the record is there, and not for each few packets of it


def choose_cipher(offered: str, here: tuple[str, ...] | None = None) -> str | None:
    """Return the cipher for parts between this host and an engine; None: there is none.

    Args:
        offered: what the engine's Welcome says of ``stream``: its ciphers, the best first.
        here: those of this host.
    """
    here = ciphers() if here is None else here
    both = [cipher for cipher in offered.split(" ") if cipher in here]
    # If they like different ones best, one of them has no instructions for AES, and needs ChaCha more than the other needs AES.
    return None if not both else both[0] if both[0] == here[0] or CHACHA not in both else CHACHA


class _Open:
    """A connection that the engine has opened to sealed parts."""

    def __init__(self, connection: socket.socket, opener: Opener) -> None:
        self.connection, self.opener = connection, opener
        self.head = bytearray(HEAD_BYTES)
        self.silent_s = _OPEN_S  # how long the engine may send nothing
        self._wake_for = 0
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def _fill(self, space: memoryview, rest: int) -> None:
        """Receive bytes into ``space``. ``rest``: how many of the record are still to come, these among them."""
        while len(space):
            try:
                come = self.connection.recv_into(space)
            except BlockingIOError:
                self._wait(rest)
                continue
            if not come:
                raise ConnectionError("the engine has closed it")
            space, rest = space[come:], rest - come

    def _wait(self, rest: int) -> None:
        """Wait until all of the record is there, or as much of it as the system keeps.

        Nothing may be there: a read that blocks would take what is there, and then wait for as much again.
        """
        if _WAKE_LATE and self._wake_for != rest:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, rest)
            self._wake_for = rest
        if not self._poll.poll(1000 * self.silent_s):
            raise TimeoutError("the engine sent nothing for too long")

    def _head(self, place: Place, kinds: tuple[int, ...]) -> int:
        """Receive the next record's head, and return its kind; then `_opener` has begun to open it."""
        self._fill(memoryview(self.head), HEAD_BYTES)
        kind = self.opener.kind(self.head, place)
        if kind not in kinds:
            raise NotAuthentic(f"a record of kind {kind}")
        self.opener.begin(self.head, place)
        return kind

    def ready(self) -> None:
        """Receive the first record. Raises as `take`."""
        self._head(NO_PLACE, (sealed.READY,))
        self.opener.check(self.head)

    def take(self, place: Place, receiver: BatchReceiver) -> str | None:
        """Receive the next part, to its place. Return why there is none; None: it has come.

        Raises:
            NotAuthentic: it is not the engine's, or not for this place. The receiver is spoilt.
            DamagedBatch: the receiver does not want it.
            OSError: the connection has ended, or is silent.
        """
        if self._head(place, (sealed.PART, sealed.REASON)) == sealed.REASON:
            reason = bytearray(int.from_bytes(self.head[1:5], "big"))
            self._fill(memoryview(reason), len(reason))
            self.opener.decrypt(reason)
            self.opener.check(self.head)
            return printable(reason.decode("utf-8", "replace"), len(reason))
        rest = part_bytes(place)
        for space in receiver.spaces(rest):
            # Decrypted and summed piece by piece while still in the cache, so that a batch crosses the memory bus once.
            for at in range(0, len(space), READ_BYTES):
                piece = space[at : at + READ_BYTES]
                self._fill(piece, rest)
                rest -= len(piece)
                self.opener.decrypt(piece)
                if place.offset:
                    receiver.filled(len(piece))
        self.opener.check(self.head)
        if not place.offset:  # the batch file's header is judged once it is known whose it is
            receiver.filled(part_bytes(place))
        return None


class SealedFetch:
    """The sealed fetches over one link, one at a time. Any thread may fetch; the link's thread brings the engine's answers.

    Args:
        address: the engine's, as the link has it.
        submit: sends a message's frames on the CURVE connection; never blocks.
    """

    def __init__(self, address: str, submit: Callable[[list[say.Payload]], None]) -> None:
        self._host = address[len("tcp://") :].rpartition(":")[0].strip("[]") if address.startswith("tcp://") else ""
        self._submit = submit
        self._one = threading.Lock()  # held by the thread that fetches
        self._lock = threading.Lock()  # guards what `drop` and `end` look at
        self._open: _Open | None = None
        self._job: str | None = None  # whose batch is being fetched
        self._over: str | None = None
        self._answers: queue.SimpleQueue[tuple[say.Message, say.Payload] | None] = queue.SimpleQueue()
        self._asking = False
        self._cipher: str | None = None
        self._failures = self._fetches = 0
        self.remark = ""  #: why batches do not come sealed, for people; empty: they do, or nothing is known

    def offered(self, ciphers: str) -> None:
        """Note what the engine's Welcome says of ``stream``; empty: it is older, or has no cipher."""
        if self._host:
            self._cipher = choose_cipher(ciphers)

    def fetch(self, job: str, lease: int, size: int, receiver: BatchReceiver, wanted: Callable[[], bool]) -> bool:
        """Receive the ``size`` bytes of a published batch file. False: they do not come this way, and the receiver is spoilt.

        Args:
            job, lease: whose batch.
            receiver: puts them into their places, and verifies them.
            wanted: whether the job is open.

        Raises:
            DamagedBatch: the engine can't send it, or it is not the batch that the receiver expects.
            EngineGone: the engine is lost, or the job was closed.
        """
        if self._cipher is None:
            return False
        with self._one:
            with self._lock:
                self._job = job
            try:
                self._check(wanted)
                return self._fetch(job, lease, size, receiver)
            except (NotAuthentic, OSError, BadMessage) as error:
                self._check(wanted)
                self._failed(f"{type(error).__name__}: {error}" if isinstance(error, NotAuthentic) else str(error))
                return False
            finally:
                with self._lock:
                    self._job = None

    def _check(self, wanted: Callable[[], bool]) -> None:
        if self._over is not None:
            raise EngineGone(self._over)
        if not wanted():
            raise EngineGone("the job was closed while a batch was fetched")

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= _FAILURES:
            self._cipher = None
            self.remark = f"the engine's batches come by CURVE, which takes more processor time: {why}"

    def _fetch(self, job: str, lease: int, size: int, receiver: BatchReceiver) -> bool:
        stream = self._opened(size)
        if stream is None:
            return False
        self._fetches += 1
        whole = False
        try:
            self._submit(say.encode(say.FetchSealed(self._fetches, job, lease, size)))
            for offset in range(0, size, say.MAX_PART_BYTES):
                place = Place(self._fetches, job, lease, offset, size)
                reason = stream.take(place, receiver)
                if reason is not None:
                    whole = True  # it was the fetch's last record
                    raise DamagedBatch(f"the engine can't send it: {reason}")
            whole = True
        finally:
            if not whole:  # the rest of it is on the way
                self._close()
        self._failures = 0
        return True

    def _opened(self, size: int) -> _Open | None:
        """Return the connection, a new one if need be; None if the engine gives none. Raises what `fetch` expects."""
        stream = self._open
        if stream is not None and stream.opener.bytes + size <= MOST_BYTES:
            return stream
        self._close()
        assert self._cipher is not None
        while not self._answers.empty():  # to a question that was given up
            self._answers.get()
        self._asking, ticket = True, secrets.token_bytes(TICKET_BYTES)
        if self._over is not None:  # else its `end` is still to come, and answers
            raise ConnectionError("the engine is lost")
        self._submit(say.encode(say.AskStream(self._cipher), ticket))
        try:
            answer = self._answers.get(timeout=SILENT_S)
        except queue.Empty:
            raise TimeoutError("the engine does not open a connection for sealed parts") from None
        if answer is None:
            raise ConnectionError("the engine is lost")
        message, payload = answer
        if not isinstance(message, say.StreamOpen):
            self._failures = _FAILURES
            raise ConnectionError(message.reason if isinstance(message, say.NoStream) else "the engine gave a wrong answer")
        if len(payload) != KEY_BYTES:
            raise BadMessage(f"a key of {len(payload)} bytes")
        return self._connect(message.port, ticket, bytes(payload), self._cipher)

    def _connect(self, port: int, ticket: bytes, key: bytes, cipher: str) -> _Open:
        try:
            connection = socket.create_connection((self._host, port), _OPEN_S)
        except OSError as error:
            self._failures = _FAILURES  # a firewall, or a forwarded port: it would fail again
            raise ConnectionError(f"its port {port} can't be reached ({error})") from None
        stream = _Open(connection, Opener(cipher, key))
        with self._lock:
            self._open = stream
            over = self._over is not None
        if over:
            self._close()
            raise ConnectionError("the engine is lost")
        whole = False
        try:
            connection.sendall(ticket)
            connection.setblocking(False)
            stream.ready()
            stream.silent_s = SILENT_S
            whole = True
        finally:
            if not whole:
                self._close()
        return stream

    def _close(self) -> None:
        with self._lock:
            stream, self._open = self._open, None
        if stream is not None:
            stream.connection.close()

    # -- the link's thread, or the one that closes

    def answered(self, message: say.Message, payload: say.Payload) -> None:
        """Take the engine's answer to AskStream. One that nobody has asked for is dropped."""
        if self._asking:
            self._asking = False
            self._answers.put((message, bytes(payload)))

    def drop(self, job: str) -> None:
        """Note that a job was closed: a thread that fetches a batch of it gets EngineGone."""
        with self._lock:
            if self._job == job:
                self._interrupt()

    def end(self, reason: str) -> None:
        """Note that the engine is lost: all threads that fetch get EngineGone."""
        with self._lock:
            self._over = reason
            self._answers.put(None)
            self._interrupt()
            if self._job is None and self._open is not None:
                self._open.connection.close()
                self._open = None

    def _interrupt(self) -> None:
        if self._open is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._open.connection.shutdown(socket.SHUT_RDWR)
