"""The operators that move pixels by a random matrix: rotation, affine map, perspective.

The matrices are torchvision's for PIL images (and Pillow's own for rotations) or, by ``pixels``, for tensors, computed in the
same order of operations. Sines and the like are correctly rounded and perspectives solved exactly, so every computer draws the
same pixels. Where torchvision's differ, its C library has rounded a sine to the other neighbour, or its LAPACK a coefficient.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from csd_engine.arithmetic.angles import sine_cosine, tangent
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Canvas, Operator, Shape
from csd_engine.transforms.torch_pixels import GRID_FILTERS, PILLOW, is_v2
from csd_engine.transforms.warp_steps import WARP_FILTERS

__all__ = ["FILL", "OPERATORS", "affine", "inverse_affine", "require_known", "rotate"]

_RADIANS = math.pi / 180.0
_angle = checks.number(-1e6, 1e6)
_angles = checks.interval(-1e6, 1e6)
_filter = checks.one_of(*WARP_FILTERS)
Point = Tuple[float, float]
Corner = Tuple[int, int]
Vector = Tuple[int, int, int]
FILL = checks.optional(checks.fill)
"""The check of a colour for the area that a map leaves empty; None, black, is something of its own on tensors."""


def require_known(interpolation: str, pixels: str, expand: bool = False) -> None:
    """Raise ValueError unless torch's pixels of such a map are known."""
    if pixels != PILLOW and (expand or interpolation not in GRID_FILTERS):
        raise ValueError(f"pixels={pixels!r} goes with one of the filters {', '.join(GRID_FILTERS)}, without expand")


def _point(value: Any) -> Point:
    x, y = (checks.number(-1e6, 1e6)(v) for v in checks.listed(value, (2,), "[x, y]"))
    return x, y


