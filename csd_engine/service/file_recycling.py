"""Files of removed batches that are written over by new ones, instead of new files.

A new file's memory and blocks have to be found, and a removed one's given back: a twentieth of an engine's work where memory
is at hand, a third on a virtual machine whose memory goes back while it is idle. Databases recycle their logs' files for that.

But a host may still have a removed batch: mapped, as the tensor that the training loop keeps, or in a process forked from it.
The kernel knows, and is asked: it gives a write lease (fcntl, F_SETLEASE) only on a file that nobody else has open or mapped,
in whatever process. Not every file system can be asked so (an overlay opens one file and maps another): there, as a trial at
the beginning shows, removed files are kept until hosts will have dropped them: who drops a file last has its pages to free.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import signal
from collections import deque
from pathlib import Path
from typing import Deque, NamedTuple

from csd_engine.machine.file_locks import fcntl

__all__ = ["SPARE", "RecycledFiles"]

SPARE = "spare-[0-9]+-[0-9a-f]{8}"  # their names: a regular expression for Python and for grep -E

_MOST_IN_USE = 6  # a host has three fetched batches, its training one or two


class _RecycledFile(NamedTuple):
    path: str
    bytes: int


class RecycledFiles:
    """Removed batches' files, kept to be written over.

    Args:
        directory: where they are kept; on the file system that they are on.

    An error with one of them loses that file and nothing else.
    """

    def __init__(self, directory: Path) -> None:
        self.bytes = 0
        self._directory = directory
        self._waiting: Deque[_RecycledFile] = deque()
        self._made = 0
        self._can_ask = _kernel_tells(self._new_name())

    def __len__(self) -> int:
        return len(self._waiting)

    def _new_name(self) -> str:
        self._made += 1
        return os.fspath(self._directory / f"spare-{self._made}-{secrets.token_hex(4)}")

    def put(self, path: str, file_bytes: int) -> None:
        """Take this file out of its place; where there is none, nothing happens."""
        file = _RecycledFile(self._new_name(), file_bytes)
        try:
            os.rename(path, file.path)
        except OSError:
            return
        self._waiting.append(file)
        self.bytes += file_bytes
        if not self._can_ask and len(self) > _MOST_IN_USE:
            self.drop_first()

    def give(self, path: str) -> bool:
        """Put a file that nobody else has under this name, if there is one; its content and size are an earlier batch's."""
        while self._waiting and self._can_ask:
            if not _is_unused(self._waiting[0].path):
                if len(self) <= _MOST_IN_USE:
                    return False  # who has it will soon have dropped it
                self.drop_first()  # kept
                continue
            try:
                os.rename(self._take_first(), path)
            except OSError:
                continue
            return True
        return False

    def drop_first(self) -> None:
        """Remove the one that was removed first."""
        _unlink(self._take_first())

    def _take_first(self) -> str:
        file = self._waiting.popleft()
        self.bytes -= file.bytes
        return file.path

    def clear(self) -> None:
        """Remove all."""
        while self._waiting:
            self.drop_first()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _is_unused(path: str) -> bool:
    """Whether no process has the file open or mapped; False also where that can't be told."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Who opens the file while the lease is held would have this process told by SIGIO, which ends it; SIGURG is ignored.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):  # AttributeError: not Linux
        return False
    finally:
        os.close(descriptor)
    return True


def _kernel_tells(path: str) -> bool:
    """Try it with a file at `path`: no lease while it is mapped, though it is open nowhere, and one afterwards."""
    try:
        with open(path, "xb", buffering=0) as file:
            file.write(bytes(mmap.PAGESIZE))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        try:
            libc = ctypes.CDLL(None)  # Python's own mapping keeps the file open
            libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            mapped = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        finally:
            os.close(descriptor)
        if mapped == ctypes.c_void_p(-1).value:
            return False
        told = not _is_unused(path)
        libc.munmap(mapped, mmap.PAGESIZE)
        return told and _is_unused(path)
    except (OSError, AttributeError):
        return False
    finally:
        _unlink(path)
