"""Checks that the kernel's pixels are those of this Pillow: both decode a few tiny JPEGs, once per process, in milliseconds."""

from __future__ import annotations

import io
from typing import Iterator, Tuple

import numpy as np
from PIL import Image

from csd_engine.kernels.library import Job, Kernel

__all__ = ["first_difference"]

_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers; the enum came only with Pillow 9.1
_LEFT_RIGHT = 0
_WIDTH, _HEIGHT = 61, 83
# left, top, width, height, out width, out height, filter
_CASES = (
    (0, 0, 61, 83, 24, 20, _BILINEAR),
    (17, 30, 33, 41, 40, 20, _BILINEAR),
    (9, 51, 50, 32, 20, 47, _BICUBIC),
)


def _jpegs() -> Iterator[Tuple[str, bytes]]:
    """Make JPEGs of smooth colours with noise, so that every coefficient is used."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH].astype(np.uint32)
    noise = (x * 2654435761 + y * 40503 + x * y * 97) >> 9 & 63
    pixels = np.stack([x * 3 + noise, y * 2 + noise, (x + y) + (noise ^ 21)], axis=2).astype(np.uint8)
    for name, array, options in (
        ("4:2:0", pixels, {"subsampling": 2}),
        ("4:4:4", pixels, {"subsampling": 0, "progressive": True}),
        ("grey", pixels[:, :, 0], {}),
    ):
        stream = io.BytesIO()
        Image.fromarray(array).save(stream, "JPEG", quality=80, **options)
        yield name, stream.getvalue()


def first_difference(kernel: Kernel) -> str:
    """Return "" if all values agree, else a line about the first difference."""
    context = kernel.context()
    for name, data in _jpegs():
        size = context.take(data)
        if size != (_WIDTH, _HEIGHT):
            return f"a {name} JPEG was refused: {context.why()}"
        whole = Image.open(io.BytesIO(data), formats=("JPEG",)).convert("RGB")
        for left, top, width, height, out_width, out_height, number in _CASES:
            crop = whole.crop((left, top, left + width, top + height))
            for vertical_first, between in ((0, (out_width, height)), (1, (width, out_height))):
                wanted = crop.resize(between, number).resize((out_width, out_height), number)
                out = np.empty((out_height, out_width, 3), dtype=np.uint8)
                job = Job(
                    left=left, top=top, width=width, height=height, full_width=out_width, full_height=out_height,
                    filter=number, out_width=out_width, out_height=out_height, flip_horizontal=1,
                    vertical_first=vertical_first, reduce=1, channels=3,
                )  # fmt: skip
                if not context.sample(job, out):
                    return f"a {name} JPEG was refused: {context.why()}"
                if out.tobytes() != wanted.transpose(_LEFT_RIGHT).tobytes():  # type: ignore[arg-type]
                    return f"other pixels than Pillow's, {name}, {width}x{height} to {out_width}x{out_height}, filter {number}"
    return ""
