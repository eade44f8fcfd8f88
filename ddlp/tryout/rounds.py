"""Measurements that take turns, round after round: their order, and ratios within a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["ratios", "rotated"]

_T = TypeVar("_T")


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide round by round. What changes from round to round (clock, other programs) affects both figures of a round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def rotated(items: Sequence[_T], number: int) -> list[_T]:
    """Return all items in the order of round ``number``: each round begins with the item after the one before."""
    first = number % len(items)
    return [*items[first:], *items[:first]]
