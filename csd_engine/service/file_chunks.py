"""Sends batch files, in parts, to hosts that do not see the spool.

The engine reads a part when a host asks for it, and keeps nothing between two parts. A host asks for a few parts at once, and
for another one when a part has come. So a slow host limits the bytes that wait in its connection. Its requests wait here,
and so do those of a host that asks on without reading.
Each host gets one part a turn; between turns, the engine serves its other hosts and its workers.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Callable, Deque, Dict, Iterator, Optional, Tuple

from csd_engine.directory import Entry
from csd_engine.protocol.codec import Fetch, Message, NoPart, Part, shorten

__all__ = ["FileChunks", "part_of"]

_MAX_ASKED = 64  # waiting requests of one host; ddlp sends a few
_UNREAD_BYTES = 16 << 20  # a host that has read less of what it was sent gets no further part; ddlp asks for 8 MiB
_READAHEAD_BYTES = 8 << 20  # the kernel may read these bytes before the host asks for them


class FileChunks:
    """The hosts' requests for parts of batch files.

    Args:
        find: returns a published batch's file and its size in bytes, or None if the host has no such batch.
        send: sends a message with its payload to a host.
        unread: returns the bytes that a host has not read of what it was sent.
    """

    def __init__(
        self,
        find: Callable[[bytes, str, int], Optional[Tuple[Entry, int]]],
        send: Callable[[bytes, Message, Optional[bytes]], None],
        unread: Callable[[bytes], int] = lambda peer: 0,
    ) -> None:
        self._find = find
        self._send = send
        self._unread = unread
        self._asked: Dict[bytes, Deque[Fetch]] = {}
        self.held_back = False  # no host was sent a part in the last turn: none of them reads

    @property
    def waiting(self) -> bool:
        """Whether a host waits for a part."""
        return bool(self._asked)

    def ask(self, peer: bytes, message: Fetch, _: bytes) -> None:
        """Queue a request."""
        asked = self._asked.setdefault(peer, deque())
        if len(asked) < _MAX_ASKED:
            asked.append(message)
        else:
            reason = f"more than {_MAX_ASKED} parts were asked for at once"
            self._send(peer, NoPart(message.number, message.offset, reason), None)

    def forget(self, peer: bytes) -> None:
        """Drop the requests of a host that is gone."""
        self._asked.pop(peer, None)

    def serve(self) -> None:
        """Answer the first request of each host that reads its answers."""
        self.held_back = True
        for peer in list(self._asked):
            if self._unread(peer) > _UNREAD_BYTES:
                continue
            self.held_back = False
            asked = self._asked[peer]
            message = asked.popleft()
            if not asked:
                del self._asked[peer]
            about = (message.number, message.offset)
            try:
                part = self._read(peer, message)
            except OSError as error:
                self._send(peer, NoPart(*about, shorten(error.strerror or str(error))), None)
            else:
                self._send(peer, Part(*about), part)

    def _read(self, peer: bytes, message: Fetch) -> bytes:
        found = self._find(peer, message.job, message.lease)
        with part_of(found, message.lease, message.offset, message.length) as descriptor:
            part = os.pread(descriptor, message.length, message.offset)
        if len(part) != message.length:
            raise OSError(0, f"only {len(part)} bytes can be read at {message.offset}")
        return part


@contextlib.contextmanager
def part_of(found: Optional[Tuple[Entry, int]], lease: int, offset: int, length: int) -> Iterator[int]:
    """Open the batch file of a lease (its size beside it; None: there is none) to read this part. What follows is read ahead.

    Raises:
        OSError: there is no such part.
    """
    if found is None:
        raise OSError(0, f"there is no published batch of lease {lease}")
    file, size = found
    descriptor = file.directory.open(file.name, os.O_RDONLY)
    try:
        found_size, end = os.fstat(descriptor).st_size, offset + length
        if found_size != size or end > size:
            raise OSError(0, f"its file has {found_size} bytes instead of {size}; the host asked for bytes up to {end}")
        yield descriptor
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, end, _READAHEAD_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
