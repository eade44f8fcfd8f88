"""An open directory, whose entries are reached through its descriptor.

A path leads elsewhere once somebody swaps a part of it for a link. A descriptor does not. No call here follows a link.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

__all__ = ["Directory", "Entry", "distrusted", "first_above", "trusted_content"]


class Directory:
    """An open directory. `close` it, or drop it.

    Args:
        path: of the directory, which must be no link itself; below `above`, if that is given.
        above: the open directory above.

    Raises:
        OSError: it cannot be opened, or is no directory.
    """

    def __init__(self, path: str, above: Optional[Directory] = None) -> None:
        self.descriptor = -1
        #: for messages, and for other processes
        self.path: str = path if above is None else os.path.join(above.path, path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, dir_fd=None if above is None else above.descriptor)

    def __del__(self, ended: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ended():  # at the interpreter's exit the imports of this module may be gone
            self.close()

    def close(self) -> None:
        """Close the descriptor. It may be called again."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def name(self) -> str:
        """Its own name."""
        return os.path.basename(self.path)

    @property
    def place(self) -> Tuple[int, int]:
        """(device, inode): the same only for the same directory."""
        status = self.status()
        return status.st_dev, status.st_ino

    def status(self, name: Optional[str] = None) -> os.stat_result:
        """Return the status of an entry, or of the directory itself. Raises OSError."""
        return os.fstat(self.descriptor) if name is None else os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def names(self) -> List[str]:
        """Return the names of all entries, sorted. Raises OSError."""
        return sorted(os.listdir(self.descriptor))

    def below(self, name: str) -> Directory:
        """Open a directory in this one. Raises OSError."""
        return Directory(name, self)

    def make(self, name: str, mode: int = 0o755) -> Directory:
        """Make a directory in this one, and open it. Raises OSError."""
        os.mkdir(name, mode, dir_fd=self.descriptor)
        return self.below(name)

    def open(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Open a file in this directory and return its descriptor. Raises OSError."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=self.descriptor)

    def write(self, name: str, text: str) -> None:
        """Make a file with an ASCII text. Raises OSError, also where the name is taken."""
        with open(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="ascii") as stream:
            stream.write(text)

    def rename(self, name: str, to: Entry) -> None:
        """Give an entry another name, here or in another directory. An entry of that name is replaced. Raises OSError."""
        os.replace(name, to.name, src_dir_fd=self.descriptor, dst_dir_fd=to.directory.descriptor)

    def unlink(self, name: str) -> bool:
        """Remove a file or a link, and return whether it was there and could be removed."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except OSError:
            return False
        return True

    def remove(self, directory: Directory) -> None:
        """Remove a directory in this one with its files. If it holds directories, these stay, and so does it."""
        try:
            for name in directory.names():
                directory.unlink(name)
            os.rmdir(directory.name, dir_fd=self.descriptor)
        except OSError:
            pass  # it is gone, or another user's


class Entry(NamedTuple):
    """A name in an open directory, whether or not there is such a file."""

    directory: Directory
    name: str


def distrusted(status: os.stat_result, secret: bool = False) -> str:
    """Return why another user than this process's and root may have written a file or directory; empty if nobody else may.

    What is trusted (keys, cards, operators' files, settings, a cache) is checked by this alone, on hosts and devices.

    Args:
        status: of the open file or directory, so that nobody swaps it after the check.
        secret: nobody else may read it either.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (uid {status.st_uid})"
    if secret and mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"others than its owner may read or write it (mode {mode:o})"
    return f"others than its owner may write to it (mode {mode:o})" if mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def trusted_content(
    name: str, directory: Optional[Directory] = None, secret: bool = False, shielded: bool = False
) -> bytes:
    """Return the bytes of a file that nobody else may have written. Links are followed.

    Args:
        name: its path, or its name in ``directory``.
        secret: as `distrusted`.
        shielded: nobody else may enter its directory, so that its owner alone counts. A umask of 002 lets a group write.

    Raises:
        OSError: it can't be read.
        ValueError: it is no file, or another user may have written it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO could make us wait
    descriptor = os.open(name, flags, dir_fd=None if directory is None else directory.descriptor)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        why = distrusted(status, secret) if stat.S_ISREG(status.st_mode) else "it is no file"
        if why and not (shielded and status.st_uid in (os.geteuid(), 0) and stat.S_ISREG(status.st_mode)):
            raise ValueError(why)
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def first_above(real: str, directories: Sequence[str]) -> Optional[str]:
    """Return the first of these directories in which a path lies, or which it is; None: it lies in none of them.

    Args:
        real: the path, without links.
        directories: any paths; links are followed.
    """
    for directory in directories:
        above = os.path.realpath(directory)
        if os.path.commonpath([real, above]) == above:
            return directory
    return None
