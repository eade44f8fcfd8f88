"""torchvision's operators on tensors of bytes, by numpy: what they do on the CPU, where they don't do it as Pillow does.

They compute in float32 and cut the result to a byte. v1 and v2 do so in different orders of operations, and v2 has torch add
products, which rounds once on processors with fused multiply-adds ("-fused"). Maps of pixels sample a grid of positions, where
both are fused on these processors. The positions themselves are a matrix product, which is MKL's: plain, or fused as well on
Intel's processors with AVX-512 ("-grid"). The functions here give torch's bits, everywhere. The kernel does the same, faster.

Contrast takes the mean of all pixels. A sum of bytes below 2**24 is exact in float32, so torch's order of adding them is of no
account up to `EXACT_MEAN` pixels, and unknown beyond.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

import numpy as np

from csd_engine.transforms.torch_resample import MultiplyAdd, fused_add, separate_add

__all__ = [
    "EXACT_MEAN", "GRID_FILTERS", "KERNEL_NUMBERS", "PILLOW", "PIXELS", "auto_contrast", "enhanced", "grey", "hue_turned",
    "is_v2", "sampled",
]  # fmt: skip

PILLOW = "pillow"
EXACT_MEAN = 2**24 // 255  # pixels
_MKLS_PRODUCT = 400  # multiplications: torch does fewer by itself, never fused (aten/src/ATen/native/LinearAlgebra.cpp)
GRID_FILTERS = ("nearest", "bilinear")


class _Torch(NamedTuple):
    v2: bool
    add: MultiplyAdd
    grid_add: MultiplyAdd


_TORCH: Dict[str, _Torch] = {
    "torch-v1": _Torch(False, separate_add, separate_add), "torch-v1-fused": _Torch(False, fused_add, separate_add),
    "torch-v2-fused": _Torch(True, fused_add, separate_add), "torch-v1-grid": _Torch(False, separate_add, fused_add),
    "torch-v1-fused-grid": _Torch(False, fused_add, fused_add), "torch-v2-fused-grid": _Torch(True, fused_add, fused_add),
}  # fmt: skip
PIXELS = (PILLOW, *_TORCH)
"""Whose pixels an operator makes: Pillow's, or those of torch's kernels as v1 or v2 calls them."""

KERNEL_NUMBERS = {name: number for number, name in enumerate(PIXELS)}


def is_v2(whose: str) -> bool:
    """Whether these are v2's."""
    return _TORCH[whose].v2


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 255).astype(np.uint8)


def grey(pixels: np.ndarray, whose: str) -> np.ndarray:
    """Luma of uint8 (height, width, 3): uint8 (height, width)."""
    red, green, blue = (pixels[..., channel].astype(np.float32) for channel in range(3))
    shares = _number(0.2989), _number(0.587), _number(0.114)
    add = _TORCH[whose].add if is_v2(whose) else separate_add
    return _bytes(add(blue, shares[2], add(green, shares[1], red * shares[0])))


def _blended(pixels: np.ndarray, other: np.ndarray, factor: float, whose: str) -> np.ndarray:
    """``factor`` of the pixels and the rest of another image's."""
    add = _TORCH[whose].add if is_v2(whose) else separate_add
    return _bytes(add(other.astype(np.float32), _number(1.0 - factor), pixels.astype(np.float32) * _number(factor)))


def _smooth(pixels: np.ndarray) -> np.ndarray:
    """The inner pixels, each a mean of 3 x 3 with 5 for the middle one. No thirteenth is near a half, so any sum will do."""
    whole, (height, width) = pixels.astype(np.int32), pixels.shape[:2]
    total = 4 * whole[1:-1, 1:-1]
    for top in range(3):
        for left in range(3):
            total = total + whole[top : top + height - 2, left : left + width - 2]
    return (2 * total + 13) // 26


def enhanced(pixels: np.ndarray, what: str, factor: float, whose: str) -> np.ndarray:
    """Change brightness, contrast, saturation or sharpness of uint8 (height, width, 1 or 3)."""
    if what == "brightness":
        return _bytes(pixels.astype(np.float32) * _number(factor))
    if what == "sharpness":
        return _sharpened(pixels, factor, whose)
    coloured = pixels.shape[2] == 3
    if what == "saturation":
        return _blended(pixels, grey(pixels, whose)[..., np.newaxis], factor, whose) if coloured else pixels
    lumas = grey(pixels, whose) if coloured else pixels
    mean = _number(int(lumas.sum(dtype=np.int64))) / _number(lumas.size)
    return _blended(pixels, np.asarray(mean), factor, whose)


def _sharpened(pixels: np.ndarray, factor: float, whose: str) -> np.ndarray:
    if min(pixels.shape[:2]) <= 2:
        return pixels
    if not is_v2(whose):
        smooth = pixels.copy()
        smooth[1:-1, 1:-1] = _smooth(pixels)
        return _blended(pixels, smooth, factor, whose)
    values = pixels.astype(np.float32)
    inner = values[1:-1, 1:-1]
    inner[...] = _TORCH[whose].add(_smooth(pixels).astype(np.float32) - inner, _number(1.0 - factor), inner)
    return _bytes(values)


