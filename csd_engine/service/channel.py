"""JSON lines over pipes: how the engine's service and its worker processes talk."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Dict, List, Optional

__all__ = ["LineBuffer", "WorkerChannel"]

_READ_BYTES = 1 << 16


class LineBuffer:
    """Collects bytes and hands out complete lines as parsed JSON objects."""

    def __init__(self) -> None:
        self._rest: List[bytes] = []

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """Add bytes; return the objects that are complete now."""
        if b"\n" not in data:
            self._rest.append(data)
            return []
        lines = (b"".join(self._rest) + data).split(b"\n")
        self._rest = [lines.pop()]
        return [json.loads(line) for line in lines if line]


class WorkerChannel:
    """The worker's end: reads commands from one descriptor, writes reports to the other."""

    def __init__(self, read_descriptor: int, write_descriptor: int) -> None:
        self._read = read_descriptor
        self._write = write_descriptor
        self._buffer = LineBuffer()
        self._poller = select.poll()
        self._poller.register(read_descriptor, select.POLLIN)

    def receive(self, timeout_s: Optional[float]) -> List[Dict[str, Any]]:
        """Return the commands that have come, waiting at most `timeout_s` for the first (None: for ever).

        Raises:
            EOFError: the service is gone.
        """
        if not self._poller.poll(None if timeout_s is None else timeout_s * 1000):
            return []
        data = os.read(self._read, _READ_BYTES)
        if not data:
            raise EOFError
        return self._buffer.feed(data)

    def send(self, say: str, **fields: Any) -> None:
        """Report to the service; EOFError when it is gone."""
        line = memoryview((json.dumps({"say": say, **fields}, separators=(",", ":")) + "\n").encode("ascii"))
        try:
            while len(line):
                line = line[os.write(self._write, line) :]
        except BrokenPipeError:
            raise EOFError from None
