"""The samples of one lease that an object storage brings: some are requested before the worker is there."""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Tuple

import numpy as np

from csd_engine.data.base import Fetch, Reader
from csd_engine.prepare.cached_batch import SampleCache

__all__ = ["LeaseFetches"]

_TOGETHER = 32  # samples that are waited for together, while the next ones are on their way


class LeaseFetches:
    """Requests the samples of a lease in parts, in their order.

    Args:
        reader: of the lease's job; it must stay open until `close`.
        sources: the samples' indices, int64 (n,).
        cache: has some of them, which are not requested. None: there is none.
    """

    def __init__(self, reader: Reader, sources: np.ndarray, cache: Optional[SampleCache] = None) -> None:
        self.reader, self.sources, self._cache = reader, sources, cache
        parts = (slice(first, min(first + _TOGETHER, len(sources))) for first in range(0, len(sources), _TOGETHER))
        self._unbegun: Deque[slice] = deque(parts)
        self._coming: Deque[Tuple[slice, Fetch]] = deque()

    def begin(self, ahead: bool) -> bool:
        """Request as many parts as pay. Return whether all have been requested. ``ahead``: nobody waits for the first one.

        Raises:
            DatasetError: an object can't be as its description says.
        """
        while self._unbegun:
            fetch = self.reader.fetch(self._missing(self._unbegun[0]).tolist(), ahead=ahead or bool(self._coming))
            if fetch is None:
                return False
            self._coming.append((self._unbegun.popleft(), fetch))
        return True

    def _missing(self, part: slice) -> np.ndarray:
        sources = self.sources[part]
        return sources if self._cache is None else self._cache.missing(self.reader, sources)

    @property
    def left(self) -> bool:
        """Whether `done` has not been called for all parts."""
        return bool(self._coming or self._unbegun)

    def first(self) -> Tuple[slice, Fetch]:
        """Return the part whose turn it is, and its fetch. `begin` must have been called since the part before was done."""
        return self._coming[0]

    def done(self) -> None:
        """Free the memory of the part whose turn it was."""
        self._coming.popleft()[1].close()

    def close(self) -> None:
        """Drop what is on its way, and free the memory. May be called again."""
        while self._coming:
            self.done()
