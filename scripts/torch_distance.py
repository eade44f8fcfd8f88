#!/usr/bin/env python3
"""How far torch's kernels for uint8 tensors (v2 after ToImage) are from Pillow's pixels: the table in docs/operators.md.

    .venv/bin/python scripts/torch_distance.py

Each operator has fixed parameters. It runs on 8 images that `ddlp.sampledata` makes, as PIL images and as tensors. Differences
are in grey levels, 0 to 255.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image, __version__
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from ddlp.sampledata.imagefolder import make_imagefolder

IMAGES = 8
BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "Resize, RandomResizedCrop (bilinear)": lambda x: F.resize(x, [224, 224], BILINEAR, antialias=True),
    "Resize, RandomResizedCrop (bicubic)": lambda x: F.resize(x, [224, 224], BICUBIC, antialias=True),
    "Grayscale": lambda x: F.rgb_to_grayscale(x, 3),
    "ColorJitter: brightness 1.3": lambda x: F.adjust_brightness(x, 1.3),
    "ColorJitter: contrast 1.3": lambda x: F.adjust_contrast(x, 1.3),
    "ColorJitter: saturation 1.3": lambda x: F.adjust_saturation(x, 1.3),
    "ColorJitter: hue 0.1": lambda x: F.adjust_hue(x, 0.1),
    "RandomAdjustSharpness 2.0": lambda x: F.adjust_sharpness(x, 2.0),
    "RandomAutocontrast": F.autocontrast,
    "RandomEqualize": F.equalize,
    "RandomRotation by 13 degrees (nearest)": lambda x: F.rotate(x, 13.0),
    "RandomRotation by 13 degrees (bilinear)": lambda x: F.rotate(x, 13.0, BILINEAR),
    "RandomPosterize": lambda x: F.posterize(x, 4),
    "RandomSolarize": lambda x: F.solarize(x, 100.0),
    "RandomInvert": F.invert,
    "GaussianBlur": lambda x: F.gaussian_blur(x, [9, 9], [1.0, 1.0]),
}


def main() -> None:
    """Print the table."""
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {__version__}, {IMAGES} images\n")
    print("| operator | values that differ | mean | most |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        make_imagefolder(directory, IMAGES, val_images=1, progress=False)
        images = [Image.open(path).convert("RGB") for path in sorted(Path(directory, "train").rglob("*.jpg"))]
        for name, operator in OPERATORS.items():
            away = []
            for image in images:
                by_torch = operator(F.pil_to_tensor(image)).permute(1, 2, 0).numpy().astype(int)
                away.append(np.abs(np.asarray(operator(image)).astype(int) - by_torch).ravel())
            found = np.concatenate(away)
            print(f"| {name} | {(found > 0).mean():.2%} | {found.mean():.4f} | {found.max()} |")


if __name__ == "__main__":
    main()
