"""Batch files over an engine's socket: a few parts asked for ahead, given in order to whoever receives the batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from csd_engine.errors import DamagedBatch, EngineGone
from csd_engine.protocol import codec as say

__all__ = ["PartStream"]

WINDOW = 8  # parts of 1 MiB asked for and not yet used, over all batches on the way: bounds both sides' memory
SILENT_S = 30.0  # an engine that is lost is noticed by its heartbeat long before


class _OnTheWay:
    """A batch that is being fetched."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.arrived: deque[tuple[int, say.Payload | str]] = deque()  # (offset, bytes or why there are none)


class PartStream:
    """What is fetched over one link. Any thread may fetch; the link's thread brings what arrives.

    Args:
        submit: sends a message's frames; never blocks.
    """

    def __init__(self, submit: Callable[[list[say.Payload]], None]) -> None:
        self._submit = submit
        self._changed = threading.Condition()
        self._on_the_way: dict[int, _OnTheWay] = {}  # by the fetch's number
        self._fetches = 0
        self._under_way = 0  # parts asked for and not yet used, nor thrown away
        self._over: str | None = None

    def fetch(self, job: str, lease: int, size: int) -> Iterator[say.Payload]:
        """Give the bytes of a published batch file in order, in parts.

        Close the iterator, or use it up: it holds a part of the window.

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
                            self._submit(say.encode(say.Fetch(number, job, lease, asked, length)))
                            asked += length
                        if batch.arrived:
                            break
                        if not self._changed.wait(SILENT_S):
                            raise DamagedBatch(f"the engine sent nothing of it for {SILENT_S:g} s")
                    offset, part = batch.arrived.popleft()
                    self._under_way -= 1
                    self._changed.notify_all()
                if isinstance(part, str):
                    raise DamagedBatch(f"the engine can't send it: {part}")
                if offset != used or used + len(part) > size:
                    raise DamagedBatch(f"{len(part)} bytes from {offset} came where {used} of {size} were next")
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
        """Take an answer of the engine: exactly one comes to each question, in their order."""
        with self._changed:
            batch = self._on_the_way.get(message.number)
            if batch is None:
                self._under_way -= 1  # nobody wants it any more
            else:
                batch.arrived.append((message.offset, message.reason if isinstance(message, say.NoPart) else payload))
            self._changed.notify_all()

    def drop(self, job: str) -> None:
        """A job was closed: who fetches a batch of it gets EngineGone."""
        with self._changed:
            for number in [number for number, batch in self._on_the_way.items() if batch.job == job]:
                batch = self._on_the_way.pop(number)
                self._under_way -= len(batch.arrived)
                batch.arrived.clear()
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """The engine is lost: all who fetch get EngineGone."""
        with self._changed:
            self._over = reason
            self._changed.notify_all()
