"""Engines that come to a pool while an epoch runs join that epoch; those that leave the pool retire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ddlp.sources.base import EpochSink
from ddlp.sources.engine.source import LOOK_S

__all__ = ["newcomers"]


class Members(Protocol):
    """The engines that a loader's pool has at this moment."""

    trouble: str

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""


def newcomers(members: Members, known: Iterable[str], sink: EpochSink) -> Iterator[str]:
    """Yield the name of each engine that comes after the epoch's beginning, until the epoch is over. The epoch expects it then.

    One that is not in the pool any more finishes what it has, and takes no more leases.

    Args:
        members: of the loader's pool.
        known: the names of engines that the epoch knows already.
        sink: the epoch.
    """
    seen, told = set(known), ""
    while not sink.over_within(LOOK_S):
        names = members.names
        for name in names:
            if name not in seen:
                seen.add(name)
                sink.expect(name)
                yield name
        for name in seen.difference(names):
            sink.retires(name, "it is not in the pool any more")
        if members.trouble != told:
            told = members.trouble
            if told:
                sink.warn(f"no engine can join now: {told}")
