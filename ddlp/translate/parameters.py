"""Converts parameters of torchvision's transforms to the pipeline's form. The pipeline's parser reports wrong ones."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from torchvision.transforms import InterpolationMode

from csd_engine.transforms.resample import FILTERS

__all__ = ["borders", "interpolation", "plain", "size_pair"]

_BY_NUMBER = {number: name for name, number in FILTERS.items()}  # Pillow's numbers


def plain(value: Any) -> Any:
    """Replace numpy's numbers, tuples and the like by Python's own numbers and lists."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return [plain(v) for v in value] if isinstance(value, Sequence) else value


def size_pair(value: Any) -> Any:
    """[height, width] from an int or a sequence of one or two."""
    value = plain(value)
    if isinstance(value, int):
        return [value, value]
    return value * 2 if isinstance(value, list) and len(value) == 1 else value


def borders(value: Any) -> Any:
    """[left, top, right, bottom] from torchvision's int or sequence of 1, 2 or 4."""
    value = plain(value)
    if isinstance(value, int):
        return [value] * 4
    if isinstance(value, list) and len(value) in (1, 2):
        return value * (4 // len(value))
    return value


def interpolation(value: Any) -> str:
    """Name of Pillow's filter for a mode, its name or Pillow's number; torchvision's nearest-exact is Pillow's nearest."""
    name = value.value if isinstance(value, InterpolationMode) else _BY_NUMBER.get(value, value)
    return "nearest" if name == "nearest-exact" else name
