"""Checks of data that come from a file or a saved state: they say which field is wrong, what was found and what it must be.

The checks of single values are those of messages, `csd_engine.protocol.fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from csd_engine.errors import quote
from csd_engine.protocol.fields import Check
from csd_engine.protocol.printable import printable

__all__ = ["Misfit", "checked_fields", "one_of", "text_of"]


class Misfit(ValueError):
    """Data are not what they must be. The text is whole: which field, what was found, what it must be."""


def checked_fields(what: str, data: Any, fields: Mapping[str, Check], optional: Mapping[str, Check]) -> dict[str, Any]:
    """Return the fields of an object, each as its check returns it. Fields of ``optional`` may be missing.

    Raises:
        Misfit: it is no object; a field is missing, unknown, or not what its check takes.
    """
    if not isinstance(data, dict):
        raise Misfit(f"{what} is {quote(data)}; it must be an object")
    if missing := [name for name in fields if name not in data]:
        raise Misfit(f"{what} has no {missing[0]}")
    known = {**fields, **optional}
    if unknown := [name for name in data if name not in known]:
        raise Misfit(f"{what} has a field {quote(unknown[0])} that is not known")
    return {name: _checked(f"{what}: {name}", value, known[name]) for name, value in data.items()}


def _checked(what: str, value: Any, check: Check) -> Any:
    try:
        return check(value)
    except Misfit:
        raise
    except ValueError as error:
        raise Misfit(f"{what} is {quote(value)}; it must be {error}") from None


def text_of(longest: int) -> Check:
    """Check for a text; it comes back fit for a terminal and a page, without control characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > longest:
            raise ValueError(f"a text of at most {longest} characters")
        return printable(value, longest)

    return check


def one_of(*texts: str) -> Check:
    """Check for one of these texts."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in texts:
            raise ValueError(" or ".join(texts))
        return str(value)

    return check
