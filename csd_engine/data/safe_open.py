"""Opens a file that must be a regular file and must really lie below given directories."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, Optional, Sequence

from csd_engine.errors import RootNotAllowed

__all__ = ["OpenFile", "open_file"]


class OpenFile(NamedTuple):
    """A sample in a file opened for reading. The caller that gets it closes the descriptor.

    Attributes:
        path: of the file.
        descriptor: of the file; its position means nothing.
        size: of the sample, bytes. A sample that is no part of a file has the size of the file when it was opened.
        offset: where the sample begins in the file, bytes.
        upright: the image is turned by its EXIF orientation.
    """

    path: str
    descriptor: int
    size: int
    offset: int = 0
    upright: bool = False


def open_file(path: str, beneath: Optional[Sequence[str]]) -> OpenFile:
    """Open a regular file for reading; with `beneath`, only if it really lies below one of these real directories.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
        RootNotAllowed: a link leads out of `beneath`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block us
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            raise OSError(0, "not a regular file")
        if beneath is not None:
            try:  # of the file that was opened: the path may lead to another file a moment later
                real = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:
                real = os.path.realpath(path)
            if not any(real.startswith(root.rstrip("/") + "/") for root in beneath):
                raise RootNotAllowed(f"a link leads to {real}, outside the roots {', '.join(beneath)}")
    except BaseException:
        os.close(descriptor)
        raise
    return OpenFile(path, descriptor, status.st_size)
