"""Arithmetic of time spans: (from, to) in seconds. A union is sorted and has no two spans that touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

__all__ = ["Span", "both", "clip", "length", "less", "union", "within"]

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """All moments that are in any of the spans."""
    result: list[Span] = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result


def length(spans: Iterable[Span]) -> float:
    """Seconds of all spans together; of a union, the seconds that are in it."""
    return sum(end - begin for begin, end in spans)


def both(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    """The moments that are in both unions."""
    result, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if end > begin:
            result.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return result


def less(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    """The moments of union a that are not in union b."""
    result: list[Span] = []
    for begin, end in a:
        for other_begin, other_end in both([(begin, end)], b):
            if other_begin > begin:
                result.append((begin, other_begin))
            begin = other_end
        if end > begin:
            result.append((begin, end))
    return result


def clip(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The parts of spans that lie within."""
    return [(max(a, begin), min(b, end)) for a, b in spans if min(b, end) > max(a, begin)]


def within(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """The moments of a union that lie within; quick, also in a long one."""
    first = bisect_right(spans, begin, key=lambda span: span[1])
    return clip(spans[first : bisect_left(spans, end, key=lambda span: span[0])], begin, end)
