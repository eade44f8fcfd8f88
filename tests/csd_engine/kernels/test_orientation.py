"""Files with an orientation tag: the kernel leaves those to Pillow that Pillow would turn, and takes the others."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from csd_engine import kernels

ORIENTATION = 0x0112


@pytest.fixture
def context(need_kernel):
    return kernels.kernel().context()


def jpeg(*segments: bytes) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((16, 24, 3), np.uint8)).save(out, "JPEG", dpi=(72, 72))  # else Pillow reads Exif at once
    whole = out.getvalue()
    applied = b"".join(b"\xff\xe1" + struct.pack(">H", len(one) + 2) + one for one in segments)
    return whole[:2] + applied + whole[2:]


def exif(entries, order="<", at=8, count=None) -> bytes:
    """An Exif segment whose first directory has these (tag, type, count, value)."""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", at)
    rows = b""
    for tag, kind, many, value in entries:
        rows += struct.pack(f"{order}HHI", tag, kind, many)
        rows += struct.pack(f"{order}HH", value, 0) if kind == 3 else struct.pack(f"{order}I", value)
    told = struct.pack(f"{order}H", len(entries) if count is None else count)
    return b"Exif\0\0" + head + bytes(at - 8) + told + rows + bytes(4)


def pillow_turns(data: bytes) -> bool:
    image = Image.open(io.BytesIO(data))
    try:
        return image.getexif().get(ORIENTATION, 1) != 1
    except Exception:
        return True


def xmp(text: str) -> bytes:
    return b"http://ns.adobe.com/xap/1.0/\0" + text.encode()


OTHER = (0x0100, 3, 1, 6)
CASES = {  # segments, and whether the kernel takes the file
    "nothing": ((), True),
    "no orientation": ((exif([OTHER]),), True),
    "empty": ((exif([]),), True),
    "upright": ((exif([OTHER, (ORIENTATION, 3, 1, 1)]),), True),
    "upright, other order": ((exif([(ORIENTATION, 3, 1, 1)], ">"),), True),
    "upright, further on": ((exif([(ORIENTATION, 3, 1, 1)], at=40),), True),
    "a packet of something else": ((xmp("<x/>"),), True),
    "turned": ((exif([OTHER, (ORIENTATION, 3, 1, 6)]),), False),
    "turned, other order": ((exif([(ORIENTATION, 3, 1, 8)], ">"),), False),
    "0": ((exif([(ORIENTATION, 3, 1, 0)]),), False),
    "a long": ((exif([(ORIENTATION, 4, 1, 6)]),), False),
    "twice": ((exif([(ORIENTATION, 3, 1, 1)]), exif([(ORIENTATION, 3, 1, 6)])), False),
    "twice in one": ((exif([(ORIENTATION, 3, 1, 1), (ORIENTATION, 3, 1, 6)]),), False),
    "in a packet": ((xmp('<x tiff:Orientation="6"/>'),), False),
    "in a packet, after Exif": ((exif([OTHER]), xmp("<tiff:Orientation>3</tiff:Orientation>")), False),
    "too many entries": ((exif([(ORIENTATION, 3, 1, 1)], count=9),), False),
    "no directory": ((b"Exif\0\0II*\0\xff\xff\0\0",), False),
    "cut short": ((b"Exif\0\0II",), False),
    "another order": ((b"Exif\0\0XX*\0" + exif([])[10:],), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_pillow_would_turn_is_left_to_it(context, name):
    segments, taken = CASES[name]
    data = jpeg(*segments)
    assert context.take(data) == (24, 16)
    assert context.turned != taken
    assert not (taken and pillow_turns(data))


def test_damaged_segments(context):
    drawn = np.random.default_rng(4)
    plain = [exif([OTHER, (ORIENTATION, 3, 1, value)], order, at) for value in (1, 6) for order in "<>" for at in (8, 20)]
    seen = {True: 0, False: 0}
    for _ in range(3000):
        segment = bytearray(plain[drawn.integers(len(plain))])
        for _ in range(drawn.integers(3)):
            segment[drawn.integers(6, len(segment))] = drawn.integers(256)
        data = jpeg(bytes(segment[: drawn.integers(8, len(segment) + 1)] if drawn.random() < 0.3 else segment))
        if context.take(data) is not None:
            seen[context.turned] += 1
            assert context.turned or not pillow_turns(data), bytes(segment)
    assert min(seen.values()) > 300
