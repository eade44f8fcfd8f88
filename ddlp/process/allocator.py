"""What the C library's allocator does with freed memory."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT = 256 << 20  # bytes: the temporary tensors of one batch, as a rule
_MOST_OF_OLD_GLIBC = 32 << 20


def keep_freed_memory() -> None:
    """Have this process keep freed memory for its next batch. For worker processes, which do little else.

    glibc gives tensors of a batch's size back to the kernel at once. The next batch gets new pages, each with a fault, and
    filled with zeros: with mixup in a collate_fn that took a third of a worker's processor time. Other C libraries have no such
    settings, and stay as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # macOS, Windows
        return
    if mallopt(_MMAP_THRESHOLD, _KEPT) or mallopt(_MMAP_THRESHOLD, _MOST_OF_OLD_GLIBC):
        mallopt(_TRIM_THRESHOLD, _KEPT)
