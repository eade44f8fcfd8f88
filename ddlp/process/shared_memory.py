"""Memory that processes of this computer share: files in memory without a name (memfd).

They are gone with the last process that has them, and need no room in ``/dev/shm``, where torch makes its shared tensors.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

__all__ = ["received", "share"]


def share(size: int) -> tuple[mmap.mmap, int]:
    """Return new memory of ``size`` bytes, all 0, and its descriptor. The caller closes the descriptor.

    ``DupFd(descriptor)`` is what another process gets, in a message; `received` takes it there.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ddlp-batch", os.MFD_CLOEXEC)
    else:  # macOS
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def received(passed_on: Any, size: int) -> mmap.mmap:
    """Return the memory that another process has passed on. To be called once for each `DupFd`."""
    descriptor = passed_on.detach()
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
