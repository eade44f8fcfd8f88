"""A tiny JPEG data set in ImageFolder layout, made in a fraction of a second: to try a script out."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from ddlp.sampledata.photos import CLASSES, SampleDataError, draw_box, draws_for, photograph


def make_thumbnails(directory: str | os.PathLike[str], images: int, val_images: int, *, side: int = 64, seed: int = 0) -> Path:
    """Write train/<class>/*.jpg and val/<class>/*.jpg below `directory`: crops of the photographs, about `side` pixels wide.

    The same arguments give the same pixels. Files that are there are left alone.

    Args:
        directory: made if need be.
        images: number of train images, over all classes.
        val_images: number of val images, other crops.
        side: width in pixels; heights are between 0.6 and 1.2 times as many.
        seed: everything is drawn from it.

    Returns:
        The directory.

    Raises:
        SampleDataError: a number below 1, or the packages with the photographs are missing.
    """
    root = Path(directory)
    if min(images, val_images, side) < 1:
        raise SampleDataError(f"{images} train and {val_images} val images of {side} pixels asked for {root}; give at least 1")
    for part, count in (("train", images), ("val", val_images)):
        for position in range(count):
            name = CLASSES[position % len(CLASSES)]
            path = root / part / name / f"{position:05d}.jpg"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            draws = draws_for(seed, "thumbnail", part, position)
            photo = photograph(name)
            height = round(side * (0.6 + 0.6 * draws.random()))
            box = draw_box(photo.size, side / height, draws)
            image = photo.resize((side, height), Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
            unfinished = path.with_suffix(f".{os.getpid()}")  # the ranks of one run may make the set at once
            image.save(unfinished, "JPEG", quality=90)
            unfinished.replace(path)
    return root
