"""torch's resampling of bytes with antialias, by numpy: `torch.nn.functional.interpolate` on uint8 tensors, on the CPU.

It weighs pixels as Pillow does, but rounds the weights of an axis to 16 bits, with as many bits for their fractions as the
largest weight leaves (ATen's UpSampleKernel.cpp: _compute_index_ranges_int16_weights). The horizontal pass comes first always.
The kernel does the same, faster.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, Tuple

import numpy as np
from PIL import Image

__all__ = ["TORCH_FILTERS", "torch_resize"]

TORCH_FILTERS = {"torch-bilinear": 6, "torch-bicubic": 7}  # the kernel's numbers


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - x, 0.0)


def _bicubic(x: np.ndarray) -> np.ndarray:
    """Keys' cubic with a = -1/2."""
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


_WEIGHTS: Dict[str, Tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "torch-bilinear": (1.0, _bilinear),  # how far it reaches, and the weight at a distance
    "torch-bicubic": (2.0, _bicubic),
}


@functools.lru_cache(maxsize=64)
def _coefficients(inputs: int, outputs: int, name: str) -> Tuple[np.ndarray, np.ndarray, int]:
    """Return the inputs' numbers and their coefficients, int64 of (outputs, taps), and the bits of their fractions."""
    reach, weigh = _WEIGHTS[name]
    scale = inputs / outputs
    widened = max(scale, 1.0)
    center = scale * (np.arange(outputs) + 0.5)
    first = np.maximum((center - reach * widened + 0.5).astype(np.int64), 0)
    count = np.minimum((center + reach * widened + 0.5).astype(np.int64), inputs) - first
    places = first[:, None] + np.arange(count.max())
    weights = weigh(np.abs((places - center[:, None] + 0.5) * (1.0 / widened)))
    weights[places >= (first + count)[:, None]] = 0.0
    totals = np.zeros(outputs)
    for tap in range(weights.shape[1]):  # one after the other, as torch adds them
        totals += weights[:, tap]
    weights /= np.where(totals == 0.0, 1.0, totals)[:, None]
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = weights * (1 << bits)
    return np.minimum(places, inputs - 1), np.trunc(scaled + np.where(scaled < 0.0, -0.5, 0.5)).astype(np.int64), bits


def _pass(pixels: np.ndarray, outputs: int, name: str) -> np.ndarray:
    """Resample the second axis of pixels, uint8."""
    if outputs == pixels.shape[1]:
        return pixels
    places, coefficients, bits = _coefficients(pixels.shape[1], outputs, name)
    total = np.full((pixels.shape[0], outputs, *pixels.shape[2:]), (1 << bits) >> 1, np.int32)
    for tap in range(places.shape[1]):
        weights = coefficients[:, tap].astype(np.int32)
        total += pixels[:, places[:, tap]] * weights.reshape(-1, *[1] * (pixels.ndim - 2))
    return np.clip(total >> bits, 0, 255).astype(np.uint8)


def torch_resize(image: Image.Image, width: int, height: int, name: str) -> Image.Image:
    """Resample an image of mode "RGB" or "L" to (width, height) by one of `TORCH_FILTERS`."""
    across = _pass(np.asarray(image), width, name)
    return Image.fromarray(np.ascontiguousarray(_pass(across.swapaxes(0, 1), height, name).swapaxes(0, 1)))
