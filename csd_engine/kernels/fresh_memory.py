"""Fresh memory for what is read at once."""

from __future__ import annotations

import mmap

import numpy as np

from csd_engine.kernels import kernel

__all__ = ["fresh"]


def fresh(size: int) -> np.ndarray:
    """So many bytes, uint8, of undefined content, from a page's beginning; with a kernel their pages are there already.

    numpy's own memory begins 16 bytes behind a page's beginning, across the lines of every cache. And while its pages come
    between two reads, the cache cannot be made ready for what is read next (`csd_engine.batchfile.checksum.Checksum.read`).
    """
    memory = np.empty(size + mmap.PAGESIZE, dtype=np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE
    found = memory[begin : begin + size]
    fast = kernel()
    if fast is not None:
        fast.populate(found)
    return found
