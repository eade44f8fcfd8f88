"""What each image of an ImageNet-like set is to be: size, kind and quality, from (seed, position) alone."""

from __future__ import annotations

import dataclasses
import random

from ddlp.sampledata.photos import CLASSES, draws_for

SMALLEST = (75, 56)
LARGEST = (4288, 2848)
MEAN = (469, 387)  # ImageNet's mean width and height

# Kinds of file, as in ImageNet; there CMYK 22 times and one PNG with a JPEG's name in 1.28 million, here more often.
KINDS = ("420", "444", "progressive", "grey", "cmyk", "png")

# Strides are odd numbers prime to the number of classes, so that rare kinds and sizes meet all classes.
_RARE_KINDS = ((101, 7, "cmyk"), (1009, 11, "png"))
_RARE_SIZES = ((1601, 17, LARGEST), (401, 23, SMALLEST))

# Shares of the sizes that ImageNet's histogram peaks at; the rest is spread (see `_size`). Together the mean is MEAN.
_PEAKS = ((0.36, (500, 375)), (0.16, (500, 333)), (0.12, (375, 500)), (0.04, (333, 500)))
_LONG_SIDE_500 = 0.11
_LARGER = 0.05


@dataclasses.dataclass(frozen=True)
class ImagePlan:
    """One image to be made."""

    position: int
    train: bool
    label: int  # into CLASSES
    size: tuple[int, int]  # width, height in pixels
    kind: str  # one of KINDS
    quality: float  # JPEG quality above the lowest that the detail knob allows: 0 to 10

    @property
    def path(self) -> str:
        """Where it goes below the data set's directory."""
        return f"{'train' if self.train else 'val'}/{CLASSES[self.label]}/{self.position:07d}.jpg"


def plan_image(seed: int, train: bool, position: int) -> ImagePlan:
    """Plan image number `position` of train or val.

    Size and kind come from low-discrepancy sequences (a shuffle would need the set's length): even a small set has
    every kind in about its share, and a longer set starts with the same images as a shorter one.
    """
    draws = draws_for(seed, "plan", train, position)
    # Multiples of the golden ratio and of sqrt(2), mod 1, spread evenly and independently of each other.
    spread_size = (position * 0.6180339887498949 + 0.5) % 1.0
    spread_kind = (position * 1.4142135623730951 + 0.25) % 1.0
    size = next((size for every, first, size in _RARE_SIZES if position % every == first), None)
    kind = next((kind for every, first, kind in _RARE_KINDS if position % every == first), None)
    if kind is None:
        kind = _kind(spread_kind)
    if size is None:
        size = _size(spread_size, draws)
    return ImagePlan(position, train, position % len(CLASSES), size, kind, 10 * draws.random())


def _kind(spread: float) -> str:
    for share, kind in ((0.015, "grey"), (0.06, "progressive"), (0.10, "444")):
        if spread < share:
            return kind
        spread -= share
    return "420"


def _size(spread: float, draws: random.Random) -> tuple[int, int]:
    for share, size in _PEAKS:
        if spread < share:
            return size
        spread -= share
    if spread < _LONG_SIDE_500:
        return 500, round(280 + 220 * draws.random())
    if spread < _LONG_SIDE_500 + _LARGER:
        width = round(560 + 900 * draws.random() ** 2)
        return width, round(width * (0.62 + 0.3 * draws.random()))
    # The small ones: a long side from 75 up, few very small.
    long_side = 75 + 400 * draws.random() ** 0.6
    short_side = max(56.0, long_side * (0.62 + 0.36 * draws.random()))
    width, height = max(round(long_side), SMALLEST[0]), round(short_side)
    return (width, height) if draws.random() < 0.7 else (max(height, SMALLEST[0]), width)
