"""A lock that an engine's workers share: only one of them at a time decodes a large image, and none an excessive one.

A photograph of 12 megapixels takes 49 MB while Pillow decodes it, ten times as much as an ordinary image. A small board has
memory for one such image, but not for one in each worker. A PNG file of 700 kB may take 1.4 GB.
"""

from __future__ import annotations

import fcntl
import os

from csd_engine.errors import LeftToHost
from csd_engine.machine.sizes import size_text

__all__ = ["LargeImageLock", "large_bytes", "most_bytes"]

_LEAST_BYTES = 16 << 20  # for smaller images waiting costs more than it saves
_MOST_LEAST_BYTES = 192 << 20  # a photograph of 48 megapixels
_MOST_SHARE = 4  # one image may take 1 / 4 of the computer's memory
_SHARE = 8  # all workers' ordinary images together may take 1 / 8 of the computer's memory


def large_bytes(memory_bytes: int, workers: int) -> int:
    """Return the number of decoded bytes from which on an image counts as large. memory_bytes 0 (not known) gives the least."""
    return max(_LEAST_BYTES, memory_bytes // _SHARE // workers)


def most_bytes(memory_bytes: int) -> int:
    """Return the most bytes that decoding one image may take. memory_bytes 0 (not known) gives the least."""
    return max(_MOST_LEAST_BYTES, memory_bytes // _MOST_SHARE)


class LargeImageLock:
    """One worker's end of the lock.

    Args:
        path: the lock file, made if missing; empty: no worker waits.
        large_bytes: an image that needs so many bytes of memory is large; also an attribute.
        most_bytes: an image that needs more is refused.
    """

    def __init__(self, path: str, large_bytes: int, most_bytes: int) -> None:
        self.large_bytes = large_bytes
        self._most_bytes = most_bytes
        self._descriptor = -1
        self._held = False
        if path:
            try:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError:
                pass  # a full disk: work goes on without the lock, and memory may become short

    def acquire(self, needed_bytes: int) -> None:
        """Wait for the lock and take it, if an image that needs so many bytes of memory is large.

        Raises:
            LeftToHost: it needs too many.
        """
        if needed_bytes > self._most_bytes:
            raise LeftToHost(
                f"decoding takes {size_text(needed_bytes)}, the engine allows {size_text(self._most_bytes)} an image: "
                "a quarter of its memory"
            )
        if needed_bytes >= self.large_bytes and self._descriptor >= 0 and not self._held:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # Linux releases it if the worker dies
            self._held = True

    def release(self) -> None:
        """Give the lock back, if this worker has it."""
        if self._held:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._held = False
