"""Huge pages for a process that forks often. A fork copies what the kernel notes of each page, and its end takes that back.

With torch imported these are 100,000 pages of 4 KiB: 50 ms of a processor for each fork that does nothing.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["take"]

_BYTES = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1


def take() -> None:
    """Move this process's memory to huge pages, which takes about a second. Elsewhere than on such a Linux: do nothing."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in maps.read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin, end = -(-begin // _BYTES) * _BYTES, end // _BYTES * _BYTES
        if rights == "rw-p" and name in ([], ["[heap]"]) and begin < end:
            madvise(begin, end - begin, _COLLAPSE)
