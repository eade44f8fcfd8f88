"""From the loader's argument ``pool`` to a `Pool`."""

from __future__ import annotations

import os
from typing import Any

from ddlp.pools.base import Pool, is_pool
from ddlp.pools.cards import CardPool
from ddlp.pools.local import LocalPool

__all__ = ["pool_of"]


def pool_of(given: Any) -> Pool | None:
    """Return the pool that a loader's argument names; None: there is none.

    Args:
        given: a number of engines on this machine, the path of a directory of cards, or a pool.

    Raises:
        ValueError: for anything else.
        DDLPError: the directory can't be used.
    """
    if given is None or is_pool(given):
        return given
    if isinstance(given, int):
        return LocalPool(given)
    if isinstance(given, (str, os.PathLike)):
        return CardPool(given)
    raise ValueError(
        f"pool={given!r}: expected a number of engines, a directory of cards, a ddlp.LocalPool or ddlp.RayPool, or None"
    )
