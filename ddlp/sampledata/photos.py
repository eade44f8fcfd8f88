"""The source photographs, and crops of them."""

from __future__ import annotations

import functools
import importlib.util
import random
from pathlib import Path

from PIL import Image

from ddlp.errors import DDLPError

# Class name -> (package, file in it). In colour and in the wheels; skimage.data fetches others from the network.
_FILES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "palace": ("sklearn", "datasets/images/china.jpg"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}

#: Names of the ten classes, one a photograph, in ImageFolder's (alphabetical) order.
CLASSES: tuple[str, ...] = tuple(sorted(_FILES))


class SampleDataError(DDLPError):
    """A sample data set can't be made: what happened, where, what to do."""


@functools.cache
def photograph(name: str) -> Image.Image:
    """Return the photograph of class `name`, decoded, in RGB. It is shared: don't write into it.

    Raises:
        KeyError: `name` is not in `CLASSES`.
        SampleDataError: the package that ships it is not installed or does not ship it any more.
    """
    package, inside = _FILES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SampleDataError(
            f"package {package} is not installed; it ships the photograph of class {name!r}. "
            "Install the extra: pip install 'ddlp[quickstart]'"
        )
    path = Path(spec.origin).parent / inside
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise SampleDataError(
            f"photograph of class {name!r} can't be read: {error}. It should be at {path}; "
            f"reinstall {package}, or another version of it"
        ) from error


def draw_box(size: tuple[int, int], aspect: float, draws: random.Random) -> tuple[float, float, float, float]:
    """Draw a crop of width/height `aspect` from a photograph of (width, height) `size`.

    Between 0.3 and all of the largest such crop, anywhere. Returns (left, top, right, bottom) in pixels, fractional.
    """
    width, height = size
    scale = 0.3 + 0.7 * draws.random()
    crop_width = min(width, height * aspect) * scale
    crop_height = crop_width / aspect
    left = draws.random() * (width - crop_width)
    top = draws.random() * (height - crop_height)
    # A rounding error must not put the box's edge outside.
    return left, top, min(left + crop_width, width), min(top + crop_height, height)


def draws_for(*key: object) -> random.Random:
    """A generator keyed by `key`. random.Random.random() gives the same numbers in every version of Python."""
    return random.Random("/".join(str(part) for part in key))
