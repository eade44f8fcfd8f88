"""torchvision v2's operators that draw the size to which an image is resized, for detection. Its ratio stays."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, Optional, Tuple

import numpy as np

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Canvas, Operator, Shape

__all__ = ["OPERATORS", "RandomShortestSize", "ScaleJitter"]

_MOST_SIZES = 64
_f32 = np.float32


def _sides(value: Any) -> Tuple[int, ...]:
    """Check for a list of one or more sides."""
    return tuple(map(checks.side, checks.listed(value, range(1, _MOST_SIZES + 1), f"a list of 1 to {_MOST_SIZES} sides")))


@dataclasses.dataclass(frozen=True)
class ScaleJitter(Operator):
    """Resize so that the image fits into ``target_size``, times a random factor from ``scale_range``."""

    target_size: Tuple[int, int]
    scale_range: Tuple[float, float]
    interpolation: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "target_size": checks.size,
        "scale_range": checks.interval(0.0, 1e6),
        "interpolation": checks.interpolation,
    }

    def out(self, shape: Shape) -> Shape:
        """Left to chance."""
        return Shape(None, shape.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one resize. As in torchvision, the second number of the size bounds the height, and the sizes are float32's."""
        fits = min(self.target_size[1] / canvas.height, self.target_size[0] / canvas.width)
        low, high = self.scale_range
        ratio = _f32(fits) * (_f32(low) + _f32(keyed.uniform()) * _f32(high - low))
        canvas.resize(int(_f32(canvas.height) * ratio), int(_f32(canvas.width) * ratio), self.interpolation)


@dataclasses.dataclass(frozen=True)
class RandomShortestSize(Operator):
    """Resize so that the shorter side has one of the sizes ``min_size``, and the longer one at most ``max_size``."""

    min_size: Tuple[int, ...]
    max_size: Optional[int]
    interpolation: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "min_size": _sides,
        "max_size": checks.optional(checks.side),
        "interpolation": checks.interpolation,
    }

    def out(self, shape: Shape) -> Shape:
        """Left to chance."""
        return Shape(None, shape.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one resize."""
        ratio = self.min_size[keyed.below(len(self.min_size))] / min(canvas.height, canvas.width)
        if self.max_size is not None:
            ratio = min(ratio, self.max_size / max(canvas.height, canvas.width))
        canvas.resize(int(canvas.height * ratio), int(canvas.width * ratio), self.interpolation)


OPERATORS = (ScaleJitter, RandomShortestSize)
"""The operators of this file that a pipeline may name."""
