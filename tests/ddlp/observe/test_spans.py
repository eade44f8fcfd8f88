"""Arithmetic of spans, compared with sets of small integers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddlp.observe.spans import both, clip, length, less, union, within

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda s: (min(s), max(s))), max_size=12)


def cells(some):
    return {k for begin, end in some for k in range(begin, end)}


@given(spans, spans, st.integers(0, 30), st.integers(0, 30))
def test_as_sets_of_cells(a, b, begin, end):
    ua, ub = union(a), union(b)
    assert cells(ua) == cells(a) and length(ua) == len(cells(a))
    assert ua == sorted(ua) and all(x[1] < y[0] for x, y in zip(ua, ua[1:]))
    assert cells(both(ua, ub)) == cells(a) & cells(b)
    assert cells(less(ua, ub)) == cells(a) - cells(b)
    inside = cells(a) & set(range(begin, end))
    assert cells(within(ua, begin, end)) == cells(clip(ua, begin, end)) == inside
    assert all(x < y for x, y in [*both(ua, ub), *less(ua, ub), *within(ua, begin, end)])
