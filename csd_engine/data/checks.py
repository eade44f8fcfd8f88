"""Checks for the fields of a data set's description. It comes from another computer, so each value is checked."""

from __future__ import annotations

import sys
from typing import Any, List, Sequence

from csd_engine.errors import DatasetError, quote

__all__ = ["bad", "check_countable", "checked_fields", "checked_fingerprint", "checked_path", "is_count"]

MAX_PATH_CHARACTERS = 4096
_COUNT_LIMIT = 1 << 48
_MOST = sys.maxsize  # the limit of len() and mmap: on a 32-bit computer 2 GiB, less one byte


def bad(what: str, value: Any) -> DatasetError:
    """Return the error for a wrong value in the description; `what` says what was expected."""
    return DatasetError(f"data set description: {what}, got {quote(value)}. Describe it with ddlp's own classes.")


def checked_fields(data: Any, names: Sequence[str]) -> List[Any]:
    """Return the values of these fields, in this order; raises DatasetError unless `data` has just them and "type"."""
    if not isinstance(data, dict) or set(data) != {"type", *names}:
        raise bad(f"expected exactly the fields type, {', '.join(names)}", data)
    return [data[name] for name in names]


def checked_path(value: Any) -> str:
    """Return the value if it is an absolute path without '..'; else raise DatasetError."""
    if not isinstance(value, str) or len(value) > MAX_PATH_CHARACTERS or "\0" in value or not value.startswith("/"):
        raise bad("expected an absolute path", value)
    if ".." in value.split("/"):
        raise bad("expected a path without '..'", value)
    return value


def checked_fingerprint(value: Any) -> str:
    """Return the value if it is a fingerprint, 32 hex digits; else raise DatasetError."""
    if not isinstance(value, str) or len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise bad("expected a fingerprint of 32 hex digits", value)
    return value


def is_count(value: Any) -> bool:
    """Tell whether the value is an integer from 0 to 2**48 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNT_LIMIT


def check_countable(number: int, what: str) -> None:
    """Raise DatasetError, which begins with `what`, if this computer can't count or map this number of samples or bytes."""
    if number > _MOST:
        bits = 64 if _MOST >= 1 << 32 else 32
        raise DatasetError(f"{what} on this {bits}-bit computer. Train without this device.")
