"""Fresh memory for data that are read at once."""

from __future__ import annotations

import mmap

import numpy as np

from csd_engine.kernels import kernel

__all__ = ["fresh"]


def fresh(size: int) -> np.ndarray:
    """Return ``size`` bytes of undefined content, uint8, from a page's beginning. With a kernel their pages are mapped already.

    numpy's own memory begins 16 bytes after a page's beginning, so it is not aligned to cache lines. And if pages are mapped
    between two reads, the cache can't be prepared for the next read (`csd_engine.batchfile.checksum.Checksum.read`).
    """
    memory = np.empty(size + mmap.PAGESIZE, dtype=np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE
    buffer = memory[begin : begin + size]
    fast = kernel()
    if fast is not None:
        fast.populate(buffer)
    return buffer