def auto_contrast(pixels: np.ndarray, whose: str) -> np.ndarray:
    """Stretch each channel of uint8 (height, width, channels) to 0 .. 255."""
    least, most = (part.astype(np.float32) for part in (pixels.min((0, 1)), pixels.max((0, 1))))
    one_value = least == most
    spread = np.where(one_value, _number(1.0), most - least)
    above = pixels.astype(np.float32) - np.where(one_value, _number(0.0), least)
    if is_v2(whose):
        return _bytes(above / np.where(one_value, _number(1.0), spread * _number(1.0 / 255)))
    return _bytes(above * np.where(one_value, _number(1.0), _number(1.0) / spread * _number(255.0)))


def hue_turned(pixels: np.ndarray, factor: float, whose: str) -> np.ndarray:
    """Turn the hue of uint8 (height, width, 3) by a share of the circle, -0.5 to 0.5."""
    v2, one, six = is_v2(whose), _number(1.0), _number(6.0)
    values = pixels.astype(np.float32)
    values = values * _number(1.0 / 255) if v2 else values / _number(255.0)
    most, least = values.max(2), values.min(2)
    grey_ones, spread = most == least, most - least
    saturation = spread / np.where(grey_ones, one, most)
    r, g, b = (part / np.where(grey_ones, one, spread) for part in (most - values[..., channel] for channel in range(3)))
    is_red, is_green = most == values[..., 0], most == values[..., 1]
    turn = np.where(is_red, b - g, np.where(is_green, r + _number(2.0) - b, g + _number(4.0) - r))
    turn = np.fmod((turn * _number(1.0 / 6.0) if v2 else turn / six) + one, one)
    sixths = np.remainder(turn + _number(factor), one) * six
    sector = np.floor(sixths)
    part = sixths - sector

    def within(values: np.ndarray) -> np.ndarray:
        return np.clip(values, 0.0, 1.0)

    falling = within(most * (one - saturation * part))
    rising = within((saturation * part + (one - saturation)) * most if v2 else most * (one - saturation * (one - part)))
    low = within(most * (one - saturation))
    of_sector = (
        (most, rising, low), (falling, most, low), (low, most, rising), (low, falling, most), (rising, low, most),
        (most, low, falling),
    )  # fmt: skip
    number = sector.astype(np.int32) % 6
    turned = np.stack([np.choose(number, [parts[channel] for parts in of_sector]) for channel in range(3)], axis=2)
    return (turned * _number(255.0 + 1.0 - 1e-3)).astype(np.uint8)


def sampled(
    pixels: np.ndarray, matrix: Tuple[float, ...], interpolation: str, fill: Optional[Tuple[int, ...]], whose: str
) -> np.ndarray:
    """Move the pixels of uint8 (height, width, channels) by a matrix: float32, not yet rounded.

    Args:
        matrix: 6 numbers, from the result's pixels to the source's, both counted from the middle.
        interpolation: one of `GRID_FILTERS`.
        fill: the colour outside, which is mixed in at the edges; None: black, which is not.
    """
    height, width = pixels.shape[:2]
    add = _TORCH[whose].add
    rows = np.array(matrix, np.float32).reshape(2, 3)
    x = (np.arange(width) - (width - 1) / 2).astype(np.float32)
    y = np.broadcast_to((np.arange(height) - (height - 1) / 2).astype(np.float32)[:, np.newaxis], (height, width))
    grid_add = _TORCH[whose].grid_add if 6 * height * width >= _MKLS_PRODUCT else separate_add
    places = []
    for (a, b, c), side in zip(rows / np.array([[0.5 * width], [0.5 * height]], np.float32), (width, height)):
        on_grid = grid_add(y, b, x * a) + c  # -1 to 1 in the image
        places.append(add(on_grid + _number(1.0), _number(side / 2), _number(-0.5)))
    if interpolation == "nearest":
        inside, values = _taken(pixels, np.rint(places[0]), np.rint(places[1]))
        colour = (0,) if fill is None else fill
        return np.where(inside, values, np.array(colour, np.float32))
    left, top = np.floor(places[0]), np.floor(places[1])
    right_of, below = (places[0] - left)[..., np.newaxis], (places[1] - top)[..., np.newaxis]
    left_of, above = _number(1.0) - right_of, _number(1.0) - below
    shares = above * left_of, above * right_of, below * left_of, below * right_of
    corners = [_taken(pixels, left + across, top + down) for down in (0, 1) for across in (0, 1)]

    def weighed(values: Tuple[np.ndarray, ...]) -> np.ndarray:
        total = values[0] * shares[0]
        for value, share in zip(values[1:], shares[1:]):
            total = add(value, np.broadcast_to(share, value.shape), total)
        return total

    result = weighed(tuple(values for _, values in corners))
    if fill is not None:
        covered = weighed(tuple(inside.astype(np.float32) for inside, _ in corners))
        colours = np.array(fill, np.float32)
        if is_v2(whose):
            result = (result - colours) * covered + colours
        else:
            result = result * covered + (_number(1.0) - covered) * colours
    return result


def _taken(pixels: np.ndarray, x: np.ndarray, y: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Whether these places are in the image, and the pixels there as float32, 0 for one outside."""
    height, width = pixels.shape[:2]
    inside = (x > -1) & (x < width) & (y > -1) & (y < height)
    values = pixels[np.where(inside, y, 0).astype(np.int64), np.where(inside, x, 0).astype(np.int64)]
    inside = inside[..., np.newaxis]
    return inside, np.where(inside, values, np.uint8(0)).astype(np.float32)
