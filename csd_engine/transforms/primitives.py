"""The deterministic steps of a drawn pipeline: how Pillow runs each one, and in which form the kernel gets it.

A plan is a flat tuple of these steps. The kernel runs the first ones (crop, resize, crop, flip) while it decodes, in one call.
A second call runs the others on the small image that results.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, List, Optional, Tuple

import numpy as np
from PIL import Image

from csd_engine.kernels.steps import KernelStep, StepKind
from csd_engine.transforms import resample, torch_pixels
from csd_engine.transforms.torch_resample import TORCH_FILTERS

__all__ = [
    "CHANNELS", "Crop", "Flip", "Gray", "Pad", "Primitive", "Resize", "UserCall", "apply_primitive", "array_of", "image_of",
    "is_torchs", "kernel_steps",
]  # fmt: skip

CHANNELS = {"RGB": 3, "L": 1}  # of the modes that images here have
_FLIP_LEFT_RIGHT = 0  # Image.Transpose's numbers; the enum came only with Pillow 9.1
_FLIP_TOP_BOTTOM = 1
_PAD_MODES = ("constant", "edge", "reflect", "symmetric")  # PAD_ of the kernel's src/steps/steps.h, in its order


class Primitive:
    """Base class of the steps. A step changes the pixels of an image of mode "RGB" or "L"."""

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """Return the image after this step, by Pillow and numpy: the step's definition.

        Args:
            image: of mode "RGB" or "L".
            order: of the resampling passes, `Pipeline.order`.
        """
        raise NotImplementedError

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """Return the step in the kernel's form; the kernel gives the same bits. None: the kernel can't do it."""
        return None


@dataclasses.dataclass(frozen=True)
class Crop(Primitive):
    """Keep a rectangle, in pixels, that lies inside the image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def box(self) -> Tuple[int, int, int, int]:
        """(left, top, right, bottom), the form that Pillow takes."""
        return (self.left, self.top, self.left + self.width, self.top + self.height)

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return image.crop(self.box)

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.CROP, (self.left, self.top, self.width, self.height))


@dataclasses.dataclass(frozen=True)
class Resize(Primitive):
    """Resample to (height, width) pixels; ``interpolation`` is a key of ``resample.FILTERS``."""

    height: int
    width: int
    interpolation: str

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return resample.resize(image, self.width, self.height, self.interpolation, order)

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        number = resample.RESAMPLED.get(self.interpolation)
        return None if number is None else KernelStep(StepKind.RESIZE, (self.height, self.width, number, order == "pillow13"))


@dataclasses.dataclass(frozen=True)
class Flip(Primitive):
    """Mirror left-right if ``horizontal``, else top-bottom."""

    horizontal: bool

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return image.transpose(_FLIP_LEFT_RIGHT if self.horizontal else _FLIP_TOP_BOTTOM)  # type: ignore[arg-type]

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.MIRROR, (self.horizontal,))


@dataclasses.dataclass(frozen=True)
class Pad(Primitive):
    """Add borders, in pixels. ``fill`` holds one value 0..255 a channel; only the mode ``"constant"`` uses it."""

    left: int
    top: int
    right: int
    bottom: int
    fill: Tuple[int, ...]
    padding_mode: str

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        width, height = image.size
        if self.padding_mode == "constant":
            color = self.fill if len(self.fill) > 1 else self.fill[0]
            padded = Image.new(image.mode, (self.left + width + self.right, self.top + height + self.bottom), color)
            padded.paste(image, (self.left, self.top))
            return padded
        rows = border_indices(height, self.top, self.bottom, self.padding_mode)
        columns = border_indices(width, self.left, self.right, self.padding_mode)
        return Image.fromarray(np.ascontiguousarray(np.asarray(image)[rows][:, columns]))

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        borders = (self.left, self.top, self.right, self.bottom)
        return KernelStep(StepKind.PAD, (*borders, _PAD_MODES.index(self.padding_mode), *self.fill))


@dataclasses.dataclass(frozen=True)
class Gray(Primitive):
    """Luma as Pillow's convert("L") computes it, in one channel or repeated in three; or torch's, see `torch_pixels.PIXELS`."""

    channels: int
    pixels: str = torch_pixels.PILLOW

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        if self.pixels == torch_pixels.PILLOW or image.mode == "L":
            luma = image.convert("L")
        else:
            luma = Image.fromarray(torch_pixels.grey(np.asarray(image), self.pixels))
        return luma if self.channels == 1 else Image.merge("RGB", (luma, luma, luma))

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.GRAY, (self.channels, torch_pixels.KERNEL_NUMBERS[self.pixels]))


@dataclasses.dataclass(frozen=True)
class UserCall(Primitive):
    """Run a user's function, which must return an image of ``size`` (height, width). ``key`` is the seed of its draws."""

    call: Callable[[Image.Image, int, Tuple[int, int]], Image.Image]
    key: int
    size: Tuple[int, int]

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return self.call(image, self.key, self.size)


def apply_primitive(image: Image.Image, step: Primitive, order: str) -> Image.Image:
    """Image (mode "RGB" or "L") after one step; ``order`` is the pipeline's order of resampling passes."""
    return step.by_pillow(image, order)


def array_of(image: Image.Image) -> np.ndarray:
    """uint8 (height, width, channels) of an image of mode "RGB" or "L"."""
    return np.asarray(image).reshape(image.height, image.width, -1)


def image_of(array: np.ndarray) -> Image.Image:
    """An image of mode "RGB" or "L" with these uint8 (height, width, channels)."""
    return Image.fromarray(array if array.shape[2] == 3 else array[..., 0])


def is_torchs(step: Primitive) -> bool:
    """Whether a step has torch's pixels. Without the kernel numpy makes them, which takes several times as long as torch."""
    whose, filter_name = getattr(step, "pixels", torch_pixels.PILLOW), getattr(step, "interpolation", "")
    return whose != torch_pixels.PILLOW or filter_name in TORCH_FILTERS


def kernel_steps(steps: Tuple[Primitive, ...], order: str) -> Optional[List[KernelStep]]:
    """The steps in the kernel's form; None if it can't do one of them."""
    forms = []
    for step in steps:
        form = step.for_kernel(order)
        if form is None:
            return None
        forms.append(form)
    return forms


def border_indices(length: int, before: int, after: int, padding_mode: str) -> np.ndarray:
    """Source positions of a padded axis. np.pad is not used: its repeated reflections changed between numpy's versions."""
    positions = np.arange(-before, length + after)
    if padding_mode == "edge" or length == 1:
        return np.clip(positions, 0, length - 1)
    if padding_mode == "reflect":
        period = 2 * (length - 1)
        return (length - 1) - np.abs(positions % period - (length - 1))
    folded = positions % (2 * length)
    return np.minimum(folded, 2 * length - 1 - folded)

