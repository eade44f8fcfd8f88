"""The steps that change colours and sharpness of a whole image: Pillow's ImageEnhance and ImageOps, and two of torchvision's.

torchvision's functions of the same names call Pillow's on PIL images, so the bits are the same. Steps with ``pixels``, one of
`torch_pixels.PIXELS`, can do as torchvision does to tensors, too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Optional, Tuple

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from csd_engine.arithmetic import keyed as keyed_numbers
from csd_engine.kernels.steps import KernelStep, StepKind
from csd_engine.transforms import torch_pixels
from csd_engine.transforms.primitives import Primitive, array_of, border_indices, image_of
from csd_engine.transforms.torch_pixels import KERNEL_NUMBERS, PILLOW

__all__ = [
    "AutoContrast", "Blur", "BoxesBlur", "Enhance", "Equalize", "Hue", "Table", "TorchHue", "brightened_below", "inverted",
    "posterized", "solarized",
]  # fmt: skip

_ENHANCE = {
    "brightness": (ImageEnhance.Brightness, StepKind.BRIGHTNESS),
    "contrast": (ImageEnhance.Contrast, StepKind.CONTRAST),
    "saturation": (ImageEnhance.Color, StepKind.SATURATION),
    "sharpness": (ImageEnhance.Sharpness, StepKind.SHARPNESS),
}


@dataclasses.dataclass(frozen=True)
class Enhance(Primitive):
    """Pillow's ImageEnhance: ``what`` is "brightness", "contrast", "saturation" or "sharpness"; 1.0 changes nothing."""

    what: str
    factor: float
    pixels: str = PILLOW

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        if self.pixels != PILLOW:
            return image_of(torch_pixels.enhanced(array_of(image), self.what, self.factor, self.pixels))
        return _ENHANCE[self.what][0](image).enhance(self.factor)

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(_ENHANCE[self.what][1], (self.factor, KERNEL_NUMBERS[self.pixels]))


@dataclasses.dataclass(frozen=True)
class Hue(Primitive):
    """Turn the hue by ``shift`` / 255 of a turn, 0 to 255. A grey image has no hue and stays as it is."""

    shift: int

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        if image.mode == "L":
            return image
        hue, saturation, value = image.convert("HSV").split()
        turned = Image.fromarray(np.asarray(hue) + np.uint8(self.shift))
        return Image.merge("HSV", (turned, saturation, value)).convert("RGB")

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.HUE, (self.shift,))


@dataclasses.dataclass(frozen=True)
class TorchHue(Primitive):
    """Turn the hue by ``factor`` of a turn, -0.5 to 0.5, with torch's pixels. A grey image stays as it is."""

    factor: float
    pixels: str

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return image if image.mode == "L" else image_of(torch_pixels.hue_turned(array_of(image), self.factor, self.pixels))

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.HUE, (self.factor, KERNEL_NUMBERS[self.pixels]))


@dataclasses.dataclass(frozen=True)
class Table(Primitive):
    """Replace each value by ``values[value]``; 256 bytes, for all channels."""

    values: bytes

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return image.point(list(self.values) * len(image.getbands()))

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.TABLE, (), np.frombuffer(self.values, np.uint8))


@functools.lru_cache(maxsize=16)
def posterized(bits: int) -> Table:
    """ImageOps.posterize: keep the upper bits, 0 to 8 of them."""
    return Table(bytes(value & ~(2 ** (8 - bits) - 1) & 255 for value in range(256)))


@functools.lru_cache(maxsize=1024)
def solarized(threshold: float) -> Table:
    """ImageOps.solarize: invert the values from the threshold on."""
    return Table(bytes(value if value < threshold else 255 - value for value in range(256)))


@functools.lru_cache(maxsize=1024)
def brightened_below(threshold: int, add: int) -> Table:
    """timm's SolarizeAdd: add to the values below the threshold, up to 255."""
    return Table(bytes(min(value + add, 255) if value < threshold else value for value in range(256)))


@functools.lru_cache(maxsize=1)
def inverted() -> Table:
    """ImageOps.invert."""
    return Table(bytes(range(255, -1, -1)))


@dataclasses.dataclass(frozen=True)
class AutoContrast(Primitive):
    """ImageOps.autocontrast: stretch each channel to 0 .. 255."""

    pixels: str = PILLOW

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        if self.pixels != PILLOW:
            return image_of(torch_pixels.auto_contrast(array_of(image), self.pixels))
        return ImageOps.autocontrast(image)

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.AUTOCONTRAST, (KERNEL_NUMBERS[self.pixels],))


@dataclasses.dataclass(frozen=True)
class Equalize(Primitive):
    """ImageOps.equalize: make each channel's histogram even."""

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return ImageOps.equalize(image)

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        return KernelStep(StepKind.EQUALIZE)


@functools.lru_cache(maxsize=1024)
def _weights(taps: int, sigma: float) -> np.ndarray:
    """float32 (taps,): a Gaussian at whole pixels around the middle, with the sum 1."""
    weights = [keyed_numbers.exp(-0.5 * ((k - taps // 2) / sigma) ** 2) for k in range(taps)]
    total = sum(weights)
    gaussian = np.array([weight / total if weight > total * 1e-30 else 0.0 for weight in weights], dtype=np.float32)
    gaussian.flags.writeable = False
    return gaussian


@dataclasses.dataclass(frozen=True)
class Blur(Primitive):
    """A Gaussian blur of ``size`` taps (width, height; odd) and standard deviations ``sigma`` (across, down), in pixels.

    Borders are reflected, as in torchvision. Sums are float32, in the order of `_line`.
    """

    size: Tuple[int, int]
    sigma: Tuple[float, float]

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        pixels = np.asarray(image).astype(np.float32)
        for axis, taps, sigma in ((1, self.size[0], self.sigma[0]), (0, self.size[1], self.sigma[1])):
            pixels = _line(pixels, axis, _weights(taps, sigma))
        return Image.fromarray(np.minimum(np.rint(pixels), np.float32(255)).astype(np.uint8))

    def for_kernel(self, order: str) -> Optional[KernelStep]:
        """See `Primitive`."""
        weights = np.concatenate([_weights(taps, sigma) for taps, sigma in zip(self.size, self.sigma)])
        return KernelStep(StepKind.BLUR, self.size, weights)


@dataclasses.dataclass(frozen=True)
class BoxesBlur(Primitive):
    """Pillow's own ImageFilter.GaussianBlur: three box blurs; ``radius`` in pixels."""

    radius: float

    def by_pillow(self, image: Image.Image, order: str) -> Image.Image:
        """See `Primitive`."""
        return image.filter(ImageFilter.GaussianBlur(self.radius))


def _line(pixels: np.ndarray, axis: int, weights: np.ndarray) -> np.ndarray:
    """One pass along an axis. It adds the middle tap first, then pairs of taps from the inside out."""
    radius, length = len(weights) // 2, pixels.shape[axis]
    padded = np.take(pixels, border_indices(length, radius, radius, "reflect"), axis=axis)

    def part(tap: int) -> np.ndarray:
        return np.take(padded, np.arange(tap, tap + length), axis=axis)

    total: np.ndarray = weights[radius] * part(radius)
    for k in range(1, radius + 1):
        total = total + weights[radius + k] * (part(radius - k) + part(radius + k))
    return total
