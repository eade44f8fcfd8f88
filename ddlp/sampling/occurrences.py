"""How often each sample came before in an epoch. A sample's random draws depend on that, the seed and the epoch."""

from __future__ import annotations

import numpy as np

__all__ = ["OccurrenceCounter"]


class OccurrenceCounter:
    """Counts draws by source index. ``sources``: the number of source indices."""

    def __init__(self, sources: int) -> None:
        self._times = np.zeros(sources, dtype=np.int64)

    def count(self, sources: np.ndarray) -> np.ndarray:
        """Return, for each of these source indices (int64), how often it came before, int64. Then count these too."""
        before = self._times[sources]
        n = len(sources)
        bits, order = n.bit_length(), np.arange(n)
        ranked = np.sort((sources << bits) | order)  # each holds its place, since sorting numbers is faster than argsort
        again = (ranked[1:] >> bits) == (ranked[:-1] >> bits)
        if again.any():
            first = order.copy()
            first[1:][again] = 0
            before[ranked & ((1 << bits) - 1)] += order - np.maximum.accumulate(first)
        self._times[sources] = before + 1  # if an index comes twice, its last value stays, which is the highest
        return before

    def add(self, times: dict[int, int]) -> None:
        """Add these counts, by source index."""
        self._times[np.fromiter(times, dtype=np.int64, count=len(times))] += np.fromiter(times.values(), dtype=np.int64)

    def times(self) -> dict[int, int]:
        """Return the counts, by source index, without those that are 0."""
        there = np.flatnonzero(self._times)
        return dict(zip(there.tolist(), self._times[there].tolist(), strict=True))
