"""A user's operators, for `ddlp.load_operators`: they need numpy and Pillow alone."""

from typing import Any

import numpy as np


def grain(image: Any, rng: Any, strength: float = 8.0) -> Any:
    """Add normal noise, the same in all channels."""
    pixels = np.asarray(image)
    noise = rng.normal(0.0, strength, pixels.shape[:2])[..., None]
    return np.clip(np.rint(pixels + noise), 0, 255).astype(np.uint8)


def same(image: Any) -> Any:
    """Return the same image: this shows the cost of a user's operator itself."""
    return image
