"""`Pool`: what a loader asks of a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ddlp.sources.engine.connections import EngineAt
from ddlp.sources.usercode.wire import Starter

__all__ = ["Pool", "check_number", "check_range", "check_wanted", "is_pool", "nodes_of", "range_of"]


class Pool(Protocol):
    """Engines that come and go. Any thread may call the methods; they are quick, and several loaders may use one pool.

    A pool that has attributes ``min`` and ``max`` lets ``strategy="auto"`` find the number of engines between them.

    A pool that runs the user's own code too has an attribute ``user_code``, which is true, and a method ``nodes() ->
    Mapping[str, Starter]``: what starts each node of this moment, by the node's name (`ddlp.sources.usercode.wire`).
    """

    def want(self, engines: int) -> None:
        """Ask for so many engines. Further ones join the epoch under way, ones too many leave it.

        Raises:
            ValueError: if the pool can't have so many.
        """

    def engines(self) -> Mapping[str, EngineAt]:
        """Return the engines of this moment by their names. One that this process starts is started when it is first used."""


def is_pool(thing: Any) -> bool:
    """True for an object that a loader can use as a pool."""
    return callable(getattr(thing, "want", None)) and callable(getattr(thing, "engines", None))


def range_of(pool: Any) -> tuple[int, int] | None:
    """Return the least and the largest number of engines that a pool may be asked for: its attributes ``min`` and ``max``.

    None: it has no such range, or both are the same. Then nobody but the user changes its number.
    """
    least, most = getattr(pool, "min", None), getattr(pool, "max", None)
    return (least, most) if isinstance(least, int) and isinstance(most, int) and 0 <= least < most else None


def nodes_of(pool: Pool | None) -> Callable[[], Mapping[str, Starter]] | None:
    """Return what tells a pool's nodes for user code. None: there is no pool, or it runs none."""
    nodes: Callable[[], Mapping[str, Starter]] | None = getattr(pool, "nodes", None)
    return nodes if getattr(pool, "user_code", False) else None


def check_range(least: int, most: int) -> None:
    """Raise ValueError unless these are a least and a largest number of engines, 0 or more."""
    if not 0 <= _number(least, "min") <= _number(most, "max"):
        raise ValueError(f"min={least!r}, max={most!r}: the least and the largest number of engines, 0 or more")


def check_wanted(engines: int, least: int | None, most: int | None) -> None:
    """Raise ValueError unless this is a number of engines in a pool's range. None: it has no range, only 1 at least."""
    if least is None or most is None:
        check_number(engines, f"want({engines!r})")
    elif not least <= _number(engines, "want") <= most:
        raise ValueError(f"want({engines!r}): a number of engines from {least} to {most}, this pool's min and max")


def _number(given: Any, name: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise ValueError(f"{name}: {given!r} is no number of engines")
    return given


def check_number(engines: int, given_as: str) -> None:
    """Raise ValueError if this is no number of engines, 1 or more. ``given_as``: how the user gave it, for the message."""
    if not isinstance(engines, int) or isinstance(engines, bool) or engines < 1:
        raise ValueError(f"{given_as}: a number of engines, 1 or more")
