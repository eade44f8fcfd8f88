"""The operators that change colours or sharpness, but move no pixels.

torchvision's RandomPosterize, RandomInvert and the like are these operators inside a RandomApply.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Dict, List, Optional, Tuple

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import BlurRefused
from csd_engine.transforms import checks
from csd_engine.transforms import colour_steps as steps
from csd_engine.transforms.operators import Canvas, Operator
from csd_engine.transforms.primitives import Primitive
from csd_engine.transforms.torch_pixels import PILLOW

__all__ = ["OPERATORS"]

_STRONGEST = 1e6  # bound on factors: no sensible factor is larger
_MOST_TAPS = 255

Interval = Optional[Tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class ColorJitter(Operator):
    """Change brightness, contrast, saturation and hue by random factors, in a random order; None leaves one out."""

    brightness: Interval
    contrast: Interval
    saturation: Interval
    hue: Interval
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        **{name: checks.optional(checks.interval(0.0, _STRONGEST)) for name in ("brightness", "contrast", "saturation")},
        "hue": checks.optional(checks.interval(-0.5, 0.5)),
    }
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw the order first, then the factors, as torchvision's get_params does."""
        order = keyed.permutation(4)
        changes: List[Optional[Primitive]] = []
        for name, factors in (("brightness", self.brightness), ("contrast", self.contrast), ("saturation", self.saturation)):
            changes.append(None if factors is None else steps.Enhance(name, keyed.single(*factors), self.pixels))
        changes.append(None if self.hue is None else self._turned(keyed.single(*self.hue)))
        for number in order:
            step = changes[number]
            if step is not None:
                canvas.add(step)

    def _turned(self, hue: float) -> Primitive:
        return steps.Hue(int(hue * 255) & 255) if self.pixels == PILLOW else steps.TorchHue(hue, self.pixels)


@dataclasses.dataclass(frozen=True)
class Sharpness(Operator):
    """Sharpen the image by a factor above 1, or blur it by a factor below 1."""

    factor: float
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"factor": checks.number(0.0, _STRONGEST)}
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step."""
        canvas.add(steps.Enhance("sharpness", self.factor, self.pixels))


@dataclasses.dataclass(frozen=True)
class Posterize(Operator):
    """Keep the upper bits of each value."""

    bits: int
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"bits": checks.integer(0, 8)}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step."""
        canvas.add(steps.posterized(self.bits))


@dataclasses.dataclass(frozen=True)
class Solarize(Operator):
    """Invert the values from the threshold on."""

    threshold: float
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"threshold": checks.number(-_STRONGEST, _STRONGEST)}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step."""
        canvas.add(steps.solarized(self.threshold))


@dataclasses.dataclass(frozen=True)
class Invert(Operator):
    """Invert all values."""

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step."""
        canvas.add(steps.inverted())


@dataclasses.dataclass(frozen=True)
class AutoContrast(Operator):
    """Stretch each channel to 0 .. 255."""

    pixels: str = PILLOW
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step."""
        canvas.add(steps.AutoContrast(self.pixels))


@dataclasses.dataclass(frozen=True)
class Equalize(Operator):
    """Make each channel's histogram even."""

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step."""
        canvas.add(steps.Equalize())


def _taps(value: object) -> Tuple[int, ...]:
    taps: Tuple[int, ...] = tuple(checks.integer(1, _MOST_TAPS)(v) for v in checks.listed(value, (2,), "[width, height]"))
    if any(number % 2 == 0 for number in taps):
        raise ValueError("expected odd numbers of taps")
    return taps


@dataclasses.dataclass(frozen=True)
class GaussianBlur(Operator):
    """A Gaussian blur with (width, height) taps and a random standard deviation, in pixels."""

    kernel_size: Tuple[int, int]
    sigma: Tuple[float, float]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"kernel_size": _taps, "sigma": checks.interval(1e-3, 1e3)}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one step. BlurRefused if the image is smaller than the border to reflect."""
        sigma = keyed.single(*self.sigma)
        for dimension, taps, side in ((3, self.kernel_size[0], canvas.width), (2, self.kernel_size[1], canvas.height)):
            if taps // 2 >= side:
                raise BlurRefused("Padding size should be less than the corresponding input dimension, but got: padding "
                                  f"{(taps // 2, taps // 2)} at dimension {dimension} of input "
                                  f"{[1, canvas.channels, canvas.height, canvas.width]}: GaussianBlur with kernel_size="
                                  f"{list(self.kernel_size)!r} (width, height) can't be made of it; resize first, or choose a "
                                  "smaller kernel")
        canvas.add(steps.Blur(self.kernel_size, (sigma, sigma)))


OPERATORS = (ColorJitter, Sharpness, Posterize, Solarize, Invert, AutoContrast, Equalize, GaussianBlur)
"""The operators that a pipeline may name."""
