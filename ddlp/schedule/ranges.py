"""A set of batch positions that is kept as ranges: for an epoch of a million batches these are a handful."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """A set of non-negative ints stored as sorted, disjoint, non-adjacent half-open ranges.

    Memory and time depend on the number of ranges, not on the number of members. Host and device work from the two ends
    of an epoch, so the free and the delivered positions stay a few ranges for any length of the epoch.
    """

    __slots__ = ("_starts", "_stops", "_len")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._len = 0
        for start, stop in ranges:
            self.add_range(start, stop)

    def __len__(self) -> int:
        return self._len

    def __contains__(self, item: int) -> bool:
        k = bisect_right(self._starts, item) - 1
        return k >= 0 and item < self._stops[k]

    def __iter__(self) -> Iterator[int]:
        for start, stop in zip(self._starts, self._stops, strict=True):
            yield from range(start, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self.ranges() == other.ranges()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({self.ranges()!r})"

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges as (start, stop), ascending. They are plain data, for example for a saved state."""
        return list(zip(self._starts, self._stops, strict=True))

    def first(self) -> int:
        """Return the smallest member. Raises IndexError if the set is empty."""
        return self._starts[0]

    def last(self) -> int:
        """Return the largest member. Raises IndexError if the set is empty."""
        return self._stops[-1] - 1

    def first_missing(self, start: int = 0) -> int:
        """Return the smallest int from ``start`` on that is not a member."""
        k = bisect_right(self._starts, start) - 1
        return self._stops[k] if k >= 0 and start < self._stops[k] else start

    def last_missing(self, stop: int) -> int:
        """Return the largest int below ``stop`` that is not a member; -1 if there is none."""
        k = bisect_right(self._starts, stop - 1) - 1
        return self._starts[k] - 1 if k >= 0 and stop - 1 < self._stops[k] else stop - 1

    def at_least(self, start: int) -> int | None:
        """Return the smallest member from ``start`` on; None if there is none."""
        k = bisect_right(self._starts, start) - 1
        if k >= 0 and start < self._stops[k]:
            return start
        return self._starts[k + 1] if k + 1 < len(self._starts) else None

    def at_most(self, last: int) -> int | None:
        """Return the largest member up to ``last``; None if there is none."""
        k = bisect_right(self._starts, last) - 1
        return min(last, self._stops[k] - 1) if k >= 0 else None

    def nth(self, n: int) -> int:
        """Return the n-th smallest member, counted from 0. Raises IndexError beyond the end."""
        for start, stop in zip(self._starts, self._stops, strict=True):
            if n < stop - start:
                return start + n
            n -= stop - start
        raise IndexError("RangeSet.nth beyond the end")

    def add(self, item: int) -> None:
        """Add one member. Nothing happens if it is a member already."""
        starts, stops = self._starts, self._stops
        k = bisect_right(starts, item) - 1
        if k >= 0 and item <= stops[k]:
            if item == stops[k]:
                stops[k] += 1
                self._len += 1
                if k + 1 < len(starts) and starts[k + 1] == item + 1:  # it was the gap between two ranges
                    stops[k] = stops.pop(k + 1)
                    del starts[k + 1]
        else:
            self.add_range(item, item + 1)

    def add_range(self, start: int, stop: int) -> None:
        """Add ``start`` to ``stop - 1``. Some of these may be members already."""
        if start < 0 or stop <= start:
            if stop == start:
                return
            raise ValueError(f"not a range of positions: ({start}, {stop})")
        lo = bisect_right(self._starts, start)
        if lo and self._stops[lo - 1] >= start:
            lo -= 1
        hi = bisect_right(self._starts, stop)
        absorbed = sum(self._stops[lo:hi]) - sum(self._starts[lo:hi])
        if lo < hi:
            start = min(start, self._starts[lo])
            stop = max(stop, self._stops[hi - 1])
        self._starts[lo:hi] = [start]
        self._stops[lo:hi] = [stop]
        self._len += stop - start - absorbed

    def remove(self, item: int) -> None:
        """Remove one member. Raises KeyError if it is not a member."""
        if not self.discard(item):
            raise KeyError(item)

    def discard(self, item: int) -> bool:
        """Remove one member. False if it is not a member."""
        starts, stops = self._starts, self._stops
        k = bisect_right(starts, item) - 1
        if k < 0 or item >= stops[k]:
            return False
        after = item + 1
        if item > starts[k]:
            if after < stops[k]:
                starts.insert(k + 1, after)
                stops.insert(k, item)
            else:
                stops[k] = item
        elif after < stops[k]:
            starts[k] = after
        else:
            del starts[k], stops[k]
        self._len -= 1
        return True
