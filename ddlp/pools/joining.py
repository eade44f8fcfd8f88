"""Engines that come to a pool while an epoch runs join that epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddlp.sources.base import EpochSink
from ddlp.sources.engine.connections import EngineConnections

__all__ = ["newcomers"]

LOOK_S = 1.0  # between two looks at the pool


def newcomers(connections: EngineConnections, known: Iterable[str], sink: EpochSink) -> Iterator[str]:
    """Yield the name of each engine that comes after the epoch's beginning, until the epoch is over. The epoch expects it then.

    Args:
        connections: the loader's, which know its pool.
        known: the names that the epoch knows already.
        sink: the epoch.
    """
    seen, told = set(known), ""
    while not sink.over_within(LOOK_S):
        for name in connections.names:
            if name not in seen:
                seen.add(name)
                sink.expect(name)
                yield name
        if connections.trouble != told:
            told = connections.trouble
            if told:
                sink.warn(f"no engine can join now: {told}")
