"""The operators that make pixels. Each knows its parameters, the shape of its result, and how to draw its steps.

Each operator means what torchvision's operator does to PIL images. If v1 and v2 differ, a comment says which one it follows.
One with ``pixels`` means what it does to tensors, if that is not `torch_pixels.PILLOW`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union

from csd_engine.arithmetic import keyed as keyed_numbers
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError, SizeRefused
from csd_engine.transforms import checks
from csd_engine.transforms import primitives as steps
from csd_engine.transforms.torch_pixels import PILLOW
from csd_engine.transforms.warp_steps import GridWarp, Turn, Warp

__all__ = ["Canvas", "Operator", "Shape", "cut_negative"]

Box = Tuple[int, int, int, int]
_WIDEST = 1e6  # bound on scales and aspect ratios: no sensible value is larger, and squares stay finite


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is known of an image before it is read. None: it depends on the source or on chance."""

    size: Optional[Tuple[int, int]]  # (height, width)
    channels: Optional[int]


def cut_negative(canvas: Any, left: int, top: int, right: int, bottom: int) -> Tuple[int, int, int, int]:
    """Crop a canvas by the negative ones of these borders; return the borders, with 0 for each negative one."""
    if min(left, top, right, bottom) < 0:
        x, y, right_of, below = (max(-border, 0) for border in (left, top, right, bottom))
        canvas.crop(y, x, canvas.height - y - below, canvas.width - x - right_of)
    return max(left, 0), max(top, 0), max(right, 0), max(bottom, 0)


class Canvas:
    """The plan of one sample while it is drawn: the current size and channels, the primitives and the boxes."""

    def __init__(self, height: int, width: int, channels: int, boxes: int) -> None:
        self.height = height
        self.width = width
        self.channels = channels
        self.steps: List[steps.Primitive] = []
        self.boxes: List[Box] = [(0, 0, 0, 0)] * boxes

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Keep a rectangle inside the image; nothing to do if it is the whole image."""
        if (top, left, height, width) != (0, 0, self.height, self.width):
            self.resized(height, width)
            self.steps.append(steps.Crop(top, left, height, width))

    def resize(self, height: int, width: int, interpolation: str) -> None:
        """Resample; nothing to do if the size is right already, as in torchvision."""
        if (height, width) != (self.height, self.width):
            self.resized(height, width)
            self.steps.append(steps.Resize(height, width, interpolation))

    def flip(self, horizontal: bool) -> None:
        """Mirror the image."""
        self.steps.append(steps.Flip(horizontal))

    def pad(self, left: int, top: int, right: int, bottom: int, fill: Tuple[int, ...], padding_mode: str) -> None:
        """Add borders; negative ones crop first, as in torchvision."""
        left, top, right, bottom = cut_negative(self, left, top, right, bottom)
        if max(left, top, right, bottom) > 0:
            values = self.colour(fill, "Pad")
            self.resized(self.height + top + bottom, self.width + left + right)
            self.steps.append(steps.Pad(left, top, right, bottom, values, padding_mode))

    def gray(self, channels: int, pixels: str = PILLOW) -> None:
        """Replace the image by its luma, in this number of channels."""
        if not channels == self.channels == 1:
            self.steps.append(steps.Gray(channels, pixels))
        self.channels = channels

    def warp(self, height: int, width: int, coefficients: Tuple[float, ...], interpolation: str, fill: Tuple[int, ...]) -> None:
        """Move pixels by a matrix to an image of this size; see `warp_steps.Warp`."""
        values = self.colour(fill, "fill of a rotation, affine map or perspective")
        self.resized(height, width)
        self.steps.append(Warp(width, height, coefficients, interpolation, values))

    def warp_by_grid(self, matrix: Tuple[float, ...], interpolation: str, fill: Optional[Tuple[int, ...]], pixels: str) -> None:
        """Move a tensor's pixels by a matrix; see `warp_steps.GridWarp`."""
        values = None if fill is None else self.colour(fill, "fill of a rotation or affine map")
        self.steps.append(GridWarp(matrix, interpolation, values, pixels))

    def turn(self, quarters: int) -> None:
        """Turn by 90 degrees, 1 to 3 times, against the clock."""
        if quarters != 2:
            self.resized(self.width, self.height)
        self.steps.append(Turn(quarters))

    def add(self, step: steps.Primitive) -> None:
        """Add a step that keeps size and channels."""
        self.steps.append(step)

    def colour(self, fill: Tuple[int, ...], what: str) -> Tuple[int, ...]:
        """Return one value for each channel; PipelineError if `fill` has neither one value nor one a channel."""
        if len(fill) not in (1, self.channels):
            raise PipelineError(f"{what}: fill={list(fill)!r} doesn't fit an image of {self.channels} channel(s); "
                                "give one value, or one a channel")
        return fill if len(fill) == self.channels else fill * self.channels

    def resized(self, height: int, width: int) -> None:
        """Set the image's size; SizeRefused if it is out of bounds."""
        if not (0 < height <= checks.MAX_SIDE and 0 < width <= checks.MAX_SIDE and height * width <= checks.MAX_PIXELS):
            side = min(height, width)  # the first two are Pillow's texts
            why = (
                "Width and height must be >= 0" if side < 0 else
                "height and width must be > 0" if side == 0 else "the image would be too large"
            )  # fmt: skip
            raise SizeRefused(f"{why}: one of {self.width}x{self.height} would become {width}x{height} (width x height); sides "
                               f"must be 1 to {checks.MAX_SIDE} and pixels at most {checks.MAX_PIXELS}; leave the image out or "
                               "choose another size in the transform")
        self.height, self.width = height, width


