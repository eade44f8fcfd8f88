"""Small images, always the same: one of noise, and many JPEG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def image(width: int = 50, height: int = 41, mode: str = "RGB") -> Image.Image:
    """Noise."""
    values = np.random.RandomState(1).randint(0, 256, (height, width, 3)).astype(np.uint8)
    return Image.fromarray(values).convert(mode)


def make_images(root: Path, count: int) -> list[str]:
    """Write `count` files of different sizes, "image 0.jpg" and so on. Returns their paths."""
    random = np.random.default_rng(11)
    root.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        height, width = random.integers(40, 70, 2)
        path = root / f"image {number}.jpg"
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path, quality=80)
        paths.append(str(path))
    return paths
