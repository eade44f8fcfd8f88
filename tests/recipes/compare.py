"""Whether two batches are the same to the bit, and if not, where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from tests.recipes.pipelines import STD

__all__ = ["BY_ONE", "difference", "worst"]


BY_ONE = "off by 1 of 255 in less than 1 of 10,000 values"


def difference(theirs: Any, ours: Any, where: str = "", values: bool = True) -> str | None:
    """Compare two batches: types, keys, shapes, dtypes and values. Return None if they are the same, else where they differ.

    The answer is one line, which begins with `where`. It ends with `BY_ONE` if float values of ToTensor, or of Normalize after
    it, differ by no more than that. Without `values` only the shapes and dtypes of tensors are compared.
    """
    place = where or "batch"
    if type(theirs) is not type(ours):
        return f"{place}: {type(ours).__name__}, not {type(theirs).__name__}"
    if isinstance(theirs, Mapping):
        if list(theirs) != list(ours):
            return f"{place}: keys {list(ours)}, not {list(theirs)}"
        return _first((theirs[key], ours[key], f"{where}[{key!r}]", values) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        if len(theirs) != len(ours):
            return f"{place}: {len(ours)} of them, not {len(theirs)}"
        return _first((a, b, f"{where}[{k}]", values) for k, (a, b) in enumerate(zip(theirs, ours, strict=True)))
    if isinstance(theirs, torch.Tensor):
        return _tensors(theirs, ours, place, values)
    if isinstance(theirs, np.ndarray):
        return _tensors(torch.from_numpy(theirs), torch.from_numpy(ours), place, values)
    return None if theirs == ours else f"{place}: {ours!r:.60}, not {theirs!r:.60}"


def worst(found: Iterable[str | None]) -> str | None:
    """Return the first of several answers of `difference` that is more than `BY_ONE`; else one of the others, or None."""
    small = None
    for one in found:
        if one is not None and not one.endswith(BY_ONE):
            return one
        small = one or small
    return small


def _first(parts: Iterable[tuple[Any, Any, str, bool]]) -> str | None:
    return worst(difference(*part) for part in parts)


def _tensors(theirs: torch.Tensor, ours: torch.Tensor, place: str, values: bool) -> str | None:
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
        return f"{place}: {_kind(ours)}, not {_kind(theirs)}"
    if not values:
        return None
    unlike = theirs != ours
    if theirs.is_floating_point():
        unlike &= ~(theirs.isnan() & ours.isnan())
    count = int(unlike.sum())
    if not count:
        return None
    most = (theirs.double() - ours.double()).abs().max().item()
    by_one = any(abs(most * 255 * std - 1) < 1e-3 for std in (1.0, *STD))
    if theirs.is_floating_point() and by_one and count * 10_000 < theirs.numel():
        return f"{place}: {BY_ONE}"
    return f"{place}: {count:,} of {theirs.numel():,} values differ, by {most:.3g} at most"


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}".replace("torch.", "")
