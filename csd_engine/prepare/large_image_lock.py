"""A lock that an engine's workers share: one of them at a time decodes a large image.

A photograph of 12 megapixels takes 49 MB while Pillow decodes it, ten times what an ordinary image takes. A small board has
memory for one of them, but not for one in each worker.
"""

from __future__ import annotations

import fcntl
import os

__all__ = ["LargeImageLock", "large_bytes"]

_LEAST_BYTES = 16 << 20  # below this waiting costs more than it saves
_SHARE = 8  # of the computer's memory, all workers' ordinary images together


def large_bytes(memory_bytes: int, workers: int) -> int:
    """Return from how many decoded bytes on an image counts as large; memory_bytes 0: not known, so from the least on."""
    return max(_LEAST_BYTES, memory_bytes // _SHARE // workers)


class LargeImageLock:
    """One worker's end of the lock.

    Args:
        path: the lock file, made if missing; empty: nobody waits.
        large_bytes: an image that needs so many bytes of memory is large; also an attribute.
    """

    def __init__(self, path: str, large_bytes: int) -> None:
        self.large_bytes = large_bytes
        self._descriptor = -1
        self._held = False
        if path:
            try:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                pass  # a full disk: memory may be short some time, work goes on

    def acquire(self, needed_bytes: int) -> None:
        """Wait for the lock and take it, if an image that needs so many bytes of memory is large."""
        if needed_bytes >= self.large_bytes and self._descriptor >= 0 and not self._held:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # the kernel lets go of it when a worker dies
            self._held = True

    def release(self) -> None:
        """Give the lock back, if this worker has it."""
        if self._held:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._held = False