def rotate(
    canvas: Canvas, angle: float, interpolation: str, expand: bool, center: Optional[Point], fill: Optional[Tuple[int, ...]],
    pixels: str = PILLOW,
) -> None:
    """Pillow's Image.rotate: degrees against the clock around the centre (x, y; None: the middle). `expand` keeps corners.

    Or torchvision's rotate of a tensor: v1 moves it by a matrix always.
    """
    width, height = canvas.width, canvas.height
    if pixels == PILLOW or is_v2(pixels):
        angle %= 360.0
        if not center:
            if angle == 0:
                return
            if angle == 180 or (angle in (90, 270) and (expand or width == height)):
                canvas.turn(int(angle) // 90)
                return
    if pixels != PILLOW:
        affine(canvas, center, -angle, (0.0, 0.0), 1.0, (0.0, 0.0), interpolation, fill, is_v2(pixels), pixels)
        return
    x, y = center or (width / 2.0, height / 2.0)
    sine, cosine = (round(part, 15) for part in sine_cosine(-(angle * _RADIANS)))
    a, b, d, e = cosine, sine, -sine, cosine

    def moved(x: float, y: float, c: float = 0.0, f: float = 0.0) -> Point:
        return a * x + b * y + c, d * x + e * y + f

    c, f = moved(-x, -y)
    c, f = c + x, f + y
    if expand:
        corners = [moved(*corner, c, f) for corner in ((0, 0), (width, 0), (width, height), (0, height))]
        wide, high = (
            math.ceil(max(corner[axis] for corner in corners)) - math.floor(min(corner[axis] for corner in corners))
            for axis in (0, 1)
        )
        c, f = moved(-(wide - width) / 2.0, -(high - height) / 2.0, c, f)
        width, height = wide, high
    canvas.warp(height, width, (a, b, c, d, e, f), interpolation, fill or (0,))


def affine(
    canvas: Canvas, center: Optional[Point], angle: float, translate: Point, scale: float, shear: Point, interpolation: str,
    fill: Optional[Tuple[int, ...]], v2: bool, pixels: str = PILLOW,
) -> None:
    """torchvision's affine around a centre (None: the middle). Other arguments are those of `inverse_affine`.

    On a tensor positions are counted from the middle.
    """
    width, height = canvas.width, canvas.height
    middle = width * 0.5, height * 0.5
    x, y = center or middle
    if pixels == PILLOW:
        canvas.warp(height, width, inverse_affine((x, y), angle, translate, scale, shear, v2), interpolation, fill or (0,))
    else:
        matrix = inverse_affine((x - middle[0], y - middle[1]), angle, translate, scale, shear, v2)
        canvas.warp_by_grid(matrix, interpolation, fill, pixels)


def inverse_affine(
    center: Point, angle: float, translate: Point, scale: float, shear: Point, v2: bool
) -> Tuple[float, float, float, float, float, float]:
    """torchvision's _get_inverse_affine_matrix: degrees with the clock, pixels, a factor, degrees of shear along x and y.

    torchvision's v1 and v2 (``v2``) compute the same numbers in different orders, so their last bits differ.
    """
    rotation, across, down = angle * _RADIANS, shear[0] * _RADIANS, shear[1] * _RADIANS
    (sine, cosine), cosine_down, tangent_across = sine_cosine(rotation - down), sine_cosine(down)[1], tangent(across)
    rotation_sine, rotation_cosine = sine_cosine(rotation)
    (x, y), (right, below) = center, translate
    a, c = cosine / cosine_down, sine / cosine_down
    if v2:
        b, d = -(a * tangent_across + rotation_sine), rotation_cosine - c * tangent_across
        right, below = x + right, y + below
        a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
        return a, b, x - a * right - b * below, c, d, y - c * right - d * below
    b = -cosine * tangent_across / cosine_down - rotation_sine
    d = -sine * tangent_across / cosine_down + rotation_cosine
    right, below = -x - right, -y - below
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    return a, b, a * right + b * below + x, c, d, c * right + d * below + y


@dataclasses.dataclass(frozen=True)
class RandomRotation(Operator):
    """Rotate by a random angle from an interval of degrees, against the clock."""

    degrees: Tuple[float, float]
    interpolation: str
    expand: bool
    center: Optional[Point]
    fill: Optional[Tuple[int, ...]]
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "degrees": _angles,
        "interpolation": _filter,
        "expand": checks.boolean,
        "center": checks.optional(_point),
        "fill": FILL,
    }
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def validate(self) -> None:
        """Raise ValueError unless torch's pixels are known."""
        require_known(self.interpolation, self.pixels, self.expand)

    def out(self, shape: Shape) -> Shape:
        """The size is unknown if the rotation expands the image."""
        return Shape(None, shape.channels) if self.expand else shape

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one rotation."""
        angle = keyed.single(*self.degrees)
        rotate(canvas, angle, self.interpolation, self.expand, self.center, self.fill, self.pixels)


def _share(value: Any) -> Tuple[float, ...]:
    return tuple(checks.probability(v) for v in checks.listed(value, (2,), "[share of the width, share of the height]"))


def _shear(value: Any) -> Tuple[float, ...]:
    return tuple(_angle(v) for v in checks.listed(value, (2, 4), "[least x, most x] or [least x, most x, least y, most y]"))


@dataclasses.dataclass(frozen=True)
class RandomAffine(Operator):
    """Rotate, move, scale and shear at random.

    degrees, shear: intervals in degrees. translate: the largest shares of width and height, in either direction. scale: an
    interval of factors. None leaves one out. v2: compute in the order of torchvision's v2.
    """

    degrees: Tuple[float, float]
    translate: Optional[Tuple[float, ...]]
    scale: Optional[Tuple[float, float]]
    shear: Optional[Tuple[float, ...]]
    interpolation: str
    center: Optional[Point]
    fill: Optional[Tuple[int, ...]]
    v2: bool
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "degrees": _angles,
        "translate": checks.optional(_share),
        "scale": checks.optional(checks.interval(1e-6, 1e6)),
        "shear": checks.optional(_shear),
        "interpolation": _filter,
        "center": checks.optional(_point),
        "fill": FILL,
        "v2": checks.boolean,
    }
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def validate(self) -> None:
        """Raise ValueError unless torch's pixels are known."""
        require_known(self.interpolation, self.pixels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw as torchvision's get_params, in its order."""
        width, height = canvas.width, canvas.height
        angle, scale, across, down = keyed.single(*self.degrees), 1.0, 0.0, 0.0
        move: List[float] = [0.0, 0.0]
        if self.translate is not None:
            shares = zip(self.translate, (width, height))
            move = [float(round(keyed.single(-share * side, share * side))) for share, side in shares]
        if self.scale is not None:
            scale = keyed.single(*self.scale)
        if self.shear is not None:
            across = keyed.single(*self.shear[:2])
            down = keyed.single(*self.shear[2:]) if len(self.shear) == 4 else 0.0
        how = self.interpolation, self.fill, self.v2, self.pixels
        affine(canvas, self.center, angle, (move[0], move[1]), scale, (across, down), *how)


def perspective_coefficients(start: Sequence[Corner], end: Sequence[Corner]) -> Tuple[float, ...]:
    """The 8 coefficients that map four end points to the start points, rounded to single precision as torchvision's are.

    They are computed exactly, by whole numbers. Points without such a map (three on one line) give NaN; the image is then all
    fill.
    """
    first, second, third = _frame(end)
    inverse = [_cross(second, third), _cross(third, first), _cross(first, second)]  # times the determinant
    columns = list(zip(*inverse))
    matrix = [sum(map(operator.mul, row, column)) for row in zip(*_frame(start)) for column in columns]
    collinear = any(_area(*corners) == 0 for corners in itertools.combinations(end, 3))
    if collinear or matrix[8] == 0:
        return (math.nan,) * 8
    # Python divides whole numbers with correct rounding.
    return tuple(float(np.float32(value / matrix[8])) for value in matrix[:8])


def _area(a: Corner, b: Corner, c: Corner) -> int:
    """Twice the area of a triangle, with a sign; 0 if its corners are on one line."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _frame(points: Sequence[Corner]) -> List[Vector]:
    """The first three of four points in homogeneous coordinates, so weighted that their sum is a multiple of the fourth."""
    a, b, c, d = points
    weighted = ((a, _area(d, b, c)), (b, _area(a, d, c)), (c, _area(a, b, d)))
    return [(weight * x, weight * y, weight) for (x, y), weight in weighted]


def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@dataclasses.dataclass(frozen=True)
class Perspective(Operator):
    """Move the corners inwards at random, by at most this share of half the image."""

    distortion_scale: float
    interpolation: str
    fill: Tuple[int, ...]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "distortion_scale": checks.probability,
        "interpolation": _filter,
        "fill": checks.fill,
    }

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw as torchvision's RandomPerspective.get_params, in its order."""
        width, height = canvas.width, canvas.height
        across, down = int(self.distortion_scale * (width // 2)), int(self.distortion_scale * (height // 2))

        def corner(right: bool, bottom: bool) -> Corner:
            x = keyed.below(across + 1) + (width - across - 1 if right else 0)
            return x, keyed.below(down + 1) + (height - down - 1 if bottom else 0)

        end = [corner(False, False), corner(True, False), corner(True, True), corner(False, True)]
        start = [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]
        canvas.warp(height, width, perspective_coefficients(start, end), self.interpolation, self.fill)


OPERATORS = (RandomRotation, RandomAffine, Perspective)
"""The operators that a pipeline may name."""
