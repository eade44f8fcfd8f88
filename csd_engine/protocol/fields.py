"""What a message's fields may hold: one check a kind of value. What arrives is hostile until it has passed."""

from __future__ import annotations

import re
from dataclasses import MISSING, field
from itertools import chain
from typing import Any, Callable, Dict, Tuple

MAX_TEXT = 4096
MAX_ITEMS = 1 << 17  # samples of one lease
MAX_INT = (1 << 63) - 1

_LISTS = {list, tuple}

Check = Callable[[Any], Any]


def integer(low: int, high: int) -> Check:
    """Check for an integer in a range, both ends included."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return check


def text(pattern: str, meaning: str) -> Check:
    """Check for a text that a pattern matches as a whole."""
    compiled = re.compile(pattern, re.DOTALL)

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > MAX_TEXT or compiled.fullmatch(value) is None:
            raise ValueError(meaning)
        return value

    return check


def list_of(entry_check: Check, longest: int) -> Check:
    """Check for a list; it becomes a tuple."""

    def check(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > longest:
            raise ValueError(f"a list of at most {longest}")
        return tuple(entry_check(entry) for entry in value)

    return check


def tuple_of(*checks: Check) -> Check:
    """Check for a list of exactly these; it becomes a tuple."""

    def check(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            raise ValueError(f"a list of exactly {len(checks)}")
        return tuple(entry_check(entry) for entry_check, entry in zip(checks, value))

    return check


def pairs(longest: int) -> Check:
    """Check for a list of pairs of integers from 0 to `MAX_INT`; it becomes a tuple of tuples.

    The result is that of `list_of` and `tuple_of`, at a fifth of their cost. A lease has a pair for each sample, and the CPU of
    a small board checks it.
    """
    one_by_one = list_of(tuple_of(count, count), longest)

    def check(value: Any) -> Tuple[Any, ...]:
        if isinstance(value, (list, tuple)) and len(value) <= longest and _LISTS.issuperset(map(type, value)):
            if set(map(len, value)) == {2}:
                numbers = list(chain.from_iterable(value))
                if set(map(type, numbers)) == {int} and 0 <= min(numbers) and max(numbers) <= MAX_INT:
                    return tuple(map(tuple, value))
        return one_by_one(value)  # it says what is wrong

    return check


def an_object(value: Any) -> Dict[str, Any]:
    """Check for a JSON object."""
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def versions(value: Any) -> Dict[str, str]:
    """Check for an object of texts."""
    if not isinstance(value, dict) or len(value) > 32:
        raise ValueError("an object of at most 32 texts")
    return {anything(key): anything(entry) for key, entry in value.items()}


def seconds(value: Any) -> float:
    """Check for a time in seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError("a number of seconds")
    return float(value)


def number(low: float, high: float) -> Check:
    """Check for a number in a range, both ends included."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def optional(check: Check) -> Check:
    """Check for null, or for what passes another check."""
    return lambda value: None if value is None else check(value)


def truth(value: Any) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


rate = number(0, 1e9)
anything = text(r".*", f"a text of at most {MAX_TEXT} characters")
count = integer(0, MAX_INT)
signed = integer(-(1 << 63), (1 << 64) - 1)
no_or_name = text(r"[A-Za-z0-9_-]{0,64}", "a name of at most 64 letters, digits, '-' or '_', or nothing")
name = text(r"[A-Za-z0-9_-]{1,64}", "a name of 1 to 64 letters, digits, '-' or '_'")
hex32 = text(r"[0-9a-f]{32}", "32 hex digits")
file = text(r"[A-Za-z0-9_-]{1,64}/[0-9a-f]{32}\.[0-9]{1,19}\.safetensors", "a batch file below the spool")
shared_file = text(r"(files/[A-Za-z0-9_-]{1,64}/[A-Za-z0-9_-]{1,64})?", "a host's file below the spool's files/, or nothing")
kind = text(r"manifest|array", "'manifest' or 'array'")
items = pairs(MAX_ITEMS)


def checked(check: Check, default: Any = MISSING) -> Any:
    """Return a dataclass field whose value must pass the check; in a message it is always there."""
    return field(default=default, metadata={"check": check})
