"""Several readers as one, their samples one after another. Some of them may read slow storages."""

from __future__ import annotations

import bisect
import itertools
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from csd_engine.data.base import Fetch, Origins, Places, Reader, Source
from csd_engine.kernels.pixels import Pixels

__all__ = ["JoinedReader"]


class JoinedReader(Reader):
    """Reads the samples of all parts. Indices count through them.

    Args:
        readers: of the parts; closed with this one.
        beneath: as of `Reader`.
    """

    def __init__(self, readers: Sequence[Reader], beneath: Optional[Sequence[str]] = None) -> None:
        self._readers, self.beneath = readers, beneath
        self.slow = any(reader.slow for reader in readers)
        self._starts = [0, *itertools.accumulate(map(len, readers))]

    def __len__(self) -> int:
        return self._starts[-1]

    def _place(self, index: int) -> Tuple[int, int]:
        """Return the number of a sample's part, and its index there."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        return part, index - self._starts[part]

    def _part(self, index: int) -> Tuple[Reader, int]:
        part, own = self._place(index)
        return self._readers[part], own

    def _only(self) -> Optional[Reader]:
        """Return the only part, which takes all samples of a batch in one call; None: there are several."""
        return self._readers[0] if len(self._readers) == 1 else None

    def open(self, index: int) -> Source:
        """See `Reader.open`."""
        reader, own = self._part(index)
        return reader.open(own)

    def places(self, indices: List[int]) -> Optional[Places]:
        """See `Reader.places`."""
        if (only := self._only()) is not None:
            return only.places(indices)
        return Places.join([reader.places([own]) for reader, own in map(self._part, indices)])

    def versions(self, indices: List[int]) -> Optional[Origins]:
        """See `Reader.versions`."""
        if (only := self._only()) is not None:
            return only.versions(indices)
        return Origins.join(reader.versions([own]) for reader, own in map(self._part, indices))

    def fetch(self, indices: Sequence[int], ahead: bool = False) -> Optional[Fetch]:
        """See `Reader.fetch`. Parts that are not slow are read as ever."""
        if not self.slow:
            return None
        if (only := self._only()) is not None:
            return only.fetch(indices, ahead)
        wanted: Dict[int, List[int]] = {}
        for part, own in map(self._place, indices):
            if self._readers[part].slow:
                wanted.setdefault(part, []).append(own)
        joined = _JoinedFetch(self._readers)
        try:
            for part, some in wanted.items():
                fetch = self._readers[part].fetch(some, ahead)
                if fetch is None:
                    joined.close()
                    return None
                joined.fetches[part] = fetch
        except BaseException:
            joined.close()
            raise
        return joined

    def pixels(self, indices: np.ndarray) -> Optional[Pixels]:
        """See `Reader.pixels`."""
        return Pixels.of_parts(self._starts, lambda part, own: self._readers[part].pixels(own), indices)

    def rows(self) -> Optional[np.ndarray]:
        """See `Reader.rows`."""
        only = self._only()
        return None if only is None else only.rows()

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        reader, own = self._part(index)
        return reader.where(own)

    def close(self) -> None:
        """See `Reader.close`."""
        for reader in self._readers:
            reader.close()


class _JoinedFetch(Fetch):
    """The fetches of the parts that are slow, by the part's number."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self.fetches: Dict[int, Fetch] = {}

    def hurry(self) -> None:
        """See `Fetch.hurry`."""
        for fetch in self.fetches.values():
            fetch.hurry()

    def wait(self, wanted: Callable[[], bool]) -> Optional[Reader]:
        """See `Fetch.wait`."""
        there = list(self._readers)
        for part, fetch in self.fetches.items():
            reader = fetch.wait(wanted)
            if reader is None:
                return None
            there[part] = reader
        return JoinedReader(there)

    def close(self) -> None:
        """See `Fetch.close`."""
        for fetch in self.fetches.values():
            fetch.close()
