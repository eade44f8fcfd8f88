"""New batches overwrite the files of removed batches.

The system has to allocate a new file's memory and blocks, and to free those of a removed file. That is a twentieth of an
engine's work if memory is free, and a third on a virtual machine that gives idle memory back. Databases recycle their log
files for the same reason.

A host may still use a removed batch: the training loop keeps the tensor that maps it, or a forked process does. The kernel
knows: it grants a write lease (fcntl, F_SETLEASE) only on a file that no other process has open or mapped. Some file systems
do not support this (an overlay opens one file and maps another); a test at the start finds out. On these, no file is
overwritten, but removed files are kept until hosts have probably dropped them: the last one to drop a file spends the time to
free its pages.
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

SPARE = "spare-[0-9]+-[0-9a-f]{8}"  # names of recycled files: a regular expression for Python and for grep -E

_MAX_IN_USE = 6  # a host has three fetched batches, its training one or two


class _RecycledFile(NamedTuple):
    path: str
    bytes: int


class RecycledFiles:
    """Files of removed batches, kept for new batches to overwrite.

    An error with one file loses that file and nothing else.

    Args:
        directory: the directory that holds them, on the batches' file system.
    """

    def __init__(self, directory: Path) -> None:
        self.bytes = 0
        self._directory = directory
        self._waiting: Deque[_RecycledFile] = deque()
        self._made = 0
        self._leases_work = _write_leases_work(self._new_name())

    def __len__(self) -> int:
        return len(self._waiting)

    def _new_name(self) -> str:
        self._made += 1
        return os.fspath(self._directory / f"spare-{self._made}-{secrets.token_hex(4)}")

    def put(self, path: str, file_bytes: int) -> None:
        """Keep the file at this path. If there is none, nothing happens."""
        file = _RecycledFile(self._new_name(), file_bytes)
        try:
            os.rename(path, file.path)
        except OSError:
            return
        self._waiting.append(file)
        self.bytes += file_bytes
        if not self._leases_work and len(self) > _MAX_IN_USE:
            self.drop_first()

    def give(self, path: str) -> bool:
        """Move a kept file that no process uses to this path, and return whether there is one. Its content is an old batch."""
        while self._waiting and self._leases_work:
            if not _is_unused(self._waiting[0].path):
                if len(self) <= _MAX_IN_USE:
                    return False  # the process that uses it will probably drop it soon
                self.drop_first()  # a process keeps using it
                continue
            try:
                os.rename(self._take_first(), path)
            except OSError:
                continue
            return True
        return False

    def drop_first(self) -> None:
        """Remove the oldest file."""
        _unlink(self._take_first())

    def _take_first(self) -> str:
        file = self._waiting.popleft()
        self.bytes -= file.bytes
        return file.path

    def clear(self) -> None:
        """Remove all files."""
        while self._waiting:
            self.drop_first()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _is_unused(path: str) -> bool:
    """Return whether no process has the file open or mapped. False also if the system does not tell."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # If a process opens the file during the lease, the kernel sends a signal here: SIGIO would end this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):  # AttributeError: not Linux
        return False
    finally:
        os.close(descriptor)
    return True


def _write_leases_work(path: str) -> bool:
    """Test with a file at `path` that a lease is refused while the file is mapped but not open, and granted afterwards."""
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
