"""A file that is filled under another name, and gets its own once it is complete: never over a file that is there."""

from __future__ import annotations

import errno
import os
from typing import Any

from csd_engine.machine.directory import Directory

__all__ = ["PART_SUFFIX", "is_there", "publish_name", "pwrite"]

PART_SUFFIX = ".part"

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def pwrite(descriptor: int, data: Any, offset: int) -> None:
    """Write all bytes of a contiguous buffer at this offset. Raises OSError."""
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def is_there(directory: Directory, name: str) -> bool:
    """Return whether the directory has an entry of this name. Raises OSError."""
    try:
        directory.status(name)
    except FileNotFoundError:
        return False
    return True


def publish_name(directory: Directory, part: str, final: str) -> None:
    """Give the finished file its name in the directory, never over an existing one (FileExistsError)."""
    at = directory.descriptor
    try:
        os.link(part, final, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
        os.unlink(part, dir_fd=at)
        return
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    # No hard links here (FAT, some network file systems): the writer that creates the claim file may rename.
    claim = final + ".claim"
    os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at))
    try:
        if is_there(directory, final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final)
        os.rename(part, final, src_dir_fd=at, dst_dir_fd=at)
    finally:
        os.unlink(claim, dir_fd=at)
