"""Operators that draw boxes instead of making pixels; the host fills the boxes after its value operators.

Boxes are (top, left, bottom, right) in pixels of the finished image, bottom and right exclusive. Masks are the last operators
of a pipeline, since a crop or flip after a mask would have to move its boxes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Dict, Tuple

from csd_engine.arithmetic import keyed as keyed_numbers
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Box, Canvas, Operator

__all__ = ["OPERATORS", "Cutout", "ErasedBlocks", "Mask", "RandomErasing"]


@dataclasses.dataclass(frozen=True)
class Mask(Operator):
    """Base of the masks. ``slot`` is the mask's first place among the sample's boxes; the parser sets it."""

    slot: int = dataclasses.field(default=0, compare=False)

    @property
    def boxes(self) -> int:
        """The number of boxes that this mask has in each sample."""
        return 1


def _count(value: Any) -> Tuple[int, int]:
    least, most = (checks.integer(1, checks.MAX_HOLES)(v) for v in checks.listed(value, (2,), "[least, most]"))
    if least > most:
        raise ValueError("expected the smaller number first")
    return least, most


@dataclasses.dataclass(frozen=True)
class RandomErasing(Mask):
    """Erase, with probability p, a rectangle of random area (share of the image's) and aspect ratio (height / width)."""

    p: float = 0.5
    scale: Tuple[float, float] = (0.02, 0.33)
    ratio: Tuple[float, float] = (0.3, 3.3)
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "p": checks.probability,
        "scale": checks.interval(0.0, 1.0),
        "ratio": checks.interval(1e-6, 1e6),
    }

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw as torchvision's get_params: after ten failed attempts nothing is erased."""
        if keyed.uniform() < self.p:
            canvas.boxes[self.slot] = self.rectangle(canvas.height, canvas.width, keyed)

    def rectangle(self, height: int, width: int, keyed: Keyed, count: int = 1) -> Box:
        """Draw a box, one of ``count``, for an image of this size; zeros if no attempt fits."""
        low, high = map(keyed_numbers.single_log, self.ratio)
        for _ in range(10):
            area = height * width * keyed.single(*self.scale) / count
            ratio = keyed_numbers.single_exp(keyed.single(low, high))
            h = int(round(math.sqrt(area * ratio)))
            w = int(round(math.sqrt(area / ratio)))
            if h < height and w < width:
                top = keyed.below(height - h + 1)
                left = keyed.below(width - w + 1)
                return top, left, top + h, left + w
        return 0, 0, 0, 0


@dataclasses.dataclass(frozen=True)
class ErasedBlocks(RandomErasing):
    """timm's RandomErasing: with probability p it erases a random number of rectangles, which share the area.

    With ``noise`` a second box follows each rectangle's box. Its four numbers are the seed of the rectangle's noise.
    """

    count: Tuple[int, int] = (1, 1)
    noise: bool = False
    FIELDS: ClassVar[Dict[str, checks.Check]] = {**RandomErasing.FIELDS, "count": _count, "noise": checks.boolean}

    @property
    def boxes(self) -> int:
        """The largest number of rectangles; twice as many with noise."""
        return self.count[1] * (2 if self.noise else 1)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw the chance, the number of rectangles, then each rectangle."""
        if keyed.uniform() >= self.p:
            return
        least, most = self.count
        count = least + keyed.below(most - least + 1)
        for slot in range(self.slot, self.slot + count * (2 if self.noise else 1), 2 if self.noise else 1):
            canvas.boxes[slot] = self.rectangle(canvas.height, canvas.width, keyed, count)
            if self.noise:
                first, second, third, fourth = (keyed.below(1 << 31) for _ in range(4))
                canvas.boxes[slot + 1] = first, second, third, fourth


@dataclasses.dataclass(frozen=True)
class Cutout(Mask):
    """Squares around random points, clipped at the border (DeVries and Taylor, arXiv 1708.04552)."""

    holes: int = 1
    length: int = 16
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "holes": checks.integer(1, checks.MAX_HOLES),
        "length": checks.integer(1, checks.MAX_SIDE),
    }

    @property
    def boxes(self) -> int:
        """One box for each hole."""
        return self.holes

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw as the authors' code: half = length // 2 on each side of a point uniform in the image."""
        half = self.length // 2
        for hole in range(self.holes):
            y = keyed.below(canvas.height)
            x = keyed.below(canvas.width)
            canvas.boxes[self.slot + hole] = (
                max(y - half, 0), max(x - half, 0), min(y + half, canvas.height), min(x + half, canvas.width),
            )


OPERATORS = (RandomErasing, ErasedBlocks, Cutout)
"""The masks that a pipeline may name."""
