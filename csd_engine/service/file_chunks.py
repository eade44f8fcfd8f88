"""Sends batch files, in parts, to hosts that do not see the spool.

The engine reads a part when a host asks for it, and keeps nothing between two parts. A host asks for a few parts at once, and
for another one when a part has come. So a slow host limits the bytes that wait in its connection. Its requests wait here,
and so do those of a host that asks on without reading.
A host, which is a key, gets one part a turn, over any of its connections.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Callable, Deque, Dict, Iterator, Optional, Set, Tuple

from csd_engine.machine.directory import Entry
from csd_engine.protocol.codec import Fetch, Message, NoPart, Part, shorten

__all__ = ["FileChunks", "part_of"]

_MAX_ASKED = 64  # waiting requests of one host; ddlp sends a few
_UNREAD_BYTES = 16 << 20  # a connection that has read less of what it was sent gets no further part; ddlp asks for 8 MiB
_UNREAD_BYTES_OF_HOST = 48 << 20  # the same for all connections of a host
_READAHEAD_BYTES = 8 << 20  # the kernel may read these bytes before the host asks for them


class FileChunks:
    """The hosts' requests for parts of batch files.

    Args:
        find: returns a published batch's file and its size in bytes, or None if the host has no such batch.
        send: sends a message with its payload to a host.
        unread: returns the bytes that a connection has not read of what it was sent.
        key_of: returns the key of a connection's host.
    """

    def __init__(
        self,
        find: Callable[[bytes, str, int], Optional[Tuple[Entry, int]]],
        send: Callable[[bytes, Message, Optional[bytes]], None],
        unread: Callable[[bytes], int] = lambda peer: 0,
        key_of: Callable[[bytes], str] = lambda peer: "",
    ) -> None:
        self._find = find
        self._send = send
        self._unread = unread
        self._key_of = key_of
        self._asked: Dict[str, Dict[bytes, Deque[Fetch]]] = {}  # by key and connection, those of a key in the order of turns
        self._sent: Dict[str, Set[bytes]] = {}  # by key: connections that may not have read all parts

    @property
    def waiting(self) -> bool:
        """Whether a host waits for a part."""
        return bool(self._asked)

    def ask(self, peer: bytes, message: Fetch, _: bytes) -> None:
        """Queue a request."""
        asked = self._asked.setdefault(self._key_of(peer), {}).setdefault(peer, deque())
        if len(asked) < _MAX_ASKED:
            asked.append(message)
        else:
            reason = f"more than {_MAX_ASKED} parts were asked for at once"
            self._send(peer, NoPart(message.number, message.offset, reason), None)

    def forget(self, peer: bytes) -> None:
        """Drop the requests of a connection that is gone."""
        for key, connections in list(self._asked.items()):
            if connections.pop(peer, None) is not None and not connections:
                del self._asked[key]
        for sent in self._sent.values():
            sent.discard(peer)

    def ready(self) -> Set[str]:
        """Return the keys that wait for a part, and read what they are sent."""
        return {key for key in self._asked if self._next(key) is not None}

    def _next(self, key: str) -> Optional[bytes]:
        """Return which connection of a key is the next to get a part; None: they do not read."""
        unread = {peer: self._unread(peer) for peer in self._sent.get(key, ())}
        self._sent[key] = {peer for peer, size in unread.items() if size}
        if sum(unread.values()) > _UNREAD_BYTES_OF_HOST:
            return None
        return next((peer for peer in self._asked[key] if unread.get(peer, 0) <= _UNREAD_BYTES), None)

    def serve(self, key: str) -> bool:
        """Answer the next request of a key. Return whether there was one whose connection reads its answers."""
        peer = self._next(key) if key in self._asked else None
        if peer is None:
            return False
        connections = self._asked[key]
        asked = connections.pop(peer)
        message = asked.popleft()
        if asked:
            connections[peer] = asked  # the end of its turn
        elif not connections:
            del self._asked[key]
        about = (message.number, message.offset)
        try:
            part = self._read(peer, message)
        except OSError as error:
            self._send(peer, NoPart(*about, shorten(error.strerror or str(error))), None)
        else:
            self._send(peer, Part(*about), part)
            self._sent.setdefault(key, set()).add(peer)
        return True

    def _read(self, peer: bytes, message: Fetch) -> bytes:
        published = self._find(peer, message.job, message.lease)
        with part_of(published, message.lease, message.offset, message.length) as descriptor:
            part = os.pread(descriptor, message.length, message.offset)
        if len(part) != message.length:
            raise OSError(0, f"only {len(part)} bytes can be read at {message.offset}")
        return part


@contextlib.contextmanager
def part_of(published: Optional[Tuple[Entry, int]], lease: int, offset: int, length: int) -> Iterator[int]:
    """Open the batch file of a lease (its size beside it; None: there is none) to read this part. What follows is read ahead.

    Raises:
        OSError: there is no such part.
    """
    if published is None:
        raise OSError(0, f"there is no published batch of lease {lease}")
    file, size = published
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
