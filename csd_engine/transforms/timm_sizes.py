"""timm's operators that bring images to a size: its resize that keeps the ratio, and its crops that pad."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Dict, Optional, Tuple

from csd_engine.arithmetic import keyed as keyed_numbers
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Canvas, Operator, Shape

__all__ = ["OPERATORS"]

_factors = checks.interval(1e-6, 1e6)


@dataclasses.dataclass(frozen=True)
class ResizeKeepRatio(Operator):
    """Resize so that one side fits the size and the ratio stays, then scale by chance.

    With ``longest`` 0 the side fits that is smaller relative to its size; with 1 the larger one. In between both count.

    Attributes:
        scale_p, scale, scale_area: the chance of a random factor, its interval, and whether it is the inverse factor of the
            area.
        aspect_p, aspect: the chance of a random change of the aspect ratio, and its interval.
    """

    size: Tuple[int, int]
    longest: float
    interpolation: str
    scale_p: float
    scale: Tuple[float, float]
    scale_area: bool
    aspect_p: float
    aspect: Tuple[float, float]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "size": checks.size,
        "longest": checks.probability,
        "interpolation": checks.interpolation,
        "scale_p": checks.probability,
        "scale": _factors,
        "scale_area": checks.boolean,
        "aspect_p": checks.probability,
        "aspect": _factors,
    }

    def out(self, shape: Shape) -> Shape:
        """Known if the source's size is known, and nothing is left to chance."""
        if shape.size is None or self.scale_p > 0.0 or self.aspect_p > 0.0:
            return Shape(None, shape.channels)
        return Shape(self.target(*shape.size, 1.0, 1.0), shape.channels)

    def target(self, height: int, width: int, factor_y: float, factor_x: float) -> Tuple[int, int]:
        """Output's (height, width)."""
        down, across = height / self.size[0], width / self.size[1]
        ratio = max(down, across) * self.longest + min(down, across) * (1.0 - self.longest)
        return round(height * factor_y / ratio), round(width * factor_x / ratio)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw both chances, then add one resize."""
        factor_y = factor_x = 1.0
        if self.scale_p > 0.0 and keyed.uniform() < self.scale_p:
            factor = keyed.uniform(*self.scale)
            factor_y = factor_x = 1.0 / math.sqrt(factor) if self.scale_area else factor
        if self.aspect_p > 0.0 and keyed.uniform() < self.aspect_p:
            low, high = (keyed_numbers.log(bound) for bound in self.aspect)
            change = math.sqrt(keyed_numbers.exp(keyed.uniform(low, high)))
            factor_y, factor_x = factor_y / change, factor_x * change
        canvas.resize(*self.target(canvas.height, canvas.width, factor_y, factor_x), self.interpolation)


@dataclasses.dataclass(frozen=True)
class _CropOrPad(Operator):
    """Base of both crops: a size, and borders if the image is smaller."""

    size: Tuple[int, int]
    fill: Tuple[int, ...]
    padding_mode: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "size": checks.size,
        "fill": checks.fill,
        "padding_mode": checks.padding_mode,
    }

    def out(self, shape: Shape) -> Shape:
        """The given size."""
        return Shape(self.size, shape.channels)


@dataclasses.dataclass(frozen=True)
class CenterCropOrPad(_CropOrPad):
    """Keep the middle of the image, with borders of any kind if the image is smaller."""

    def draw(self, canvas: Any, keyed: Optional[Keyed]) -> None:
        """Do as CenterCrop."""
        height, width = self.size
        down, across = max(height - canvas.height, 0), max(width - canvas.width, 0)
        canvas.pad(across // 2, down // 2, (across + 1) // 2, (down + 1) // 2, self.fill, self.padding_mode)
        canvas.crop(round((canvas.height - height) / 2.0), round((canvas.width - width) / 2.0), height, width)


@dataclasses.dataclass(frozen=True)
class RandomCropOrPad(_CropOrPad):
    """For each side, crop at a random place, or put a smaller image at a random place within borders."""

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw the place of the rows, then that of the columns."""
        height, width = self.size
        down, across = height - canvas.height, width - canvas.width
        top, left = keyed.below(abs(down) + 1), keyed.below(abs(across) + 1)
        above, before = (top if down > 0 else 0), (left if across > 0 else 0)
        canvas.pad(before, above, max(across, 0) - before, max(down, 0) - above, self.fill, self.padding_mode)
        canvas.crop(0 if down > 0 else top, 0 if across > 0 else left, height, width)


OPERATORS = (ResizeKeepRatio, CenterCropOrPad, RandomCropOrPad)
"""The operators that a pipeline may name."""
