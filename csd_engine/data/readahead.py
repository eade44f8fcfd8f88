"""Opens files, and requests them from the disk, a few samples before their turn."""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Deque, Iterable, Iterator, Optional, Tuple

from csd_engine.data.base import Reader, Source
from csd_engine.data.safe_open import OpenFile

__all__ = ["AHEAD", "ReadAhead"]

AHEAD = 8  # files: a disk that answers in 10 ms keeps up with 800 samples a second


class ReadAhead(Reader):
    """A reader for samples whose order is known: each file is opened once, before its turn, and closed in any case.

    It is for one thread, in a `with`. A sample out of that order is opened when it is asked for.

    Args:
        reader: of the data set; stays open.
        indices: the samples in their order; each index is taken shortly before its turn.
    """

    def __init__(self, reader: Reader, indices: Iterable[int]) -> None:
        self._reader = reader
        self._coming: Iterator[int] = iter(indices)
        self._next: Optional[int] = None  # taken from the indices, and not opened yet
        self._opened: Deque[Tuple[int, Source]] = deque()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        """Return sample `index`; raises as the data set's own reader does."""
        self._open_ahead()
        if self._opened and self._opened[0][0] == index:
            return self._opened.popleft()[1]
        if self._next == index:
            self._next = None
        return self._reader.open(index)  # it could not be opened before: now it can, or this raises the reason

    def where(self, index: int) -> str:
        """Return where the sample lies, for messages."""
        return self._reader.where(index)

    def close(self) -> None:
        """Close files that were opened and not asked for. The data set's reader stays open."""
        self._coming, self._next = iter(()), None
        while self._opened:
            _, source = self._opened.popleft()
            if isinstance(source, OpenFile):
                os.close(source.descriptor)

    def _open_ahead(self) -> None:
        """Open the next files in their order, up to one that can't be opened: a later one could take its descriptor."""
        while len(self._opened) <= AHEAD:
            if self._next is None:
                self._next = next(self._coming, None)
            if self._next is None:
                return
            try:
                source = self._reader.open(self._next)
            except Exception:  # reported at its turn; a descriptor may be free by then
                return
            self._opened.append((self._next, source))
            self._next = None
            if isinstance(source, OpenFile):
                try:
                    os.posix_fadvise(source.descriptor, source.offset, source.size, os.POSIX_FADV_WILLNEED)
                except OSError:  # some file systems do not support it
                    pass
