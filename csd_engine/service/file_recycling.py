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
from typing import Deque, NamedTuple

from csd_engine.machine.directory import Directory, Entry
from csd_engine.machine.file_locks import fcntl

__all__ = ["SPARE", "RecycledFiles"]

SPARE = "spare-[0-9]+-[0-9a-f]{8}"  # names of recycled files: a regular expression for Python and for grep -E

_MAX_IN_USE = 6  # a host has three fetched batches, its training one or two


class _RecycledFile(NamedTuple):
    name: str
    bytes: int


class RecycledFiles:
    """Files of removed batches, kept for new batches to overwrite.

    An error with one file loses that file and nothing else.

    Args:
        directory: the directory that holds them, on the batches' file system.
    """

    def __init__(self, directory: Directory) -> None:
        self.bytes = 0
        self._directory = directory
        self._waiting: Deque[_RecycledFile] = deque()
        self._last_number = 0
        self._leases_work = _write_leases_work(directory, self._new_name())

    def __len__(self) -> int:
        return len(self._waiting)

    def _new_name(self) -> str:
        self._last_number += 1
        return f"spare-{self._last_number}-{secrets.token_hex(4)}"

    def put(self, file: Entry, file_bytes: int) -> None:
        """Keep this file. If there is none, nothing happens."""
        name = self._new_name()
        try:
            file.directory.rename(file.name, Entry(self._directory, name))
        except OSError:
            return
        self._waiting.append(_RecycledFile(name, file_bytes))
        self.bytes += file_bytes
        if not self._leases_work and len(self) > _MAX_IN_USE:
            self.drop_first()

    def give(self, file: Entry) -> bool:
        """Give a kept file that no process uses this name, and return whether there is one. Its content is an old batch."""
        while self._waiting and self._leases_work:
            if not _is_unused(self._directory, self._waiting[0].name):
                if len(self) <= _MAX_IN_USE:
                    return False  # the process that uses it will probably drop it soon
                self.drop_first()  # a process keeps using it
                continue
            try:
                self._directory.rename(self._take_first(), file)
            except OSError:
                continue
            return True
        return False

    def drop_first(self) -> None:
        """Remove the oldest file."""
        self._directory.unlink(self._take_first())

    def _take_first(self) -> str:
        file = self._waiting.popleft()
        self.bytes -= file.bytes
        return file.name

    def clear(self) -> None:
        """Remove all files."""
        while self._waiting:
            self.drop_first()


def _is_unused(directory: Directory, name: str) -> bool:
    """Return whether no process has the file open or mapped. False also if the system does not tell."""
    try:
        descriptor = directory.open(name, os.O_RDWR)
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


def _write_leases_work(directory: Directory, name: str) -> bool:
    """Test with a file of this name that a lease is refused while the file is mapped but not open, and granted afterwards."""
    try:
        with open(directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0) as file:
            file.write(bytes(mmap.PAGESIZE))
        descriptor = directory.open(name, os.O_RDONLY)
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
        refused = not _is_unused(directory, name)
        libc.munmap(mapped, mmap.PAGESIZE)
        return refused and _is_unused(directory, name)
    except (OSError, AttributeError):
        return False
    finally:
        directory.unlink(name)
