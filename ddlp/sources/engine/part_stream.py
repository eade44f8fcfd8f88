"""Batch files over an engine's socket: a few parts are asked for ahead, and come to the receiver in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from csd_engine.errors import BadMessage, DamagedBatch, EngineGone
from csd_engine.protocol import codec as say

__all__ = ["PartStream"]

WINDOW = 8  # parts of 1 MiB asked for and not yet used, over all fetches: bounds the memory of both sides
SILENT_S = 30.0  # the heartbeat notices a lost engine long before


class _OnTheWay:
    """A batch that is being fetched."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.arrived: deque[say.Payload | str] = deque()  # bytes, or why there are none


class PartStream:
    """The fetches over one link. Any thread may fetch; the link's thread brings the parts that arrive.

    Args:
        submit: sends a message's frames; never blocks.
    """

    def __init__(self, submit: Callable[[list[say.Payload]], None]) -> None:
        self._submit = submit
        self._changed = threading.Condition()
        self._on_the_way: dict[int, _OnTheWay] = {}  # by the fetch's number
        self._asked: deque[tuple[int, int, int]] = deque()  # (fetch's number, offset, length) of parts that have not come yet
        self._fetches = 0
        self._under_way = 0  # parts asked for, and neither used nor thrown away
        self._over: str | None = None

    def fetch(self, job: str, lease: int, size: int) -> Iterator[say.Payload]:
        """Yield the bytes of a published batch file in order, in parts.

        Close the iterator, or use it up: until then it occupies a part of the window.

        Raises:
            DamagedBatch: the engine can't send it, or falls silent over it.
            EngineGone: the engine is lost, or the job was closed.
        """
        batch = _OnTheWay(job)
        asked = used = 0
        with self._changed:
            self._fetches += 1
            number = self._fetches
            self._on_the_way[number] = batch
        try:
            while used < size:
                with self._changed:
                    while True:
                        self._check(number)
                        while asked < size and self._under_way < WINDOW:
                            length = min(say.MAX_PART_BYTES, size - asked)
                            self._under_way += 1
                            self._asked.append((number, asked, length))
                            self._submit(say.encode(say.Fetch(number, job, lease, asked, length)))
                            asked += length
                        if batch.arrived:
                            break
                        if not self._changed.wait(SILENT_S):
                            raise DamagedBatch(f"the engine sent nothing of it for {SILENT_S:g} s")
                    part = batch.arrived.popleft()
                    self._under_way -= 1
                    self._changed.notify_all()
                if isinstance(part, str):
                    raise DamagedBatch(f"the engine can't send it: {part}")
                used += len(part)
                yield part
        finally:
            with self._changed:
                self._on_the_way.pop(number, None)
                self._under_way -= len(batch.arrived)  # the rest is thrown away when it comes
                self._changed.notify_all()

    def _check(self, number: int) -> None:
        if self._over is not None:
            raise EngineGone(self._over)
        if number not in self._on_the_way:
            raise EngineGone("the job was closed while a batch was fetched")

    # -- the link's thread

    def arrived(self, message: say.Part | say.NoPart, payload: say.Payload) -> None:
        """Take an answer of the engine. Each question gets exactly one, and they come in the order of the questions.

        Raises:
            BadMessage: it answers another question than the next one, or has another length. Nothing of it is kept.
        """
        missing = isinstance(message, say.NoPart)
        with self._changed:
            number, offset, length = self._asked[0] if self._asked else (-1, 0, 0)
            if (message.number, message.offset) != (number, offset) or not (missing or len(payload) == length):
                wanted = f"{length} bytes from {offset} of fetch {number}" if self._asked else "nothing"
                raise BadMessage(
                    f"{len(payload)} bytes from {message.offset} of fetch {message.number} came where {wanted} were next."
                )
            self._asked.popleft()
            batch = self._on_the_way.get(number)
            if batch is None:
                self._under_way -= 1  # nobody wants it any more
            else:
                batch.arrived.append(message.reason if isinstance(message, say.NoPart) else payload)
            self._changed.notify_all()

    def drop(self, job: str) -> None:
        """Note that a job was closed: threads that fetch a batch of it get EngineGone."""
        with self._changed:
            for number in [number for number, batch in self._on_the_way.items() if batch.job == job]:
                batch = self._on_the_way.pop(number)
                self._under_way -= len(batch.arrived)
                batch.arrived.clear()
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """Note that the engine is lost: all threads that fetch get EngineGone."""
        with self._changed:
            self._over = reason
            self._changed.notify_all()
