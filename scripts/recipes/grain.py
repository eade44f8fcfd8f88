"""Operators of one's own, for `ddlp.load_operators`: numpy and Pillow alone."""

from typing import Any

import numpy as np


def grain(image: Any, rng: Any, strength: float = 8.0) -> Any:
    """Normal noise, the same in all channels."""
    pixels = np.asarray(image)
    noise = rng.normal(0.0, strength, pixels.shape[:2])[..., None]
    return np.clip(np.rint(pixels + noise), 0, 255).astype(np.uint8)


def same(image: Any) -> Any:
    """Nothing: what the way through an own operator costs."""
    return image
