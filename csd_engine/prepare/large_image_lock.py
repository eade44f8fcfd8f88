"""Large images one at a time: workers that would decode several at once together go through here singly.

A photograph of 12 megapixels takes 49 MB while Pillow decodes it, ten times an ordinary image's. Each worker of a small board
may need that now and then, but not all of them at the same moment.
"""

from __future__ import annotations

import fcntl
import os

__all__ = ["Turnstile", "large_bytes"]

_LEAST_BYTES = 16 << 20  # below this waiting costs more than it saves
_SHARE = 8  # of the computer's memory, all workers' ordinary images together


def large_bytes(memory_bytes: int, workers: int) -> int:
    """Return from how many decoded bytes on an image counts as large; memory_bytes 0: not known, so from the least on."""
    return max(_LEAST_BYTES, memory_bytes // _SHARE // workers)


class Turnstile:
    """One worker's way in.

    Args:
        path: a lock file that all workers of an engine share, made if missing; empty: no waiting.
        large_bytes: who needs that many waits; also an attribute.
    """

    def __init__(self, path: str, large_bytes: int) -> None:
        self.large_bytes = large_bytes
        self._descriptor = -1
        self._inside = False
        if path:
            try:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                pass  # a full disk: memory may be short some time, work goes on

    def enter(self, needed_bytes: int) -> None:
        """Wait until no other worker decodes a large image, if one that takes so much memory is large."""
        if needed_bytes >= self.large_bytes and self._descriptor >= 0 and not self._inside:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # the kernel lets go of it when a worker dies
            self._inside = True

    def leave(self) -> None:
        """Let the next one in; nothing to do if this one did not enter."""
        if self._inside:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._inside = False
