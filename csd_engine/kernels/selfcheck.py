"""Checks that the kernel's pixels are those of this Pillow: both decode a few tiny JPEGs, once per process, in milliseconds."""

from __future__ import annotations

import io
from typing import Any, Iterator, Sequence, Tuple

import numpy as np
from PIL import Image

from csd_engine.kernels.library import Job, Kernel

__all__ = ["first_difference", "jpegs"]

_LANCZOS, _BILINEAR, _BICUBIC, _BOX, _HAMMING = range(1, 6)  # Pillow's numbers; the enum came only with Pillow 9.1
_LEFT_RIGHT = 0
_WIDTH, _HEIGHT = 61, 83
_STRIP = 16  # rows of an MCU with 4:2:0
# left, top, width, height, out width, out height, filter; the region is inside an image of 83 x 61 pixels too
_REGION = (17, 19, 33, 41, 40, 20)
_CASES = (
    (0, 0, 61, 83, 24, 20, _BILINEAR),
    (*_REGION, _BILINEAR),
    (9, 51, 50, 32, 20, 47, _BICUBIC),
)
_OTHER_FILTERS = {"4:2:2": _LANCZOS, "4:4:4": _BOX, "grey": _HAMMING}  # each filter once, at no further call


def _encoded(pixels: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=80, **options)
    return stream.getvalue()


def jpegs() -> Iterator[Tuple[str, bytes]]:
    """Make JPEGs of smooth colours with noise, so that every coefficient is used."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH].astype(np.uint32)
    noise = (x * 2654435761 + y * 40503 + x * y * 97) >> 9 & 63
    pixels = np.stack([x * 3 + noise, y * 2 + noise, (x + y) + (noise ^ 21)], axis=2).astype(np.uint8)
    yield "4:2:0", _encoded(pixels, subsampling=2)
    yield "4:2:2", _encoded(pixels, subsampling=1)
    yield "4:4:4", _encoded(pixels, subsampling=0)
    yield "4:4:0", _turned(_encoded(pixels, subsampling=1))
    yield "grey", _encoded(pixels[:, :, 0])
    yield "restarted", _restarted([_encoded(pixels[top : top + _STRIP], subsampling=2) for top in range(0, _HEIGHT, _STRIP)])
    yield "progressive 4:4:4", _encoded(pixels, subsampling=0, progressive=True)


def _turned(jpeg: bytes) -> bytes:
    """Return a 4:2:2 file as one of 4:4:0, which Pillow can't write: width and height change places in the header, in the
    sampling factors too. It has as many blocks, which are now in other places.
    """
    at = jpeg.index(b"\xff\xc0") + 5  # the height, in the frame header
    size = jpeg[at + 2 : at + 4] + jpeg[at : at + 2]
    return jpeg[:at] + size + jpeg[at + 4 :].replace(b"\1\x21\0", b"\1\x12\0", 1)


def _restarted(strips: Sequence[bytes]) -> bytes:
    """Return one file of strips of one MCU, with restart markers between them. Pillow before 10.2 writes no such file."""
    first = strips[0]
    size = first.index(b"\xff\xc0") + 5
    scan = first.index(b"\xff\xda")
    data = scan + 2 + int.from_bytes(first[scan + 2 : scan + 4], "big")
    interval = b"\xff\xdd\0\4" + (-(-_WIDTH // _STRIP)).to_bytes(2, "big")
    file = first[:size] + _HEIGHT.to_bytes(2, "big") + first[size + 2 : scan] + interval + first[scan:data]
    for number, strip in enumerate(strips):
        file += strip[data:-2] + bytes([0xFF, 0xD0 + number])
    return file[:-2] + b"\xff\xd9"


def first_difference(kernel: Kernel) -> str:
    """Return "" if all values agree, else a line about the first difference."""
    context = kernel.context()
    for name, data in jpegs():
        file = Image.open(io.BytesIO(data), formats=("JPEG",))
        if context.take(data) != file.size:
            return f"a {name} JPEG was refused: {context.why()}"
        whole = file.convert("RGB")
        region = (*_REGION, _OTHER_FILTERS.get(name, _BILINEAR))
        cases, orders = (_CASES, (0, 1)) if name == "4:2:0" else ((region,), (0,))
        for left, top, width, height, out_width, out_height, number in cases:
            crop = whole.crop((left, top, left + width, top + height))
            for vertical_first in orders:
                between = (width, out_height) if vertical_first else (out_width, height)
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
