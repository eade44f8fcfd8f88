"""The operators that move pixels by a random matrix: rotation, affine map, perspective.

The matrices are torchvision's for PIL images (and Pillow's own for rotations). They are computed by + - * / alone, so that
every computer draws the same pixels.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from csd_engine.keyed import Keyed, sine_cosine
from csd_engine.transforms import checks
from csd_engine.transforms.operators import Canvas, Operator, Shape
from csd_engine.transforms.warp_steps import WARP_FILTERS

__all__ = ["OPERATORS", "inverse_affine", "rotate"]

_RADIANS = math.pi / 180.0
_angle = checks.number(-1e6, 1e6)
_angles = checks.interval(-1e6, 1e6)
_filter = checks.one_of(*WARP_FILTERS)
Point = Tuple[float, float]


def _point(value: Any) -> Point:
    x, y = (checks.number(-1e6, 1e6)(v) for v in checks.listed(value, (2,), "[x, y]"))
    return x, y


def rotate(
    canvas: Canvas, angle: float, interpolation: str, expand: bool, center: Optional[Point], fill: Tuple[int, ...]
) -> None:
    """Pillow's Image.rotate: degrees against the clock around the centre (x, y; None: the middle). `expand` keeps corners."""
    angle %= 360.0
    width, height = canvas.width, canvas.height
    if not center:
        if angle == 0:
            return
        if angle == 180 or (angle in (90, 270) and (expand or width == height)):
            canvas.turn(int(angle) // 90)
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
    canvas.warp(height, width, (a, b, c, d, e, f), interpolation, fill)


def inverse_affine(
    center: Point, angle: float, translate: Point, scale: float, shear: Point
) -> Tuple[float, float, float, float, float, float]:
    """torchvision's _get_inverse_affine_matrix: degrees with the clock, pixels, a factor, degrees of shear along x and y."""
    rotation, across, down = angle * _RADIANS, shear[0] * _RADIANS, shear[1] * _RADIANS
    (sine, cosine), cosine_down = sine_cosine(rotation - down), sine_cosine(down)[1]
    across_sine, across_cosine = sine_cosine(across)
    tangent = across_sine / across_cosine
    rotation_sine, rotation_cosine = sine_cosine(rotation)
    a = cosine / cosine_down
    b = -cosine * tangent / cosine_down - rotation_sine
    c = sine / cosine_down
    d = -sine * tangent / cosine_down + rotation_cosine
    return _inverted((a, b, c, d), center, translate, scale)


def _inverted(
    matrix: Tuple[float, float, float, float], center: Point, translate: Point, scale: float
) -> Tuple[float, float, float, float, float, float]:
    """The inverse map of a matrix of determinant 1, which turns around the centre and then moves."""
    a, b, c, d = matrix
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    x, y = -center[0] - translate[0], -center[1] - translate[1]
    return a, b, 0.0 + (a * x + b * y) + center[0], c, d, 0.0 + (c * x + d * y) + center[1]


@dataclasses.dataclass(frozen=True)
class RandomRotation(Operator):
    """Rotate by a random angle from an interval of degrees, against the clock."""

    degrees: Tuple[float, float]
    interpolation: str
    expand: bool
    center: Optional[Point]
    fill: Tuple[int, ...]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "degrees": _angles,
        "interpolation": _filter,
        "expand": checks.boolean,
        "center": checks.optional(_point),
        "fill": checks.fill,
    }

    def out(self, shape: Shape) -> Shape:
        """The size is unknown if the rotation expands the image."""
        return Shape(None, shape.channels) if self.expand else shape

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one rotation."""
        rotate(canvas, keyed.uniform(*self.degrees), self.interpolation, self.expand, self.center, self.fill)


def _share(value: Any) -> Tuple[float, ...]:
    return tuple(checks.probability(v) for v in checks.listed(value, (2,), "[share of the width, share of the height]"))


def _shear(value: Any) -> Tuple[float, ...]:
    return tuple(_angle(v) for v in checks.listed(value, (2, 4), "[least x, most x] or [least x, most x, least y, most y]"))


@dataclasses.dataclass(frozen=True)
class RandomAffine(Operator):
    """Rotate, move, scale and shear at random.

    degrees, shear: intervals in degrees. translate: the largest shares of width and height, in either direction. scale: an
    interval of factors. None leaves one out.
    """

    degrees: Tuple[float, float]
    translate: Optional[Tuple[float, ...]]
    scale: Optional[Tuple[float, float]]
    shear: Optional[Tuple[float, ...]]
    interpolation: str
    center: Optional[Point]
    fill: Tuple[int, ...]
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "degrees": _angles,
        "translate": checks.optional(_share),
        "scale": checks.optional(checks.interval(1e-6, 1e6)),
        "shear": checks.optional(_shear),
        "interpolation": _filter,
        "center": checks.optional(_point),
        "fill": checks.fill,
    }

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw as torchvision's get_params, in its order."""
        width, height = canvas.width, canvas.height
        angle, scale, across, down = keyed.uniform(*self.degrees), 1.0, 0.0, 0.0
        move: List[float] = [0.0, 0.0]
        if self.translate is not None:
            shares = zip(self.translate, (width, height))
            move = [float(round(keyed.uniform(-share * side, share * side))) for share, side in shares]
        if self.scale is not None:
            scale = keyed.uniform(*self.scale)
        if self.shear is not None:
            across = keyed.uniform(*self.shear[:2])
            down = keyed.uniform(*self.shear[2:]) if len(self.shear) == 4 else 0.0
        center = self.center or (width * 0.5, height * 0.5)
        matrix = inverse_affine(center, angle, (move[0], move[1]), scale, (across, down))
        canvas.warp(height, width, matrix, self.interpolation, self.fill)


def perspective_coefficients(start: Sequence[Point], end: Sequence[Point]) -> Tuple[float, ...]:
    """The 8 coefficients that map four end points to the start points, rounded to single precision as torchvision's are.

    They are found by Gauss elimination with the largest pivot. Points without such a map (three on one line) give NaN; the
    image is then all fill.
    """
    rows: List[List[float]] = []
    for (x, y), (u, v) in zip(end, start):
        rows.append([x, y, 1.0, 0.0, 0.0, 0.0, -u * x, -u * y, u])
        rows.append([0.0, 0.0, 0.0, x, y, 1.0, -v * x, -v * y, v])
    for k in range(8):
        best = max(range(k, 8), key=lambda row: abs(rows[row][k]))
        rows[k], rows[best] = rows[best], rows[k]
        if rows[k][k] == 0.0:
            return (math.nan,) * 8
        for row in range(8):
            if row != k and rows[row][k] != 0.0:
                factor = rows[row][k] / rows[k][k]
                rows[row] = [value - factor * pivot for value, pivot in zip(rows[row], rows[k])]
    return tuple(float(np.float32(rows[k][8] / rows[k][k])) for k in range(8))


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

        def corner(right: bool, bottom: bool) -> Point:
            x = keyed.below(across + 1) + (width - across - 1 if right else 0)
            return float(x), float(keyed.below(down + 1) + (height - down - 1 if bottom else 0))

        end = [corner(False, False), corner(True, False), corner(True, True), corner(False, True)]
        far_x, far_y = width - 1.0, height - 1.0
        start = [(0.0, 0.0), (far_x, 0.0), (far_x, far_y), (0.0, far_y)]
        canvas.warp(height, width, perspective_coefficients(start, end), self.interpolation, self.fill)


OPERATORS = (RandomRotation, RandomAffine, Perspective)
"""The operators that a pipeline may name."""