@dataclasses.dataclass(frozen=True)
class Operator:
    """Base of all operators.

    ``FIELDS`` maps each parameter's name to its check. All of these are required. ``OPTIONAL`` ones have a default, which is
    not written.
    """

    FIELDS: ClassVar[Dict[str, checks.Check]] = {}
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {}

    def validate(self) -> None:
        """Raise ValueError if parameters contradict each other."""

    def to_data(self) -> Dict[str, Any]:
        """Plain data, as parsed."""
        data: Dict[str, Any] = {"op": type(self).__name__}
        for name in (*self.FIELDS, *self.OPTIONAL):
            value = getattr(self, name)
            if name in self.FIELDS or value != getattr(type(self), name):
                data[name] = list(value) if isinstance(value, tuple) else value
        return data

    def out(self, shape: Shape) -> Shape:
        """What is known of the output."""
        return shape

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add this operator's steps for one sample."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Resize(Operator):
    """Resize to [height, width]. An int is for the shorter side (the longer at most max_size); None: max_size is the longer."""

    size: Union[int, Tuple[int, int], None]
    max_size: Optional[int]
    interpolation: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "size": checks.short_side_or_size,
        "max_size": checks.optional(checks.side),
        "interpolation": checks.interpolation,
    }

    def validate(self) -> None:
        """Raise ValueError if the parameters break the rules of torchvision's Resize."""
        if isinstance(self.size, tuple) and self.max_size is not None:
            raise ValueError("max_size goes with an int or null size only")
        if self.size is None and self.max_size is None:
            raise ValueError("max_size is needed where size is null")
        if isinstance(self.size, int) and self.max_size is not None and self.max_size <= self.size:
            raise ValueError("max_size must be greater than size")

    def target(self, height: int, width: int) -> Tuple[int, int]:
        """Output's (height, width): torchvision's _compute_resized_output_size."""
        if isinstance(self.size, tuple):
            return self.size
        short, long = min(height, width), max(height, width)
        if self.size is None:
            assert self.max_size is not None
            new_short, new_long = int(self.max_size * short / long), self.max_size
        else:
            new_short, new_long = self.size, int(self.size * long / short)
            if self.max_size is not None and new_long > self.max_size:
                new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def out(self, shape: Shape) -> Shape:
        """Known if both sides are given, or if the source's size is known."""
        if isinstance(self.size, tuple):
            return Shape(self.size, shape.channels)
        return Shape(self.target(*shape.size) if shape.size else None, shape.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one resize."""
        canvas.resize(*self.target(canvas.height, canvas.width), self.interpolation)


@dataclasses.dataclass(frozen=True)
class CenterCrop(Operator):
    """Keep the middle of the image, padded with zeros if the image is smaller."""

    size: Tuple[int, int]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"size": checks.size}

    def out(self, shape: Shape) -> Shape:
        """The given size."""
        return Shape(self.size, shape.channels)

    def draw(self, canvas: Any, keyed: Optional[Keyed]) -> None:
        """Do as torchvision's center_crop: pad, then crop at the rounded (half to even) anchor."""
        height, width = self.size
        down, across = max(height - canvas.height, 0), max(width - canvas.width, 0)
        canvas.pad(across // 2, down // 2, (across + 1) // 2, (down + 1) // 2, (0,), "constant")
        top = int(round((canvas.height - height) / 2.0))
        left = int(round((canvas.width - width) / 2.0))
        canvas.crop(top, left, height, width)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Operator):
    """Crop a part of random area (share of the image's) and aspect ratio, and resample it to a size."""

    size: Tuple[int, int]
    scale: Tuple[float, float]
    ratio: Tuple[float, float]
    interpolation: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "size": checks.size,
        "scale": checks.interval(0.0, _WIDEST),
        "ratio": checks.interval(1.0 / _WIDEST, _WIDEST),
        "interpolation": checks.interpolation,
    }

    def out(self, shape: Shape) -> Shape:
        """The given size."""
        return Shape(self.size, shape.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw as torchvision's get_params: after ten failed attempts take the largest central crop of an allowed ratio."""
        canvas.crop(*self.rectangle(canvas.height, canvas.width, keyed))
        canvas.resize(*self.size, self.interpolation)

    def rectangle(self, height: int, width: int, keyed: Keyed) -> Tuple[int, int, int, int]:
        """Draw (top, left, height, width) for an image of this size."""
        low, high = map(keyed_numbers.single_log, self.ratio)
        for _ in range(10):
            area = height * width * keyed.single(*self.scale)
            ratio = keyed_numbers.single_exp(keyed.single(low, high))
            w = int(round(math.sqrt(area * ratio)))
            h = int(round(math.sqrt(area / ratio)))
            if 0 < w <= width and 0 < h <= height:
                top = keyed.below(height - h + 1)
                return top, keyed.below(width - w + 1), h, w
        h, w = height, width
        if width / height < self.ratio[0]:
            h = int(round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            w = int(round(height * self.ratio[1]))
        return (height - h) // 2, (width - w) // 2, h, w


@dataclasses.dataclass(frozen=True)
class RandomCrop(Operator):
    """Pad, then crop a part of fixed size at a random place. As in v2, all borders are added at once."""

    size: Tuple[int, int]
    padding: Optional[Tuple[int, int, int, int]]
    pad_if_needed: bool
    fill: Tuple[int, ...]
    padding_mode: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "size": checks.size,
        "padding": checks.optional(checks.padding),
        "pad_if_needed": checks.boolean,
        "fill": checks.fill,
        "padding_mode": checks.padding_mode,
    }

    def out(self, shape: Shape) -> Shape:
        """The given size."""
        return Shape(self.size, shape.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Pad, then crop."""
        height, width = self.size
        self.pad(canvas)
        row = keyed.below(canvas.height - height + 1)
        canvas.crop(row, keyed.below(canvas.width - width + 1), height, width)

    def pad(self, canvas: Any) -> None:
        """Add the borders. SizeRefused if the padded image is smaller than the crop."""
        height, width = self.size
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        if self.pad_if_needed:
            down = max(height - (canvas.height + top + bottom), 0)
            across = max(width - (canvas.width + left + right), 0)
            left, top, right, bottom = left + across, top + down, right + across, bottom + down
        canvas.pad(left, top, right, bottom, self.fill, self.padding_mode)
        if canvas.height < height or canvas.width < width:
            raise SizeRefused(f"Required crop size {self.size} is larger than input image size "
                               f"{(canvas.height, canvas.width)} (height, width, with borders): RandomCrop can't be made of "
                               "it; set pad_if_needed or resize first")


@dataclasses.dataclass(frozen=True)
class Pad(Operator):
    """Add borders of [left, top, right, bottom] pixels."""

    padding: Tuple[int, int, int, int]
    fill: Tuple[int, ...]
    padding_mode: str
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "padding": checks.padding,
        "fill": checks.fill,
        "padding_mode": checks.padding_mode,
    }

    def out(self, shape: Shape) -> Shape:
        """The source's size plus the borders."""
        if shape.size is None:
            return shape
        left, top, right, bottom = self.padding
        return Shape((shape.size[0] + top + bottom, shape.size[1] + left + right), shape.channels)

    def draw(self, canvas: Any, keyed: Optional[Keyed]) -> None:
        """Add one pad."""
        canvas.pad(*self.padding, self.fill, self.padding_mode)


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(Operator):
    """Mirror left-right with probability p."""

    p: float
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"p": checks.probability}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add a flip, or nothing."""
        if keyed.uniform() < self.p:
            canvas.flip(horizontal=True)


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(Operator):
    """Mirror top-bottom with probability p."""

    p: float
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"p": checks.probability}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add a flip, or nothing."""
        if keyed.uniform() < self.p:
            canvas.flip(horizontal=False)


@dataclasses.dataclass(frozen=True)
class Grayscale(Operator):
    """Replace the image by its luma, in 1 or 3 channels."""

    channels: int
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"channels": checks.one_of(1, 3)}
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def out(self, shape: Shape) -> Shape:
        """The source's size, with the given number of channels."""
        return Shape(shape.size, self.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one conversion."""
        canvas.gray(self.channels, self.pixels)


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(Operator):
    """Replace the image by its luma, with probability p. The number of channels stays."""

    p: float
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {"p": checks.probability}
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add a conversion, or nothing."""
        if keyed.uniform() < self.p:
            canvas.gray(canvas.channels, self.pixels)


OPERATORS = (
    Resize, CenterCrop, RandomResizedCrop, RandomCrop, Pad, RandomHorizontalFlip, RandomVerticalFlip, Grayscale,
    RandomGrayscale,
)  # fmt: skip
"""The operators of this file that a pipeline may name."""
