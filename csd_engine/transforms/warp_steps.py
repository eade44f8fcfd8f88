"""The steps that move pixels by a matrix: Pillow's Image.transform, its quarter turns, and torch's sampling of a grid."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np
from PIL import Image

from csd_engine.kernels.steps import KernelStep, StepKind
from csd_engine.transforms import resample, torch_pixels
from csd_engine.transforms.primitives import Primitive, array_of, image_of

__all__ = ["WARP_FILTERS", "GridWarp", "Turn", "Warp"]

WARP_FILTERS = ("nearest", "bilinear", "bicubic")  # the filters that Image.transform takes
_AFFINE, _PERSPECTIVE = 0, 2  # Image.Transform's numbers; the enum came only with Pillow 9.1


@dataclasses.dataclass(frozen=True)
class Turn(Primitive):
    """Turn by 90 degrees ``quarters`` times, 1 to 3, against the clock."""

    quarters: int

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return image.transpose(self.quarters + 1)  # type: ignore[arg-type]  # ROTATE_90, ROTATE_180, ROTATE_270

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.TURN, (self.quarters,))


@dataclasses.dataclass(frozen=True)
class Warp(Primitive):
    """Pillow's Image.transform to an image of (width, height).

    Attributes:
        coefficients: 6 of an affine map or 8 of a perspective one, from the result's pixels to the source's.
        interpolation: one of `WARP_FILTERS`.
        fill: the colour of pixels outside the source, one value 0..255 a channel.
    """

    width: int
    height: int
    coefficients: Tuple[float, ...]
    interpolation: str
    fill: Tuple[int, ...]

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        method = _AFFINE if len(self.coefficients) == 6 else _PERSPECTIVE
        colour = self.fill if len(self.fill) > 1 else self.fill[0]
        return image.transform(
            (self.width, self.height), method, self.coefficients, resample.FILTERS[self.interpolation], fillcolor=colour  # type: ignore[arg-type]
        )

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        kind = StepKind.AFFINE if len(self.coefficients) == 6 else StepKind.PERSPECTIVE
        colour = (*self.fill, 0, 0)[:3]
        return KernelStep(kind, (self.width, self.height, resample.FILTERS[self.interpolation], *colour, *self.coefficients))


@dataclasses.dataclass(frozen=True)
class GridWarp(Primitive):
    """torchvision's map of a tensor; the size stays.

    Attributes:
        matrix: 6 numbers of an affine map, from the result's pixels to the source's, both counted from the middle.
        interpolation: one of `torch_pixels.GRID_FILTERS`.
        fill: one value 0..255 a channel; None: nothing is mixed in.
        pixels: whose, see `torch_pixels.PIXELS`.
    """

    matrix: Tuple[float, ...]
    interpolation: str
    fill: Optional[Tuple[int, ...]]
    pixels: str

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        warped = torch_pixels.sampled(array_of(image), self.matrix, self.interpolation, self.fill, self.pixels)
        return image_of(np.rint(warped).astype(np.uint8))

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        whose, filter_number = torch_pixels.KERNEL_NUMBERS[self.pixels], torch_pixels.GRID_FILTERS.index(self.interpolation)
        colour = (*(self.fill or ()), 0, 0, 0)[:3]
        return KernelStep(StepKind.GRID, (whose, filter_number, self.fill is not None, *colour, *self.matrix))
