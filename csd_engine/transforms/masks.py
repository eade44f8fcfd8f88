"""Operators that draw boxes instead of making pixels; the host fills the boxes after its value operators.

Boxes are (top, left, bottom, right) in pixels of the finished image, bottom and right exclusive. They are the last
operators of a pipeline: a crop or flip behind one would have to move its boxes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Dict, Tuple

from csd_engine import keyed as keyed_numbers
from csd_engine.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Box, Canvas, Operator

__all__ = ["Cutout", "Mask", "RandomErasing"]


@dataclasses.dataclass(frozen=True)
class Mask(Operator):
    """Base of the masks; ``slot`` is the first of its places among the sample's boxes, set by the parser."""

    slot: int = dataclasses.field(default=0, compare=False)

    @property
    def boxes(self) -> int:
        """Boxes that this mask has a sample."""
        return 1


@dataclasses.dataclass(frozen=True)
class RandomErasing(Mask):
    """With probability p a rectangle of random area (share of the image's) and aspect ratio (height / width)."""

    p: float = 0.5
    scale: Tuple[float, float] = (0.02, 0.33)
    ratio: Tuple[float, float] = (0.3, 3.3)
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "p": checks.probability,
        "scale": checks.interval(0.0, 1.0),
        "ratio": checks.interval(1e-6, 1e6),
    }

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """torchvision's get_params: ten attempts, then nothing is erased."""
        if keyed.uniform() < self.p:
            canvas.boxes[self.slot] = self.rectangle(canvas.height, canvas.width, keyed)

    def rectangle(self, height: int, width: int, keyed: Keyed) -> Box:
        """Draw a box for an image of this size; zeros if no attempt fits."""
        low, high = keyed_numbers.log(self.ratio[0]), keyed_numbers.log(self.ratio[1])
        for _ in range(10):
            area = height * width * keyed.uniform(*self.scale)
            ratio = keyed_numbers.exp(keyed.uniform(low, high))
            h = int(round(math.sqrt(area * ratio)))
            w = int(round(math.sqrt(area / ratio)))
            if h < height and w < width:
                top = keyed.below(height - h + 1)
                left = keyed.below(width - w + 1)
                return top, left, top + h, left + w
        return 0, 0, 0, 0


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
        """One a hole."""
        return self.holes

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """The authors' code: half = length // 2 on each side of a point uniform in the image."""
        half = self.length // 2
        for hole in range(self.holes):
            y = keyed.below(canvas.height)
            x = keyed.below(canvas.width)
            canvas.boxes[self.slot + hole] = (
                max(y - half, 0), max(x - half, 0), min(y + half, canvas.height), min(x + half, canvas.width),
            )
