"""Changes plain data at one place, as a damaged or forged file may have it."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 60),
    st.sampled_from([2**31, 2**62, -(2**63), 10**30, 0.5, -1.0, 1e18, 1e300, float("nan"), float("inf")]),
    st.sampled_from(["", "x", "cpu", "\x1b[2J", "\ud800", "<script>", "AAAA"]),
    st.sampled_from([[], {}, [1], [[0, 1]], [[1, 0]], [[0, 10**9]], {"a": 1}, [[[0], [0]]], [None]]),
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in dicts and lists. Of a long list only the first and last values count."""
    found = [path] if path else []
    if isinstance(data, dict):
        keys: list[Any] = list(data)
    else:
        keys = list(range(len(data))) if isinstance(data, list) else []
        keys = keys if len(keys) < 5 else [*keys[:2], *keys[-2:]]
    for key in keys:
        found += places(data[key], (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, data: Any, leave: tuple[str, ...] = ()) -> tuple[Any, tuple[Any, ...]]:
    """The data with one value replaced, removed, renamed or doubled, and its path. Values below the keys ``leave`` stay."""
    path = draw(st.sampled_from([path for path in places(data) if not set(path[1:] if len(path) > 1 else path) & set(leave)]))
    data = copy.deepcopy(data)
    owner = data
    for key in path[:-1]:
        owner = owner[key]
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "other"]))
    if how == "replace":
        owner[path[-1]] = draw(JUNK)
    elif how == "remove":
        del owner[path[-1]]
    elif isinstance(owner, dict):
        owner[f"{path[-1]}x"] = owner.pop(path[-1])
    else:
        owner.append(owner[path[-1]])
    return data, path
