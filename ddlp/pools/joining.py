"""Engines that come to a pool while an epoch runs join that epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ddlp.sources.base import EpochSink

__all__ = ["newcomers"]

LOOK_S = 1.0  # between two looks at the pool


def newcomers(names: Callable[[], Iterable[str]], known: Iterable[str], sink: EpochSink) -> Iterator[str]:
    """Yield the name of each engine that comes after the epoch's beginning, until the epoch is over. The epoch expects it then.

    Args:
        names: returns the names of the engines of this moment.
        known: the names that the epoch knows already.
        sink: the epoch.
    """
    seen = set(known)
    while not sink.over_within(LOOK_S):
        for name in names():
            if name not in seen:
                seen.add(name)
                sink.expect(name)
                yield name
