"""Engines of one pool, shared out among jobs: max-min fair (Bertsekas and Gallager, Data Networks, section 6.5). It is pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["shares", "whole_shares"]


def shares(wants: Mapping[str, float], engines: float) -> dict[str, float]:
    """Return how much of a pool each job gets: no job more than it wants, and what one leaves is shared by the others.

    Args:
        wants: the number of engines that each job wants, by its name.
        engines: of the pool.
    """
    given, left = dict.fromkeys(wants, 0.0), engines
    hungry = sorted(wants, key=lambda job: (wants[job], job))  # the smallest appetite first
    for place, job in enumerate(hungry):
        given[job] = min(wants[job], left / (len(hungry) - place))
        left -= given[job]
    return given


def whole_shares(wants: Mapping[str, int], engines: int, turn: int = 0) -> dict[str, int]:
    """Return the same in whole engines. All that are wanted are given out, as far as they suffice.

    Jobs whose fair share is no whole number take turns: over as many turns as there are jobs, each has it in the mean.

    Args:
        wants: the number of engines that each job wants.
        engines: of the pool.
        turn: counts up from one turn to the next.
    """
    fair = shares(wants, engines)
    given = {job: int(share + 1e-9) for job, share in fair.items()}
    short = sorted(job for job in wants if fair[job] - given[job] > 1e-9)
    spare = min(engines, sum(wants.values())) - sum(given.values())
    for place in range(spare):
        given[short[(turn * spare + place) % len(short)]] += 1
    return given
