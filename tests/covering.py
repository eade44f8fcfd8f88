"""Some of all combinations, in which any two values of two arguments meet; the others are for the slow run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["covering"]


def covering(*axes: Iterable[Any], where: Callable[..., bool] = lambda *values: True) -> list[Any]:
    """Return all combinations as parameters of a test. A quick run takes those that together have each pair of values.

    ``where``: whether there is such a combination.
    Which these are is the same each time: the next one is the first that has the most pairs which none has had.
    """
    combinations = [one for one in itertools.product(*axes) if where(*one)]
    pairs = {one: set(itertools.combinations(enumerate(one), 2)) for one in combinations}
    missing = set().union(*pairs.values())
    quick = set()
    while missing:
        best = max(combinations, key=lambda one: len(pairs[one] & missing))
        quick.add(best)
        missing -= pairs[best]
    return [pytest.param(*one, marks=[] if one in quick else [pytest.mark.slow]) for one in combinations]
