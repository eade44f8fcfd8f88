"""Errors of torch's default_collate: which sample does not go with the others, and where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from csd_engine.errors import named, quote

__all__ = ["with_place"]


def with_place(error: Exception, targets: Sequence[Any], places: Sequence[str]) -> Exception:
    """Return an error of default_collate with the place and the target of the first sample that does not go.

    It is ``error`` itself if each target goes with the first one.

    Args:
        error: what was raised when the batch was collated.
        targets: of its samples.
        places: where the samples lie.
    """
    for k, target in enumerate(targets):
        try:
            default_collate([targets[0], target] if k else [target])
        except Exception:
            return named(error, f"{places[k]}: its target {quote(target)} can't be joined with those of its batch")
    return error
