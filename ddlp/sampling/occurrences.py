"""How often each sample came before in an epoch: with seed and epoch, what its random draws depend on."""

from __future__ import annotations

import numpy as np

__all__ = ["OccurrenceCounter"]


class OccurrenceCounter:
    """Counts what is drawn, by source index. ``sources``: how many of these there are."""

    def __init__(self, sources: int) -> None:
        self._times = np.zeros(sources, dtype=np.int64)

    def count(self, sources: np.ndarray) -> np.ndarray:
        """For each of these source indices (int64) how often it came before, int64. From now on they have come as well."""
        before = self._times[sources]
        n = len(sources)
        bits, order = n.bit_length(), np.arange(n)
        ranked = np.sort((sources << bits) | order)  # with their places, since to sort numbers is faster than argsort
        again = (ranked[1:] >> bits) == (ranked[:-1] >> bits)
        if again.any():
            first = order.copy()
            first[1:][again] = 0
            before[ranked & ((1 << bits) - 1)] += order - np.maximum.accumulate(first)
        self._times[sources] = before + 1  # of an index that is there twice the last value stays, which is the highest
        return before

    def add(self, times: dict[int, int]) -> None:
        """Each of these has come so often."""
        self._times[np.fromiter(times, dtype=np.int64, count=len(times))] += np.fromiter(times.values(), dtype=np.int64)

    def times(self) -> dict[int, int]:
        """How often each has come that has."""
        there = np.flatnonzero(self._times)
        return dict(zip(there.tolist(), self._times[there].tolist(), strict=True))
