"""Pillow's resampling, in which the caller chooses the order of the two passes.

Pillow up to 12 resamples horizontally, then vertically. Pillow 13 begins with the vertical pass if the image loses more than
twice as much height as width. Values are rounded to 8 bits between the passes, so some differ by 1 between the two orders.
"""

from __future__ import annotations

import functools
from typing import Tuple

import numpy as np
from PIL import Image

from csd_engine.data.image_files import is_above_limit
from csd_engine.errors import PipelineError
from csd_engine.transforms.torch_resample import TORCH_FILTERS, torch_resize

__all__ = ["FILTERS", "ORDERS", "RESAMPLED", "crop_resize", "native_order", "resize", "vertical_first"]

ORDERS = ("pillow12", "pillow13")
_BAND_PIXELS = 1 << 18  # 1 MB in Pillow's memory: a band stays in a core's cache
_WHOLE_PIXELS = 1 << 20  # a crop up to this size is copied in one piece, which needs less Python
# Pillow's numbers; the names are torchvision's. The enum Image.Resampling came only with Pillow 9.1.
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
# The filters that weigh pixels, in two passes, which the kernel does with the same bits. "nearest" copies pixels.
RESAMPLED = {**{name: number for name, number in FILTERS.items() if name != "nearest"}, **TORCH_FILTERS}


def vertical_first(order: str, width: int, height: int, out_width: int, out_height: int) -> bool:
    """Whether this order of passes begins with the vertical pass for this change of size."""
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
    """Resample an image to (width, height) with the passes in the given order, by any version of Pillow; or as torch does."""
    if filter_name in TORCH_FILTERS:
        return torch_resize(image, width, height, filter_name)
    number = FILTERS[filter_name]
    one_pass = filter_name not in RESAMPLED or width == image.width or height == image.height
    if one_pass or order == native_order():
        return image.resize((width, height), number)
    wanted = vertical_first(order, image.width, image.height, width, height)
    if wanted == vertical_first(native_order(), image.width, image.height, width, height):
        return image.resize((width, height), number)
    return _by_axis(image, width, height, number, wanted)


def crop_resize(
    image: Image.Image, box: Tuple[int, int, int, int], mode: str, width: int, height: int, filter_name: str, order: str
) -> Image.Image:
    """Crop to (left, top, right, bottom), convert to `mode` and `resize`, with little memory besides the image's.

    Each pass works on rows (or columns) one by one. So a large crop goes through the first pass in bands, with the same bits as
    in one piece. Otherwise a photograph of 12 megapixels would be in memory twice, as 98 MB instead of 49 MB.
    """
    left, top, right, bottom = box
    across, down = right - left, bottom - top
    number = RESAMPLED.get(filter_name, 0)

    def piece(box: Tuple[int, int, int, int]) -> Image.Image:
        part = image.crop(box)
        return part if part.mode == mode else part.convert(mode)

    in_one_piece = filter_name not in RESAMPLED or filter_name in TORCH_FILTERS or width == across or height == down
    if in_one_piece or across * down <= _WHOLE_PIXELS or is_above_limit(across * down):  # Pillow judges the crop, not a band
        return resize(piece(box), width, height, filter_name, order)
    if vertical_first(order, across, down, width, height):
        between = Image.new(mode, (across, height))
        step = max(1, _BAND_PIXELS // down)
        for start in range(left, right, step):
            end = min(start + step, right)
            between.paste(piece((start, top, end, bottom)).resize((end - start, height), number), (start - left, 0))
    else:
        between = Image.new(mode, (width, down))
        step = max(1, _BAND_PIXELS // across)
        for start in range(top, bottom, step):
            end = min(start + step, bottom)
            between.paste(piece((left, start, right, end)).resize((width, end - start), number), (0, start - top))
    return between.resize((width, height), number)
