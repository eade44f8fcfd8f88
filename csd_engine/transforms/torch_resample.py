"""torch's resampling with antialias, by numpy: `torch.nn.functional.interpolate` on images of bytes, on the CPU.

It weighs pixels as Pillow does, with the horizontal pass first always (ATen's UpSampleKernel.cpp), by one of three kinds of
arithmetic:

- "torch": on uint8 tensors. The weights of an axis are rounded to 16 bits, with as many bits for their fractions as the
  largest weight leaves.
- "torch-float": on float32 tensors, to which torchvision casts elsewhere: all of v1, and v2 on some processors. Only the
  result is rounded to bytes.
- "torch-fused": the same as compilers make it for processors with fused multiply-adds, which round once. They take the taps
  after the first by four, by vectors, which don't fuse; the last ones do, and so do a cubic's terms.

By floats an image of one column has the same rows all over: torch's vertical pass takes the first row's taps for each of them.
The kernel does the same, faster.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, Tuple

import numpy as np
from PIL import Image

__all__ = ["MultiplyAdd", "TORCH_FILTERS", "fused_add", "separate_add", "torch_resample", "torch_resize"]

#: The kernel's numbers.
TORCH_FILTERS = {"torch-bilinear": 6, "torch-bicubic": 7, "torch-float-bilinear": 8, "torch-float-bicubic": 9,
                 "torch-fused-bilinear": 10, "torch-fused-bicubic": 11}  # fmt: skip

MultiplyAdd = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def separate_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded to float32 twice."""
    return a * b + c


def fused_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded to float32 once.

    As float64 the product is exact. The sum is rounded to odd: if it is not exact, its last bit is set. So the second rounding
    can't meet a tie that the first one made.
    """
    product = a.astype(np.float64) * b
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)  # of the sum, exactly
    bits = total.view(np.int64)
    bits += np.where((error != 0.0) & (bits & 1 == 0), np.where((error > 0.0) == (total > 0.0), 1, -1), 0)
    return total.astype(np.float32)


def _bilinear(x: np.ndarray, add: MultiplyAdd) -> np.ndarray:
    return np.maximum(1.0 - x, 0.0)


def _bicubic(x: np.ndarray, add: MultiplyAdd) -> np.ndarray:
    """Keys' cubic with a = -1/2."""
    number = x.dtype.type
    near = add(add(number(1.5), x, number(-2.5)) * x, x, number(1))
    far = add(add(x + number(-5), x, number(8)), x, number(-4)) * number(-0.5)
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0)).astype(x.dtype)


_WEIGHTS: Dict[str, Tuple[float, Callable[[np.ndarray, MultiplyAdd], np.ndarray]]] = {
    "bilinear": (1.0, _bilinear),  # how far it reaches, and the weight at a distance
    "bicubic": (2.0, _bicubic),
}
_ARITHMETICS: Dict[str, Tuple[type, MultiplyAdd]] = {
    "torch": (np.float64, separate_add), "torch-float": (np.float32, separate_add), "torch-fused": (np.float32, fused_add)
}  # fmt: skip


@functools.lru_cache(maxsize=64)
def _weights(inputs: int, outputs: int, name: str) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the inputs' numbers and their weights, of (outputs, taps), and each output's number of taps."""
    arithmetic, _, shape = name.rpartition("-")
    (real, add), (reach, weigh) = _ARITHMETICS[arithmetic], _WEIGHTS[shape]
    scale = real(inputs) / real(outputs)  # the terms below are float64, and only their results are rounded, as in torch
    widened = max(float(scale), 1.0)
    support = real(reach * widened)
    center: np.ndarray = (float(scale) * (np.arange(outputs) + 0.5)).astype(real)
    first = np.maximum(((center - support) + np.float64(0.5)).astype(np.int64), 0)
    count = np.minimum(((center + support) + np.float64(0.5)).astype(np.int64), inputs) - first
    count = np.minimum(count, int(np.ceil(support)) * 2 + 1)
    places = first[:, None] + np.arange(count.max())
    distances = ((places.astype(real) - center[:, None]) + np.float64(0.5)) * float(real(1.0 / widened))
    weights = weigh(np.abs(distances.astype(real)), add)
    weights[places >= (first + count)[:, None]] = 0.0
    totals: np.ndarray = np.zeros(outputs, real)
    for tap in range(weights.shape[1]):  # one after the other, as torch adds them
        totals += weights[:, tap]
    weights /= np.where(totals == 0.0, real(1.0), totals)[:, None]
    return np.minimum(places, inputs - 1), weights, count


def _pass_of_bytes(pixels: np.ndarray, outputs: int, name: str) -> np.ndarray:
    """Resample the second axis of pixels, uint8."""
    places, weights, _ = _weights(pixels.shape[1], outputs, name)
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = weights * (1 << bits)
    coefficients = np.trunc(scaled + np.where(scaled < 0.0, -0.5, 0.5)).astype(np.int32)
    total = np.full((pixels.shape[0], outputs, *pixels.shape[2:]), (1 << bits) >> 1, np.int32)
    for tap in range(places.shape[1]):
        total += pixels[:, places[:, tap]] * coefficients[:, tap].reshape(-1, *[1] * (pixels.ndim - 2))
    return np.clip(total >> bits, 0, 255).astype(np.uint8)


def _pass_of_floats(pixels: np.ndarray, outputs: int, name: str) -> np.ndarray:
    """Resample the second axis of pixels, float32."""
    places, weights, count = _weights(pixels.shape[1], outputs, name)
    add = _ARITHMETICS[name.rpartition("-")[0]][1]
    per_output = (-1, *[1] * (pixels.ndim - 2))  # for each output
    total = pixels[:, places[:, 0]] * weights[:, 0].reshape(per_output)
    for tap in range(1, places.shape[1]):
        terms = pixels[:, places[:, tap]], weights[:, tap].reshape(per_output), total
        by_vectors, ended = tap <= (count - 1) // 4 * 4, tap >= count
        added = np.where(by_vectors.reshape(per_output), separate_add(*terms), add(*terms))
        total = np.where(ended.reshape(per_output), total, added)
    return total


def torch_resample(pixels: np.ndarray, width: int, height: int, name: str) -> np.ndarray:
    """Resample uint8 (height, width[, channels]) by one of `TORCH_FILTERS`: to uint8, or to float32 that is not yet rounded."""
    rows, in_bytes = len(pixels), _ARITHMETICS[name.rpartition("-")[0]][0] is np.float64
    pixels = pixels if in_bytes else pixels.astype(np.float32)
    for size in (width, height):  # an axis that keeps its size is left alone
        if size != pixels.shape[1]:
            pixels = (_pass_of_bytes if in_bytes else _pass_of_floats)(pixels, size, name)
        pixels = pixels.swapaxes(0, 1)
    return np.repeat(pixels[:1], height, axis=0) if not in_bytes and width == 1 and height != rows else pixels


def torch_resize(image: Image.Image, width: int, height: int, name: str) -> Image.Image:
    """Resample an image of mode "RGB" or "L" to (width, height) by one of `TORCH_FILTERS`."""
    pixels = torch_resample(np.asarray(image), width, height, name)
    return Image.fromarray(np.ascontiguousarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)))
