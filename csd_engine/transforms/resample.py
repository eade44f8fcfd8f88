"""Pillow's resampling with the order of its two passes chosen by the caller.

Pillow up to 12 resamples horizontally, then vertically. Pillow 13 begins with the vertical pass where the image loses
more height than twice what it loses in width, and rounding to 8 bits between the passes makes some values differ by 1.
"""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image

from csd_engine.errors import PipelineError

__all__ = ["FILTERS", "ORDERS", "native_order", "resize", "vertical_first"]

ORDERS = ("pillow12", "pillow13")
# Pillow's numbers; the names are torchvision's. The enum Image.Resampling came only with Pillow 9.1.
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def vertical_first(order: str, width: int, height: int, out_width: int, out_height: int) -> bool:
    """Whether this order of passes begins with the vertical one for this change of size."""
    lost = height - out_height
    return order == "pillow13" and lost > 0 and lost > 2 * (width - out_width)


def _by_axis(image: Image.Image, width: int, height: int, filter_number: int, vertical: bool) -> Image.Image:
    between = (image.width, height) if vertical else (width, image.height)
    return image.resize(between, filter_number).resize((width, height), filter_number)


@functools.lru_cache(maxsize=None)
def native_order() -> str:
    """Order of the passes in this process's Pillow: ``"pillow12"`` or ``"pillow13"``, found by resizing a tiny image.

    Raises PipelineError if it does neither (a fork of Pillow that resamples otherwise).
    """
    values = (np.arange(40 * 12, dtype=np.uint32) * 2654435761 >> 7).astype(np.uint8).reshape(40, 12)
    image = Image.fromarray(values)
    native = image.resize((7, 9), FILTERS["bilinear"]).tobytes()
    for order, vertical in (("pillow12", False), ("pillow13", True)):
        if native == _by_axis(image, 7, 9, FILTERS["bilinear"], vertical).tobytes():
            return order
    raise PipelineError(
        f"Pillow {Image.__version__} resamples in neither of the known orders of passes {ORDERS}, so its pixels can't "
        "be reproduced elsewhere; install Pillow from 9.4 to 13 from its own project"
    )


def resize(image: Image.Image, width: int, height: int, filter_name: str, order: str) -> Image.Image:
    """Image resampled to (width, height) with the passes in the given order, whatever this process's Pillow does."""
    number = FILTERS[filter_name]
    one_pass = filter_name == "nearest" or width == image.width or height == image.height
    if one_pass or order == native_order():
        return image.resize((width, height), number)
    wanted = vertical_first(order, image.width, image.height, width, height)
    if wanted == vertical_first(native_order(), image.width, image.height, width, height):
        return image.resize((width, height), number)
    return _by_axis(image, width, height, number, wanted)
