"""Checks for values of parameters: each returns the value in canonical form, or raises a ValueError that says what it expects.

Pipelines arrive over the network, so nothing here trusts a type, a range or a length.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple, Union

from csd_engine.kernels.windows import PADDING_MODES
from csd_engine.transforms.resample import FILTERS
from csd_engine.transforms.torch_pixels import PIXELS
from csd_engine.transforms.torch_resample import TORCH_FILTERS

MAX_SIDE = 65535  # pixels; JPEG's limit
MAX_PIXELS = 2**28  # of any image between operators, so that a hostile pipeline can't use up the memory
MAX_HOLES = 64
MAX_GROUPS = 256  # of all containers of a pipeline together

Size = Tuple[int, int]
Check = Callable[[Any], Any]


def integer(low: int, high: int) -> Check:
    """Check for an integer in [low, high]."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"expected an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """Check for a finite number in [low, high]; returns a float."""

    def check(value: Any) -> float:
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return float(value)

    return check


def one_of(*choices: Any) -> Check:
    """Check for one of these values."""

    def check(value: Any) -> Any:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise ValueError("expected one of " + ", ".join(map(repr, choices)))
        return value

    return check


def optional(check_value: Check) -> Check:
    """Check that also lets None through."""

    def check(value: Any) -> Any:
        return None if value is None else check_value(value)

    return check


def listed(value: Any, lengths: Sequence[int], what: str) -> Tuple[Any, ...]:
    """Tuple of a list (or tuple) of one of these lengths."""
    if type(value) not in (list, tuple) or len(value) not in lengths:
        raise ValueError(f"expected {what}")
    return tuple(value)


side = integer(1, MAX_SIDE)
probability = number(0.0, 1.0)
interpolation = one_of(*FILTERS, *TORCH_FILTERS)
padding_mode = one_of(*PADDING_MODES)
pixels = one_of(*PIXELS)


def boolean(value: Any) -> bool:
    """Check for True or False."""
    if type(value) is not bool:
        raise ValueError("expected true or false")
    return value


def size(value: Any) -> Size:
    """Check for [height, width]."""
    height, width = (side(v) for v in listed(value, (2,), "[height, width]"))
    if height * width > MAX_PIXELS:
        raise ValueError(f"expected at most {MAX_PIXELS} pixels")
    return height, width


def short_side_or_size(value: Any) -> Union[int, Size, None]:
    """Check for the shorter side, [height, width], or None (the longer side is given as max_size)."""
    if value is None:
        return None
    return side(value) if type(value) is int else size(value)


def interval(low: float, high: float) -> Check:
    """Check for [a, b] with low <= a <= b <= high."""
    check_number = number(low, high)

    def check(value: Any) -> Tuple[float, float]:
        first, last = (check_number(v) for v in listed(value, (2,), "[low, high]"))
        if first > last:
            raise ValueError("expected the smaller bound first")
        return first, last

    return check


def padding(value: Any) -> Tuple[int, int, int, int]:
    """Check for [left, top, right, bottom] pixels; a negative border crops."""
    check_border = integer(-MAX_SIDE, MAX_SIDE)
    left, top, right, bottom = (check_border(v) for v in listed(value, (4,), "[left, top, right, bottom]"))
    return left, top, right, bottom


def fill(value: Any) -> Tuple[int, ...]:
    """Check for one value 0..255 for all channels, or one a channel."""
    return tuple(integer(0, 255)(v) for v in listed(value, (1, 3), "a list of one value or of three"))


def weights(value: Any) -> Optional[Tuple[float, ...]]:
    """Check for the weights of a choice: None, or non-negative numbers with a positive sum."""
    if value is None:
        return None
    if type(value) not in (list, tuple) or len(value) > MAX_GROUPS:
        raise ValueError(f"expected a list of at most {MAX_GROUPS} weights, or null")
    checked = tuple(number(0.0, 1e9)(v) for v in value)
    if not sum(checked) > 0.0:
        raise ValueError("expected weights with a positive sum")
    return checked
