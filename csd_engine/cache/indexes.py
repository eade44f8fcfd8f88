"""The indexes of JPEG files, made in one epoch and used in later ones.

By its index a random crop's part of a file is read and decoded (csd_engine/kernels/src/index.h). An index is about 1 % of its
file. It says at what time the file was last changed, and how large it is. The kernel does not use it for a file that has been
changed since, and makes a new one in its place.
"""

from __future__ import annotations

import threading
from typing import Dict, Optional, Protocol

__all__ = ["IndexesInMemory", "JpegIndexes"]

_ENTRY_BYTES = 200  # of Python's objects and of the table, beside an index's bytes


class JpegIndexes(Protocol):
    """Keeps the indexes of one data set's files on one computer. Any thread may use it.

    It is not for files that come anew with each lease (`csd_engine.data.carried`): they have another time of change each time.
    """

    @property
    def wanted(self) -> bool:
        """Whether it would keep more. If not, none are made, since making one takes a tenth of a sample's time."""

    def find(self, source: int) -> Optional[bytes]:
        """Return the index last kept for the sample at this source index; None: there is none. It never raises.

        The kernel checks it. If it is damaged, or the file's no more, the sample is made without it.
        """

    def keep(self, source: int, index: bytes) -> None:
        """Keep an index for this source index instead of an earlier one, or not, if there is no room. It never raises."""


class IndexesInMemory:
    """Keeps indexes in this process. When the memory is full, those that are there stay.

    Args:
        most_bytes: the memory that they may take, Python's own included.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._indexes: Dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._full = most_bytes <= 0
        self.bytes = 0  #: that they take now

    @property
    def wanted(self) -> bool:
        """See `JpegIndexes.wanted`."""
        return not self._full

    def find(self, source: int) -> Optional[bytes]:
        """See `JpegIndexes.find`."""
        return self._indexes.get(source)

    def keep(self, source: int, index: bytes) -> None:
        """See `JpegIndexes.keep`."""
        with self._lock:
            before = self._indexes.get(source)
            more = len(index) + _ENTRY_BYTES if before is None else len(index) - len(before)
            if self.bytes + more > self._most_bytes:
                self._full = True
                return
            self._indexes[source] = index
            self.bytes += more
