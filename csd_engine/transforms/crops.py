"""torchvision's FiveCrop and TenCrop: several crops of one image, which travel one below the other as one image."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, Optional, Tuple

from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import SizeRefused
from csd_engine.kernels.steps import KernelStep, StepKind
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Operator, Shape
from csd_engine.transforms.primitives import Crop, Flip, Primitive

__all__ = ["OPERATORS", "Crops", "FiveCrop", "TenCrop"]


@dataclasses.dataclass(frozen=True)
class Crops(Primitive):
    """Keep the corners and the middle, each of (height, width), one below the other: top left and right, bottom left and
    right, middle. ``left`` and ``top`` are the middle's. ``mirror``: None, or the `Flip` of the image for five more crops.
    """

    height: int
    width: int
    left: int
    top: int
    mirror: Optional[Flip]

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        right, bottom = image.width - self.width, image.height - self.height
        places = ((0, 0), (right, 0), (0, bottom), (right, bottom), (self.left, self.top))
        images = [image] if self.mirror is None else [image, self.mirror.by_pillow(image, order)]
        stack = Image.new(image.mode, (self.width, self.height * len(places) * len(images)))
        crops = [Crop(top, left, self.height, self.width).by_pillow(source, order) for source in images for left, top in places]
        for number, crop in enumerate(crops):
            stack.paste(crop, (0, number * self.height))
        return stack

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        mirrored = 0 if self.mirror is None else 1 if self.mirror.horizontal else 2
        return KernelStep(StepKind.CROPS, (self.height, self.width, self.left, self.top, mirrored))


@dataclasses.dataclass(frozen=True)
class FiveCrop(Operator):
    """The four corners and the middle, each of ``size`` (height, width), one below the other."""

    size: Tuple[int, int]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"size": checks.size}
    COUNT: ClassVar[int] = 5

    def validate(self) -> None:
        """Raise ValueError if all crops together are larger than an image may be."""
        checks.size([self.COUNT * self.size[0], self.size[1]])

    def out(self, shape: Shape) -> Shape:
        """All crops."""
        return Shape((self.COUNT * self.size[0], self.size[1]), shape.channels)

    def draw(self, canvas: Any, keyed: Optional[Keyed]) -> None:
        """Add one step. SizeRefused if the image is smaller than a crop."""
        height, width = self.size
        down, across = canvas.height - height, canvas.width - width
        if down < 0 or across < 0:
            raise SizeRefused(f"Requested crop size {self.size} is bigger than input size {(canvas.height, canvas.width)} "
                               f"(height, width): {type(self).__name__} can't be made of it; resize first")
        canvas.resized(self.COUNT * height, width)
        canvas.add(Crops(height, width, int(round(across / 2.0)), int(round(down / 2.0)), self.mirror()))

    def mirror(self) -> Optional[Flip]:
        """How the image is mirrored for more crops."""
        return None


@dataclasses.dataclass(frozen=True)
class TenCrop(FiveCrop):
    """The same, then those of the image mirrored left-right, or top-bottom if ``vertical_flip``."""

    vertical_flip: bool
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"size": checks.size, "vertical_flip": checks.boolean}
    COUNT: ClassVar[int] = 10

    def mirror(self) -> Optional[Flip]:
        """See `FiveCrop`."""
        return Flip(horizontal=not self.vertical_flip)


OPERATORS = (FiveCrop, TenCrop)
"""The operators of this file that a pipeline may name."""
