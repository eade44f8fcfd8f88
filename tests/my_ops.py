"""Operators as a user would write them, for the tests: numpy, Pillow and the standard library only."""

import math

import numpy as np
from PIL import Image


def vignette(image, rng, strength=0.5):
    """Darkens an image away from a random point. Returns an array."""
    height, width = image.height, image.width
    y, x = np.ogrid[:height, :width]
    dy, dx = y / height - rng.uniform(0.3, 0.7), x / width - rng.uniform(0.3, 0.7)
    factor = 1.0 - strength * np.minimum(dy * dy + dx * dx, 1.0)
    pixels = np.asarray(image) * (factor[..., None] if image.mode == "RGB" else factor)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def noise(image, rng, scale=8.0):
    """Normal noise on each value."""
    pixels = np.asarray(image)
    return np.clip(np.rint(pixels + rng.normal(0.0, scale, pixels.shape)), 0, 255).astype(np.uint8)


def invert(image):
    """Inverts an image. It draws no numbers, and returns an image."""
    return Image.eval(image, lambda value: 255 - value)


def letterbox(image, side, fill=(0, 0, 0)):
    """Changes the size: use it with .sized(side, side). It prints, and draws on the image that it was given."""
    print("letterbox is at work")
    scale = side / max(image.size)
    small = image.resize([max(1, math.floor(length * scale)) for length in image.size], 0)
    framed = Image.new(image.mode, (side, side), fill if image.mode == "RGB" else fill[0])
    framed.paste(small, (0, 0))
    image.paste(framed.crop((0, 0, 1, 1)), (0, 0))
    return framed


def moody(image, rng, error="ValueError"):
    """Raises on about one image in eight."""
    if rng.integers(8) == 0:
        raise {"ValueError": ValueError, "SystemExit": SystemExit}[error]("not in the mood")
    return image


def _private(image):
    return image
