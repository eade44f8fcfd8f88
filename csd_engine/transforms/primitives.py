"""The deterministic steps that a drawn pipeline consists of, and how Pillow and numpy carry each out.

A plan is a flat tuple of these, so that a kernel can take the first ones (crop, resize, crop, flip) in one call.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Tuple, Union

import numpy as np
from PIL import Image

from csd_engine.transforms import resample

__all__ = ["Crop", "Flip", "Gray", "Pad", "Primitive", "Resize", "UserCall", "apply_primitive"]

_FLIP_LEFT_RIGHT = 0  # Image.Transpose's numbers; the enum came only with Pillow 9.1
_FLIP_TOP_BOTTOM = 1


@dataclasses.dataclass(frozen=True)
class Crop:
    """Keep the rectangle (pixels), which lies inside the image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def box(self) -> Tuple[int, int, int, int]:
        """(left, top, right, bottom), as Pillow wants it."""
        return (self.left, self.top, self.left + self.width, self.top + self.height)


@dataclasses.dataclass(frozen=True)
class Resize:
    """Resample to (height, width) pixels; ``interpolation`` is a key of ``resample.FILTERS``."""

    height: int
    width: int
    interpolation: str


@dataclasses.dataclass(frozen=True)
class Flip:
    """Mirror left-right if ``horizontal``, else top-bottom."""

    horizontal: bool


@dataclasses.dataclass(frozen=True)
class Pad:
    """Add borders of so many pixels; ``fill`` holds one value 0..255 a channel, used by the mode ``"constant"``."""

    left: int
    top: int
    right: int
    bottom: int
    fill: Tuple[int, ...]
    padding_mode: str


@dataclasses.dataclass(frozen=True)
class Gray:
    """Luma as Pillow's convert("L") computes it, in one channel or repeated in three."""

    channels: int


@dataclasses.dataclass(frozen=True)
class UserCall:
    """Run a function of the user's, which must give an image of ``size`` (height, width); ``key`` is for its draws."""

    call: Callable[[Image.Image, int, Tuple[int, int]], Image.Image]
    key: int
    size: Tuple[int, int]


Primitive = Union[Crop, Resize, Flip, Pad, Gray, UserCall]


def apply_primitive(image: Image.Image, step: Primitive, order: str) -> Image.Image:
    """Image (mode "RGB" or "L") after one step; ``order`` is the pipeline's order of resampling passes."""
    if isinstance(step, Crop):
        return image.crop(step.box)
    if isinstance(step, Resize):
        return resample.resize(image, step.width, step.height, step.interpolation, order)
    if isinstance(step, Flip):
        return image.transpose(_FLIP_LEFT_RIGHT if step.horizontal else _FLIP_TOP_BOTTOM)  # type: ignore[arg-type]
    if isinstance(step, Pad):
        return _pad(image, step)
    if isinstance(step, UserCall):
        return step.call(image, step.key, step.size)
    luma = image.convert("L")
    return luma if step.channels == 1 else Image.merge("RGB", (luma, luma, luma))


def _pad(image: Image.Image, step: Pad) -> Image.Image:
    width, height = image.size
    if step.padding_mode == "constant":
        color = step.fill if len(step.fill) > 1 else step.fill[0]
        padded = Image.new(image.mode, (step.left + width + step.right, step.top + height + step.bottom), color)
        padded.paste(image, (step.left, step.top))
        return padded
    rows = border_indices(height, step.top, step.bottom, step.padding_mode)
    columns = border_indices(width, step.left, step.right, step.padding_mode)
    return Image.fromarray(np.ascontiguousarray(np.asarray(image)[rows][:, columns]))


def border_indices(length: int, before: int, after: int, padding_mode: str) -> np.ndarray:
    """Source positions of a padded axis. np.pad's repeated reflections changed between numpy's versions."""
    positions = np.arange(-before, length + after)
    if padding_mode == "edge" or length == 1:
        return np.clip(positions, 0, length - 1)
    if padding_mode == "reflect":
        period = 2 * (length - 1)
        return (length - 1) - np.abs(positions % period - (length - 1))
    folded = positions % (2 * length)
    return np.minimum(folded, 2 * length - 1 - folded)

