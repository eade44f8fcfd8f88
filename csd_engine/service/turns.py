"""Messages that have come and wait, and whose turn it is on the engine's only thread. Pure: times come in from outside.

Turns go by key, that of a client's CURVE pair, however many connections have it. Each turn costs its key the time that it has
taken, and the key that has used least is the next one. What a key did not want is not made up for later: this is start-time
fair queueing (Goyal, Vin and Cheng, 1996).

A turn can't be broken off. While a long one lasts, nobody is answered and workers that have finished stand idle. So a key
rests after it, three times as long for each of the others that were served lately.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

__all__ = ["LONG_S", "Inbox", "Turns"]

MAX_MESSAGES = 8192  # of one key that wait; a loader has about ten on their way
MAX_BYTES = 32 << 20

LONG_S = 0.005  # of a turn, at most; a message of usual size takes a tenth of a millisecond, a part of a batch half a one
_LATELY_S = 1.0
_RESTS = 3
_MOST_REST_S = 2.0  # a host that hears nothing for 5 s takes the engine for lost


class Turns:
    """The keys, and the time that each has used. `now` is the time of any monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._used_s: Dict[str, float] = {}  # the time in which a key wanted nothing counts as used
        self._served_s = 0.0  # that every key that wants something has used at least
        self._last_s: Dict[str, float] = {}  # when each last had a turn
        self._rests_until: Dict[str, float] = {}

    def next(self, waiting: Iterable[str]) -> Optional[str]:
        """Return whose turn it is of those that wait; None: nobody waits."""
        key = min(waiting, key=self._used, default=None)
        if key is not None:
            self._served_s = self._used(key)
        return key

    def _used(self, key: str) -> float:
        return max(self._served_s, self._used_s.get(key, 0.0))

    def ended(self, key: str, spent_s: float, now: float) -> None:
        """Charge a turn that has ended now."""
        self._used_s[key] = self._used(key) + spent_s
        self._last_s[key] = now

    def rest(self, key: str, spent_s: float, now: float) -> None:
        """Let a key rest, if a message of it has taken long."""
        if spent_s > LONG_S:
            self._last_s[key] = now
            self._last_s = {other: last_s for other, last_s in self._last_s.items() if now - last_s <= _LATELY_S}
            self._rests_until[key] = now + min(_MOST_REST_S, _RESTS * spent_s * (len(self._last_s) - 1))

    def rest_s(self, key: str, now: float) -> float:
        """Return how long a key still rests; 0: it does not."""
        return max(0.0, self._rests_until.get(key, 0.0) - now)


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
        for sender, its_frames in self._waiting[key]:
            parts[sender] = parts.get(sender, 0.0) + 1 / self._max_messages + _size(its_frames) / self._max_bytes
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
        left = deque(message for message in self._waiting.get(key, ()) if message[0] != peer)
        if left:
            self._waiting[key], self._bytes[key] = left, sum(_size(frames) for _, frames in left)
        else:
            self._waiting.pop(key, None)
            self._bytes.pop(key, None)


def _size(frames: Sequence[Any]) -> int:
    return sum(map(len, frames))
