"""Some of all combinations, in which any two values of two arguments meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any


def pairwise(*axes: Iterable[Any], where: Callable[..., bool] = lambda *values: True) -> list[tuple[Any, ...]]:
    """Return combinations that together have each pair of values that any has.

    Which these are is the same each time: the next one is the first that has the most pairs which none has had.
    """
    bits: dict[Any, int] = {}  # of each pair, in a number: faster than sets
    pairs = {
        values: sum(bits.setdefault(pair, 1 << len(bits)) for pair in itertools.combinations(enumerate(values), 2))
        for values in itertools.product(*axes)
        if where(*values)
    }
    missing = (1 << len(bits)) - 1
    chosen = []
    while missing:
        best = max(pairs, key=lambda values: (pairs[values] & missing).bit_count())
        chosen.append(best)
        missing &= ~pairs[best]
    return chosen
