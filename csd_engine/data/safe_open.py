"""Opening a file that must be a regular one and must really lie below given directories."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, Optional, Sequence

from csd_engine.errors import RootNotAllowed

__all__ = ["OpenFile", "open_file", "open_regular"]


class OpenFile(NamedTuple):
    """A sample in a file opened for reading. Whoever takes it closes the descriptor.

    Attributes:
        path: of the file.
        descriptor: of the file; its position means nothing.
        size: of the sample, bytes: that of the file as it was opened, unless the sample is a part of it.
        offset: where in the file the sample begins, bytes.
    """

    path: str
    descriptor: int
    size: int
    offset: int = 0


def open_regular(path: str, beneath: Optional[Sequence[str]]) -> int:
    """`open_file`'s descriptor."""
    return open_file(path, beneath).descriptor


def open_file(path: str, beneath: Optional[Sequence[str]]) -> OpenFile:
    """Open a regular file for reading; with `beneath`, only if it really lies below one of these real directories.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
        RootNotAllowed: a link leads out of `beneath`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold us
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        if beneath is not None:
            try:  # what was opened, not what the path says a moment later
                real = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:
                real = os.path.realpath(path)
            if not any(real.startswith(root.rstrip("/") + "/") for root in beneath):
                raise RootNotAllowed(f"a link leads to {real}, outside the roots {', '.join(beneath)}")
    except BaseException:
        os.close(descriptor)
        raise
    return OpenFile(path, descriptor, status.st_size)
