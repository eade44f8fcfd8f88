"""The indexes of JPEG files, made in one epoch and used in later ones.

By its index a random crop's part of a file is read and decoded (csd_engine/kernels/src/index.h). An index is about 1 % of its
file. It says at what time the file was last changed, and how large it is. The kernel does not use it for a file that has been
changed since, and makes a new one in its place.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from csd_engine.cache.origins import origins_at
from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import Shelf
from csd_engine.data.base import Places

__all__ = ["INDEXES", "BatchIndexes", "IndexesInMemory", "IndexesOnShelf", "JpegIndexes"]

INDEXES = "indexes of JPEG files"

_ENTRY_BYTES = 200  # of Python's objects and of the table, beside an index's bytes
_SAVED = 0.13  # of the time that a sample takes: python -m scripts.index_check


class BatchIndexes(NamedTuple):
    """The indexes of one batch's files.

    Attributes:
        found: for each file the index last kept, or None. None: there are none. The kernel checks each. If it is damaged, or
            the file's no more, the sample is made without it.
        keep: takes (position in the batch, index) of new ones, and the seconds that making these samples took. It never raises.
            None: no more are kept. Then none are made, since making one takes a tenth of a sample's time.
    """

    found: Optional[List[Optional[bytes]]]
    keep: Optional[Callable[[List[Tuple[int, bytes]], float], None]]


class JpegIndexes(ABC):
    """Keeps the indexes of one data set's files on one computer. Any thread may use it.

    It is not for files that come anew with each lease (`csd_engine.data.carried`): they have another time of change each time.
    """

    @abstractmethod
    def of(self, sources: np.ndarray, places: Places) -> BatchIndexes:
        """Return the indexes of a batch. It never raises, unless this thread only reads a shelf: see `Shelf.reading`.

        Args:
            sources: indices, int64 (n,), which exist.
            places: where these samples lie.
        """


class IndexesInMemory(JpegIndexes):
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
        """Whether it would keep more."""
        return not self._full

    def of(self, sources: np.ndarray, places: Places) -> BatchIndexes:
        """See `JpegIndexes.of`."""

        def keep(made: List[Tuple[int, bytes]], seconds: float) -> None:
            for position, index in made:
                self.keep(int(sources[position]), index)

        return BatchIndexes([self.find(source) for source in sources.tolist()], keep if self.wanted else None)

    def find(self, source: int) -> Optional[bytes]:
        """Return the index last kept for the sample at this source index; None: there is none."""
        return self._indexes.get(source)

    def keep(self, source: int, index: bytes) -> None:
        """Keep an index for this source index instead of an earlier one, or not, if there is no room."""
        with self._lock:
            before = self._indexes.get(source)
            more = len(index) + _ENTRY_BYTES if before is None else len(index) - len(before)
            if self.bytes + more > self._most_bytes:
                self._full = True
                return
            self._indexes[source] = index
            self.bytes += more


class IndexesOnShelf(JpegIndexes):
    """Keeps indexes on a shelf of the cache, each as a row of bytes: for all processes, and for later ones.

    Args:
        shelf: of the data set, with one channel.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def of(self, sources: np.ndarray, places: Places) -> BatchIndexes:
        """See `JpegIndexes.of`."""
        origins = origins_at(places)
        found = self._shelf.find(sources, origins)
        hits = np.flatnonzero(found.hit).tolist()
        indexes: List[Optional[bytes]] = [None] * len(sources)
        for position, index in zip(hits, self._shelf.read(found, hits) or ()):
            indexes[position] = index.tobytes()

        def keep(made: List[Tuple[int, bytes]], seconds: float) -> None:
            rows = [(position, np.frombuffer(index, np.uint8).reshape(1, -1, 1)) for position, index in made]
            samples = [Sample(int(sources[position]), origins.one(position), row) for position, row in rows]
            self._shelf.keep(samples, _SAVED * seconds)

        return BatchIndexes(indexes, keep if self._shelf.keeps else None)
