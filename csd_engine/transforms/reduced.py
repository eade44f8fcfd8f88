"""``decode="fast"``: a JPEG is decoded at a half, a quarter or an eighth of its size if the result is that small.

A JPEG decoder can leave out the high frequencies of each 8 x 8 block and give 4 x 4, 2 x 2 or one pixel for it (libjpeg's
scale_denom, Pillow's `draft`). That takes less arithmetic, and leaves fewer pixels to resample. The result differs a little
from resampling the whole image, so it is used only if the user asks for it. The decision uses integers only, so that both sides
decide alike.
"""

from __future__ import annotations

from typing import Tuple

from PIL import Image

from csd_engine.transforms.primitives import Crop, Primitive, Resize
from csd_engine.transforms.resample import RESAMPLED

__all__ = ["DECODES", "draft", "is_jpeg", "reduced"]

DECODES = ("exact", "fast")
_REDUCTIONS = (8, 4, 2)


def reduced(steps: Tuple[Primitive, ...], size: Tuple[int, int]) -> Tuple[Tuple[Primitive, ...], int]:
    """Return the steps for the image decoded at 1 / `reduce` of its size, and `reduce`: 1, 2, 4 or 8.

    It is the largest `reduce` that leaves the crop at least as large as its resampled result. The crop's borders move outwards
    to whole pixels of the reduced image.

    Args:
        steps: for the whole image; only [Crop,] Resize at the beginning can be reduced.
        size: (width, height) of the whole image.
    """
    at = 1 if steps and isinstance(steps[0], Crop) else 0
    resize = steps[at] if len(steps) > at else None
    if not isinstance(resize, Resize) or resize.interpolation not in RESAMPLED:
        return steps, 1  # the other filter needs each single pixel of the whole image
    crop = steps[0] if at else Crop(0, 0, size[1], size[0])
    assert isinstance(crop, Crop)
    fits = [s for s in _REDUCTIONS if crop.width >= s * resize.width and crop.height >= s * resize.height]
    if not fits:
        return steps, 1
    reduce = fits[0]
    top, left = crop.top // reduce, crop.left // reduce
    bottom, right = -(-(crop.top + crop.height) // reduce), -(-(crop.left + crop.width) // reduce)
    rest = steps[at + 1 :]
    before: Tuple[Primitive, ...] = (Crop(top, left, bottom - top, right - left),) if at else ()
    if (bottom - top, right - left) == (resize.height, resize.width):
        return before + rest, reduce
    return (*before, resize, *rest), reduce


def is_jpeg(image: Image.Image) -> bool:
    """Whether an opened image is a JPEG file (MPO: with several pictures), which can be decoded at a fraction of its size."""
    return image.format in ("JPEG", "MPO")


def draft(image: Image.Image, reduce: int) -> None:
    """Make Pillow decode an opened JPEG at 1 / `reduce` of its size. ValueError if it is not a JPEG, or decoded already."""
    width, height = image.size
    wanted = (-(-width // reduce), -(-height // reduce))
    image.draft(None, (width // reduce, height // reduce))
    if image.size != wanted:
        raise ValueError(f"a {image.format} of {width}x{height} pixels can't be decoded at 1/{reduce}: got {image.size}")
