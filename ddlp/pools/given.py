"""From the loader's argument ``pool`` to a `Pool`."""

from __future__ import annotations

from typing import Any

from ddlp.pools.base import Pool, is_pool
from ddlp.pools.local import LocalPool

__all__ = ["pool_of"]


def pool_of(given: Any) -> Pool | None:
    """Return the pool that a loader's argument names: a number of engines on this machine, or a pool; None: there is none.

    Raises:
        ValueError: for anything else.
    """
    if given is None or is_pool(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, int):
        return LocalPool(given)
    raise ValueError(f"pool={given!r}: expected a number of engines, a pool such as ddlp.LocalPool(4), or None")
