"""Wakes a thread that waits for sockets, by a pipe. The pipe is written to only while that thread rests."""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["Wakeup"]


class Wakeup:
    """One thread rests, any thread rings.

    The resting thread calls `rest`, looks whether there is work already, waits for `descriptor` to become readable, and then
    calls `awake`. A thread that adds work first and rings afterwards is therefore never overlooked. While the resting thread is
    at work, a ring costs no system call.
    """

    def __init__(self) -> None:
        self.descriptor, self._rope = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._rope, False)
        self._lock = threading.Lock()  # once the pipe is closed, its descriptor's number may be another file's
        self._resting = True

    def ring(self) -> None:
        """Wake the thread, or have it look again. Does nothing after `close`."""
        if not self._resting:
            return
        with self._lock:
            self._resting = False  # one ring is enough
            if self._rope >= 0:
                with contextlib.suppress(BlockingIOError):  # full: it is awake already
                    os.write(self._rope, b"\0")

    def rest(self) -> None:
        """From now on a ring writes to the pipe."""
        self._resting = True

    def awake(self, rung: bool) -> None:
        """Rings cost nothing from now on. ``rung``: `descriptor` was readable."""
        self._resting = False
        if rung:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.descriptor, 4096):
                    pass

    def close(self) -> None:
        """Free the pipe. May be called again."""
        with self._lock:
            if self._rope >= 0:
                os.close(self.descriptor)
                os.close(self._rope)
                self.descriptor = self._rope = -1
