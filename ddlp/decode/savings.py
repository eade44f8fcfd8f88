"""How many images all processes of a script have decoded late, and what that saved: an estimate from a sample of them.

Each process has a record in one file. It writes it anew for each image, as a worker may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from dataclasses import dataclass

__all__ = ["COUNTING", "Counter", "Savings", "count_in", "total"]

_RECORD = struct.Struct("=qqdd")
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

    def __str__(self) -> str:
        """The line for the user."""
        line = f"{self.images:,} JPEGs were decoded late"
        if not self.measured:
            return line
        saved = f"some {self.saved_s:,.3g} s of" if self.saved_s > 0 else "no"
        return f"{line}; that saved {saved} processor time (an estimate, measured on {self.measured:,} of them)"

    def add(self, images: int, measured: int, late_s: float, pillows_s: float) -> None:
        """Add to all four."""
        self.images += images
        self.measured += measured
        self.late_s += late_s
        self.pillows_s += pillows_s

    def packed(self) -> bytes:
        """Return the record of it. `dataclasses.astuple` would take five times as long."""
        return _RECORD.pack(self.images, self.measured, self.late_s, self.pillows_s)


class Counter:
    """Counts the images of this process and of its forks. Any thread may use it.

    Args:
        path: the file for the records of all processes.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = 0  # that has a record
        self._lock, self._counted = threading.Lock(), Savings()
        self._file, self._place = -1, 0

    def image(self) -> bool:
        """Count an image. True: it is one of those that are to be made both ways, for `took`."""
        if self._pid != os.getpid():
            self._begin()
        # Not the first image of a process, which loads what all of them need.
        both = (self._counted.images + 1) % _SAMPLE == 2
        self._add(1, int(both), 0.0, 0.0)
        return both

    def took(self, late_s: float, pillows_s: float) -> None:
        """Note the processor seconds of both ways, for an image that is made both ways or for a part of its work."""
        self._add(0, 0, late_s, pillows_s)

    def _begin(self) -> None:
        """Append a record for this process. It may be a fork, whose parent's threads may have held the lock."""
        self._pid, self._lock, self._counted = os.getpid(), threading.Lock(), Savings()
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(file, self._counted.packed())
                self._place = os.lseek(file, 0, os.SEEK_CUR) - _RECORD.size
            finally:
                os.close(file)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # the script's process has ended, and its file with it
            self._file = -1

    def _add(self, images: int, measured: int, late_s: float, pillows_s: float) -> None:
        with self._lock:
            self._counted.add(images, measured, late_s, pillows_s)
            if self._file >= 0:
                os.pwrite(self._file, self._counted.packed(), self._place)


class _Counting:
    counter: Counter | None = None


COUNTING = _Counting()  # of this process


def count_in(path: str) -> None:
    """Count the images of this process and of its forks in this file, to which other processes may write too."""
    COUNTING.counter = Counter(path)


def total(path: str) -> Savings:
    """Return what all processes have counted in this file; nothing if it is not there any more."""
    whole = Savings()
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for record in _RECORD.iter_unpack(file.read()):
            whole.add(*record)
    return whole
