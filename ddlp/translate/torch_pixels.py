"""Whether this process's torch and torchvision make uint8 tensors as ddlp does: by resampling, by changing colours, by moving
pixels, and by decoding JPEG files.
"""

from __future__ import annotations

import functools
import io
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from csd_engine.data.image_files import pillow_open
from csd_engine.kernels.selfcheck import jpegs
from csd_engine.transforms import torch_pixels
from csd_engine.transforms.torch_pixels import GRID_FILTERS
from csd_engine.transforms.torch_resample import TORCH_FILTERS, torch_resample, torch_resize
from csd_engine.transforms.warps import inverse_affine

__all__ = ["decodes_as_pillow", "torch_filter", "torchs_pixels"]

_CASES = ((40, 31, 17, 12), (23, 37, 50, 9), (61, 44, 13, 44), (13, 9, 21, 1))  # height, width, and those of the result
_COLOURS = 128, 125  # height, width
_MAPPED = ((61, 44), (9, 13), (8, 8), (1, 7))


def torch_filter(functional: ModuleType, name: str, antialias: Any) -> str | None:
    """Return the filter with the pixels that torchvision makes of a uint8 tensor by this one; None: it makes others.

    Args:
        functional: torchvision's functions, of v1 or v2.
        name: of torchvision's filter.
        antialias: of the transform.
    """
    arithmetic = _arithmetic(functional)
    return f"{arithmetic}-{name}" if antialias is True and f"{arithmetic}-{name}" in TORCH_FILTERS else None


@functools.cache
def _arithmetic(functional: ModuleType) -> str | None:
    """Resample a few tiny images as torchvision does, and by each kind of arithmetic that may be its own.

    v1 casts bytes to float32. v2 resamples them as bytes where torch has a quick kernel for it, with AVX2. What it
    does elsewhere differs for images of one column, by their layout in memory.
    """
    if functional is v2.functional:
        by_bytes = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        return "torch" if by_bytes and _makes(functional, "torch", _CASES[:-1]) else None
    return next((kind for kind in ("torch-float", "torch-fused") if _makes(functional, kind, _CASES)), None)


def _makes(functional: ModuleType, arithmetic: str, cases: tuple[tuple[int, ...], ...]) -> bool:
    """Whether it makes these pixels, and torch these sums before they are rounded: few roundings show how they were added."""
    for height, width, to_height, to_width in cases:
        pixels, tensor = _noise(height, width)
        for name in ("bilinear", "bicubic"):
            ours = np.asarray(torch_resize(Image.fromarray(pixels), to_width, to_height, f"{arithmetic}-{name}"))
            theirs = functional.resize(tensor, [to_height, to_width], InterpolationMode(name), antialias=True)
            whole = tensor if arithmetic == "torch" else tensor.float()
            sums = torch.nn.functional.interpolate(
                whole[None], (to_height, to_width), mode=name, align_corners=False, antialias=True
            )[0]  # fmt: skip
            ours_unrounded = torch_resample(pixels, to_width, to_height, f"{arithmetic}-{name}")
            for actual, expected in ((ours, theirs), (ours_unrounded, sums)):
                if not np.array_equal(expected.permute(1, 2, 0).numpy(), actual):
                    return False
    return True


def _noise(height: int, width: int) -> tuple[np.ndarray, torch.Tensor]:
    values = np.arange(height * width * 3, dtype=np.uint32) * 2654435761 >> 9
    pixels = values.astype(np.uint8).reshape(height, width, 3)
    return pixels, torch.from_numpy(pixels).permute(2, 0, 1)


def torchs_pixels(functional: ModuleType, maps: bool) -> str | None:
    """Return the one of `torch_pixels.PIXELS` that torchvision's functions make of a uint8 tensor; None: they make others.

    Args:
        functional: torchvision's functions, of v1 or v2.
        maps: also by rotations and affine maps, not only by changes of colours.
    """
    return _pixels(functional, maps, torch.get_default_dtype(), torch.get_float32_matmul_precision())


@functools.cache
def _pixels(functional: ModuleType, maps: bool, *_: Any) -> str | None:
    """Do with an image as torchvision does, and by each kind of arithmetic that may be its own.

    v2's without fused multiply-adds is left out: of 7.8 million values after RandAugment 265 differed, for a reason not known.
    """
    kinds = [kind for kind in torch_pixels.PIXELS[1:] if torch_pixels.is_v2(kind) is (functional is v2.functional)]
    if not _colours(functional, kinds[0]):  # those of a version differ by maps alone
        return None
    return next((kind for kind in kinds if _maps(functional, kind)), None) if maps else kinds[0]


def _colours(functional: ModuleType, whose: str) -> bool:
    """Whether it makes these pixels of an image with so many colours that each way of rounding shows."""
    pixels, tensor = _noise(*_COLOURS)
    pairs: list[tuple[np.ndarray, torch.Tensor]] = [
        (torch_pixels.grey(pixels, whose)[..., np.newaxis], functional.rgb_to_grayscale(tensor)),
        (torch_pixels.auto_contrast(pixels // 3, whose), functional.autocontrast(tensor // 3)),
        (torch_pixels.hue_turned(pixels, 0.2, whose), functional.adjust_hue(tensor, 0.2)),
    ]
    for name in ("brightness", "contrast", "saturation", "sharpness"):
        for factor in (0.3, 1.7):
            theirs = getattr(functional, f"adjust_{name}")(tensor, factor)
            pairs.append((torch_pixels.enhanced(pixels, name, factor, whose), theirs))
    return all(np.array_equal(theirs.permute(1, 2, 0).numpy(), ours) for ours, theirs in pairs)


def _maps(functional: ModuleType, whose: str) -> bool:
    """Whether it samples these values, not rounded as for bytes, by a map that turns, moves and shears.

    Not by any angle: at 17 degrees all kinds of products make the same positions.
    """
    how: dict[str, Any] = {"angle": -31.0, "translate": [3, -2], "scale": 1.2, "shear": [5.0, 3.0]}
    matrix = inverse_affine((0.0, 0.0), -31.0, (3.0, -2.0), 1.2, (5.0, 3.0), torch_pixels.is_v2(whose))
    for height, width in _MAPPED:
        pixels, tensor = _noise(height, width)
        for interpolation in GRID_FILTERS:
            for fill in (None, (7, 90, 200)):
                ours = torch_pixels.sampled(pixels, matrix, interpolation, fill, whose)
                outside = None if fill is None else [float(value) for value in fill]
                theirs = functional.affine(tensor.float(), **how, interpolation=InterpolationMode(interpolation), fill=outside)
                if not np.array_equal(theirs.permute(1, 2, 0).numpy(), ours):
                    return False
    return True


@functools.cache
def decodes_as_pillow(decoder: Callable[..., torch.Tensor]) -> bool:
    """Whether a decode_image, torchvision's or torchcodec's, has Pillow's pixels of JPEG files: both decode a few tiny ones."""
    rgb = sys.modules[decoder.__module__].ImageReadMode.RGB
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the user's own calls warn
        try:
            return all(_decoded_alike(decoder, rgb, data) for _, data in jpegs())
        except RuntimeError:  # it was built without libjpeg
            return False


def _decoded_alike(decoder: Callable[..., torch.Tensor], rgb: Any, jpeg: bytes) -> bool:
    theirs = decoder(torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()), mode=rgb)
    return np.array_equal(theirs.permute(1, 2, 0).numpy(), np.asarray(pillow_open(io.BytesIO(jpeg)).convert("RGB")))
