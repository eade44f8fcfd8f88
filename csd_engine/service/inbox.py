"""Messages that have come and are not handled yet, by the key of their client. It touches no socket."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

__all__ = ["Inbox"]

MAX_MESSAGES = 8192  # of one key that wait; a loader has about ten on their way
MAX_BYTES = 32 << 20


class Inbox:
    """The messages that wait: each client's in the order in which they came.

    Args:
        max_messages, max_bytes: of all connections with one key.
    """

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._waiting: Dict[str, Deque[Tuple[bytes, Sequence[Any]]]] = {}
        self._bytes: Dict[str, int] = {}

    @property
    def keys(self) -> List[str]:
        """Those whose messages wait."""
        return list(self._waiting)

    def add(self, key: str, peer: bytes, frames: Sequence[Any]) -> Optional[bytes]:
        """Add a message of a connection.

        Returns:
            None, or a connection of this key to end: more waits than may. What waited of it is dropped.
        """
        self._waiting.setdefault(key, deque()).append((peer, frames))
        self._bytes[key] = self._bytes.get(key, 0) + _size(frames)
        if len(self._waiting[key]) <= self._max_messages and self._bytes[key] <= self._max_bytes:
            return None
        # Few large messages or many small ones: what counts is the part of the limit that a connection's take.
        parts: Dict[bytes, float] = {}
        for one, its_frames in self._waiting[key]:
            parts[one] = parts.get(one, 0.0) + 1 / self._max_messages + _size(its_frames) / self._max_bytes
        most = max(parts, key=parts.__getitem__)
        self.forget(key, most)
        return most

    def take(self, key: str) -> Tuple[bytes, Sequence[Any]]:
        """Take a key's next message."""
        waiting = self._waiting[key]
        peer, frames = waiting.popleft()
        self._bytes[key] -= _size(frames)
        if not waiting:
            del self._waiting[key], self._bytes[key]
        return peer, frames

    def forget(self, key: str, peer: bytes) -> None:
        """Drop what waits of a connection."""
        left = deque(one for one in self._waiting.get(key, ()) if one[0] != peer)
        if left:
            self._waiting[key], self._bytes[key] = left, sum(_size(frames) for _, frames in left)
        else:
            self._waiting.pop(key, None)
            self._bytes.pop(key, None)


def _size(frames: Sequence[Any]) -> int:
    return sum(map(len, frames))
