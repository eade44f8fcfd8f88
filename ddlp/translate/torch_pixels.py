"""Whether this process's torch and torchvision make uint8 tensors as ddlp does: by resampling, and by decoding JPEG files."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from csd_engine.data.image_files import pillow_open
from csd_engine.kernels.selfcheck import jpegs
from csd_engine.transforms.torch_resample import TORCH_FILTERS, torch_resize

__all__ = ["decodes_as_pillow", "torch_filter"]

_CASES = ((40, 31, 17, 12), (23, 37, 50, 9), (61, 44, 13, 44))  # height, width, and those of the result


def torch_filter(name: str, antialias: Any) -> str | None:
    """Return the filter with the pixels that v2 makes of a uint8 tensor by this one; None: they are made in another way.

    torchvision resamples bytes as bytes where torch has a quick kernel for it, and as float32 elsewhere.

    Args:
        name: of torchvision's filter.
        antialias: of the transform.
    """
    return f"torch-{name}" if antialias is True and f"torch-{name}" in TORCH_FILTERS and _is_known() else None


@functools.cache
def _is_known() -> bool:
    """Resample a few tiny images both ways. Without AVX2 torch has another kernel, which differs for images of one column."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    for height, width, to_height, to_width in _CASES:
        values = np.arange(height * width * 3, dtype=np.uint32) * 2654435761 >> 9
        pixels = values.astype(np.uint8).reshape(height, width, 3)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)
        for name in ("bilinear", "bicubic"):
            ours = np.asarray(torch_resize(Image.fromarray(pixels), to_width, to_height, f"torch-{name}"))
            theirs = functional.resize(tensor, [to_height, to_width], InterpolationMode(name), antialias=True)
            if not np.array_equal(theirs.permute(1, 2, 0).numpy(), ours):
                return False
    return True


@functools.cache
def decodes_as_pillow() -> bool:
    """Whether torchvision's libjpeg has Pillow's pixels: both decode a few tiny files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the user's own calls warn
        try:
            return all(_decoded_alike(data) for _, data in jpegs())
        except RuntimeError:  # torchvision was built without libjpeg
            return False


def _decoded_alike(jpeg: bytes) -> bool:
    theirs = decode_image(torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()), ImageReadMode.RGB)
    return np.array_equal(theirs.permute(1, 2, 0).numpy(), np.asarray(pillow_open(io.BytesIO(jpeg)).convert("RGB")))
