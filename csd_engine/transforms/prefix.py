"""Cuts a pipeline after the operators that do the same every time, so that their result can be kept and used again."""

from __future__ import annotations

import dataclasses
from typing import Iterable, NamedTuple, Optional, Tuple

from csd_engine.transforms.containers import group_out, leaves
from csd_engine.transforms.operators import CenterCrop, Grayscale, Operator, Pad, RandomResizedCrop, Resize, Shape
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import CHANNELS

__all__ = ["CachePoint", "cache_point", "draw_nothing"]

_DRAW_NOTHING = (Resize, CenterCrop, Pad, Grayscale)  # FiveCrop and TenCrop too, but they make rows five or ten times as large
_REDUCED_FOR = (Resize, RandomResizedCrop)  # decode="fast" looks at these to choose the size at which a JPEG is decoded
_MODES = {channels: mode for mode, channels in CHANNELS.items()}


class CachePoint(NamedTuple):
    """Where a pipeline is cut. The two parts one after the other give the whole pipeline's bits: the first draws no number.

    Attributes:
        before: the operators whose result is kept; there may be none, which leaves the decoded image.
        behind: the others, for that result.
        shape: (height, width, channels) of that result; height and width 0: each image has its own.
    """

    before: Pipeline
    behind: Pipeline
    shape: Tuple[int, int, int]

    @property
    def fixed(self) -> bool:
        """Whether all results have one size."""
        return self.shape[0] > 0

    def __str__(self) -> str:
        names = " -> ".join(str(op["op"]) for op in self.before.to_data()["ops"]) or "decoding"
        return f"pixels after {names}"


def draw_nothing(operators: Iterable[Operator]) -> bool:
    """Return whether these operators do the same every time, whatever the seed: a pipeline can be cut after them."""
    return all(isinstance(operator, _DRAW_NOTHING) for operator in operators)


def cache_point(
    pipeline: Pipeline, size: Optional[Tuple[int, int]], given: Optional[int] = None
) -> Optional[CachePoint]:
    """Return where to cut: as late as all results have one size, else as late as nothing is drawn.

    Args:
        pipeline: any.
        size: (width, height) of all images; None: each has its own.
        given: cut after so many operators, which draw nothing; None: as said above.

    Returns:
        None if its results can't be kept: a user's function could ask for the file's metadata, which pixels don't have; or the
        size at which decode="fast" decodes depends on what is drawn.
    """
    if pipeline.user_operators:
        return None
    start = Shape(None if size is None else (size[1], size[0]), CHANNELS[pipeline.mode])
    drawing = (k for k, operator in enumerate(pipeline.operators) if not isinstance(operator, _DRAW_NOTHING))
    drawn = next(drawing, len(pipeline.operators))
    cuts = range(drawn, 0, -1)
    at = given
    if at is None:
        at = next((k for k in cuts if group_out(pipeline.operators[:k], start).size is not None), drawn)
    before, behind = pipeline.operators[:at], pipeline.operators[at:]
    if pipeline.decode != "exact" and any(isinstance(leaf, _REDUCED_FOR) for leaf in leaves(behind)):
        return None
    shape = group_out(before, start)
    assert shape.channels is not None
    height, width = shape.size or (0, 0)
    return CachePoint(
        dataclasses.replace(pipeline, operators=before, boxes=0),
        dataclasses.replace(pipeline, operators=behind, mode=_MODES[shape.channels], decode="exact"),
        (height, width, shape.channels),
    )
