"""Whether this process's torch and torchvision make uint8 tensors as ddlp does: by resampling, and by decoding JPEG files."""

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
from csd_engine.transforms.torch_resample import TORCH_FILTERS, torch_resample, torch_resize

__all__ = ["decodes_as_pillow", "torch_filter"]

_CASES = ((40, 31, 17, 12), (23, 37, 50, 9), (61, 44, 13, 44), (13, 9, 21, 1))  # height, width, and those of the result


def torch_filter(functional: ModuleType, name: str, antialias: Any) -> str | None:
    """Return the filter with the pixels that torchvision makes of a uint8 tensor by this one; None: it makes others.

    Args:
        functional: torchvision's functions, of v1 or v2.
        name: of torchvision's filter.
        antialias: of the transform.
    """
    made = _arithmetic(functional)
    return f"{made}-{name}" if antialias is True and f"{made}-{name}" in TORCH_FILTERS else None


@functools.cache
def _arithmetic(functional: ModuleType) -> str | None:
    """Resample a few tiny images as torchvision does, and by each kind of arithmetic that may be its own.

    v1 casts bytes to float32. v2 resamples them as bytes where torch has a quick kernel for it, with AVX2. What it
    does elsewhere differs for images of one column, by their layout in memory.
    """
    if functional is v2.functional:
        by_bytes = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        return "torch" if by_bytes and _makes(functional, "torch", _CASES[:-1]) else None
    return next((one for one in ("torch-float", "torch-fused") if _makes(functional, one, _CASES)), None)


def _makes(functional: ModuleType, arithmetic: str, cases: tuple[tuple[int, ...], ...]) -> bool:
    """Whether it makes these pixels, and torch these sums before they are rounded: few roundings show how they were added."""
    for height, width, to_height, to_width in cases:
        values = np.arange(height * width * 3, dtype=np.uint32) * 2654435761 >> 9
        pixels = values.astype(np.uint8).reshape(height, width, 3)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)
        for name in ("bilinear", "bicubic"):
            ours = np.asarray(torch_resize(Image.fromarray(pixels), to_width, to_height, f"{arithmetic}-{name}"))
            theirs = functional.resize(tensor, [to_height, to_width], InterpolationMode(name), antialias=True)
            whole = tensor if arithmetic == "torch" else tensor.float()
            sums = torch.nn.functional.interpolate(
                whole[None], (to_height, to_width), mode=name, align_corners=False, antialias=True
            )[0]  # fmt: skip
            ours_unrounded = torch_resample(pixels, to_width, to_height, f"{arithmetic}-{name}")
            for made, wanted in ((ours, theirs), (ours_unrounded, sums)):
                if not np.array_equal(wanted.permute(1, 2, 0).numpy(), made):
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
