"""Files opened, and asked for from the disk, a few samples before their turn."""

from __future__ import annotations

import itertools
import os
from collections import deque
from typing import Any, Deque, Iterable, Iterator, Tuple

from csd_engine.datasets import Reader, Source
from csd_engine.regular import OpenFile

__all__ = ["AHEAD", "ReadAhead"]

AHEAD = 8  # files: a disk that answers in 10 ms keeps up with 800 samples a second


class ReadAhead(Reader):
    """A reader for samples whose order is known: each file is opened once, before its turn, and closed in any case.

    For one thread, in a `with`. Samples out of that order are opened as they are asked for.

    Args:
        reader: of the data set; stays open.
        indices: the samples in their order, taken as they come near.
    """

    def __init__(self, reader: Reader, indices: Iterable[int]) -> None:
        self._reader = reader
        self._coming: Iterator[int] = iter(indices)
        self._opened: Deque[Tuple[int, Source]] = deque()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        """Return sample `index`; raises as the data set's own reader does."""
        for coming in itertools.islice(self._coming, AHEAD + 1 - len(self._opened)):
            self._open_ahead(coming)
        if self._opened and self._opened[0][0] == index:
            return self._opened.popleft()[1]
        return self._reader.open(index)  # it could not be opened ahead: now it can, or the reason is told

    def where(self, index: int) -> str:
        """Return the sample's place for messages."""
        return self._reader.where(index)

    def close(self) -> None:
        """Close what was opened and not asked for. The data set's reader stays open."""
        self._coming = iter(())
        while self._opened:
            _, source = self._opened.popleft()
            if isinstance(source, OpenFile):
                os.close(source.descriptor)

    def _open_ahead(self, index: int) -> None:
        try:
            source = self._reader.open(index)
        except Exception:  # told at its turn; too few descriptors may be enough by then
            return
        self._opened.append((index, source))
        if isinstance(source, OpenFile):
            try:
                os.posix_fadvise(source.descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            except OSError:  # some file systems have no such thing
                pass
