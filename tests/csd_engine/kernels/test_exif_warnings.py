"""Damaged Exif data: the kernel leaves to Pillow each file that Pillow warns of."""

from __future__ import annotations

import io
import struct
import warnings

import numpy as np
import pytest
from PIL import Image

from csd_engine import kernels

MAKE, UNIT, X_RESOLUTION, EXPOSURE = 0x010F, 0x0128, 0x011A, 0x829A


def jpeg(exif: bytes, **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((16, 24, 3), np.uint8)).save(out, "JPEG", exif=exif, **options)
    return out.getvalue()


def camera(order: str) -> bytes:
    """Exif data as a camera writes them: numbers, texts and fractions, some beside the directory."""
    exif = Image.Exif()
    exif.endian = order
    exif[MAKE], exif[UNIT], exif[X_RESOLUTION], exif[EXPOSURE] = "A maker of cameras", 2, 72.0, 0.01
    return exif.tobytes()


def warned(data: bytes) -> list[str]:
    """What Pillow warns of, or raises, when it opens and decodes a file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Image.open(io.BytesIO(data)).convert("RGB")
        except OSError as error:
            return [str(error)]
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("order", "<>")
def test_what_pillow_warns_of_is_left_to_it(need_kernel, order):
    context, random = kernels.kernel().context(), np.random.default_rng(3)
    whole = camera(order)
    assert context.take(jpeg(whole)) == (24, 16) and not warned(jpeg(whole))
    taken = left = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for place in random.integers(6, len(whole), random.integers(1, 4)):
            damaged[place] = random.choice([0, 1, 3, 5, 13, 16, 255, random.integers(256)])
        data = jpeg(bytes(damaged[: random.integers(14, len(damaged) + 1)] if random.random() < 0.2 else damaged))
        takes, texts = context.take(data) is not None, warned(data)
        assert not (takes and texts), (bytes(damaged).hex(), texts)
        taken, left = taken + takes, left + bool(texts)
    assert taken > 100 and left > 100, (taken, left)


def test_two_segments_and_a_resolution_of_jfif(need_kernel):
    """Pillow joins the segments. It reads none of them if it knows the resolution already."""
    context = kernels.kernel().context()
    cut = camera("<")[:-30]
    assert context.take(jpeg(cut)) is None and warned(jpeg(cut))
    assert context.take(jpeg(cut, dpi=(72, 72))) == (24, 16) and not warned(jpeg(cut, dpi=(72, 72)))
    one = jpeg(camera("<"))
    segment = b"\xff\xe1" + struct.pack(">H", len(cut) + 2) + cut
    assert context.take(one[:2] + segment + one[2:]) is None
