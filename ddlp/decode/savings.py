"""How many images all processes of a script have decoded late, and what that saved: an estimate from a sample of them.

Processes append records to one file: small writes do not mix in a file that is opened for appending. So a worker that is killed
takes with it what it has counted since its last record at most.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import struct
import threading
from dataclasses import astuple, dataclass
from multiprocessing import util

__all__ = ["COUNTING", "Counter", "Savings", "count_in", "total"]

_RECORD = struct.Struct("=qqdd")
_EVERY = 64  # images between two records of a process
_SAMPLE = 200  # one of so many images of a process is made both ways


@dataclass
class Savings:
    """Images that were decoded late, how many of them were made both ways, and the processor seconds of both ways."""

    images: int = 0
    measured: int = 0
    late_s: float = 0.0
    pillows_s: float = 0.0

    @property
    def saved_s(self) -> float:
        """What was saved, in processor seconds, if the other images are like the measured ones."""
        return (self.pillows_s - self.late_s) / self.measured * self.images if self.measured else 0.0

    def plus(self, other: Savings) -> Savings:
        """Return both together."""
        return Savings(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))


class Counter:
    """Counts the images of this process and of its forks. Any thread may use it.

    Args:
        path: the file for the records of all processes.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = 0  # that has counted an image
        self._lock, self._counted, self._ordinal = threading.Lock(), Savings(), 0

    def image(self) -> bool:
        """Count an image. True: it is one of those that are to be made both ways, for `took`."""
        if self._pid != os.getpid():  # in a fork, whose parent's threads may have held the lock
            self._pid, self._lock, self._counted, self._ordinal = os.getpid(), threading.Lock(), Savings(), 0
            util.Finalize(None, self.write, exitpriority=0)  # at a worker's end
            atexit.register(self.write)
        with self._lock:
            self._ordinal += 1
            both = self._ordinal % _SAMPLE == 2  # not the first image, which loads what all of them need
            self._counted = self._counted.plus(Savings(1, int(both)))
            full = self._counted.images >= _EVERY
        if full:
            self.write()
        return both

    def took(self, late_s: float, pillows_s: float) -> None:
        """Note the processor seconds of both ways, for an image that is made both ways or for a part of its work."""
        with self._lock:
            self._counted = self._counted.plus(Savings(0, 0, late_s, pillows_s))

    def write(self) -> None:
        """Append what was counted since the last record."""
        if self._pid != os.getpid():
            return
        with self._lock:
            counted, self._counted = self._counted, Savings()
        if counted != Savings():
            with contextlib.suppress(OSError), open(self._path, "ab", buffering=0) as file:  # the script's process has ended
                file.write(_RECORD.pack(*astuple(counted)))

    def total(self) -> Savings:
        """Return what all processes have counted."""
        self.write()
        try:
            with open(self._path, "rb") as file:
                content = file.read()
        except OSError:
            return Savings()
        whole = Savings()
        for record in _RECORD.iter_unpack(content[: len(content) // _RECORD.size * _RECORD.size]):
            whole = whole.plus(Savings(*record))
        return whole


class _Counting:
    counter: Counter | None = None


COUNTING = _Counting()  # of this process


def count_in(path: str) -> None:
    """Count the images of this process and of its forks in this file, to which other processes may write too."""
    COUNTING.counter = Counter(path)


def total() -> Savings:
    """Return what all processes have counted; nothing if this one does not count."""
    return Savings() if COUNTING.counter is None else COUNTING.counter.total()
