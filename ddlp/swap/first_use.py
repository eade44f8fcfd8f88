"""`ddlp cache fill` within the script: the first use of a loader with a cache fills the caches of all, and ends the script."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NoReturn

from torch.utils.data import get_worker_info

from ddlp.errors import DDLPError
from ddlp.loader import DDLPLoader
from ddlp.swap.lines import made_at
from ddlp.swap.settings import say

__all__ = ["note"]

_MADE: list[tuple[weakref.ref[DDLPLoader], str]] = []


def note(loader: DDLPLoader) -> None:
    """Note a loader that is being made, and where."""
    if get_worker_info() is None:
        _MADE.append((weakref.ref(loader), made_at()))
        DDLPLoader._begin = _begin  # type: ignore[method-assign]


_begin_epoch = DDLPLoader._begin


def _begin(self: DDLPLoader, kept: Any) -> Any:
    if self.cache is False or get_worker_info() is not None:
        return _begin_epoch(self, kept)
    _fill()


def _fill() -> NoReturn:
    """Fill the caches of all loaders that were made until now, and end the script. Its `finally` clauses run."""
    failed = False
    for reference, where in _MADE:
        loader = reference()
        if loader is None or loader.cache is False:
            continue
        name = f"{where} {type(loader).__name__}({type(loader.dataset).__name__})"
        try:
            say(f"{name}: {loader.fill_cache()}")
        except DDLPError as error:
            failed = True
            say(f"{name}: {error}")
        except KeyboardInterrupt:
            say(f"{name}: stopped; what was made is kept, and the same command goes on from there")
            sys.exit(130)
    sys.exit(int(failed))
