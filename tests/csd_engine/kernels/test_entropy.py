"""Our entropy decoder inside libjpeg: it gives the same pixels as Pillow, and notices damage."""

import io

import numpy as np
import pytest
from PIL import Image

from csd_engine.kernels import kernel
from tests.fuzz.pixels import region

pytestmark = pytest.mark.usefixtures("need_kernel")

SIZE = (203, 171)


def picture(noise):
    drawn = np.random.RandomState(4)
    smooth = np.asarray(Image.fromarray(drawn.randint(0, 256, (9, 11, 3)).astype(np.uint8)).resize(SIZE, 2)).astype(int)
    return Image.fromarray(np.clip(smooth + drawn.normal(0, noise, smooth.shape), 0, 255).astype(np.uint8))


def encode(noise=12.0, mode="RGB", **options):
    stream = io.BytesIO()
    picture(noise).convert(mode).save(stream, "JPEG", **options)
    return stream.getvalue()


def decoded(data, box):
    """(the kernel's pixels, or None if it leaves the file to Pillow; Pillow's pixels)."""
    context = kernel().context()
    left, top, right, bottom = box
    size = (bottom - top, right - left)
    out = np.zeros((*size, 3), np.uint8)
    done = context.take(data) is not None and context.sample(region(left, top, size[1], size[0]), out)
    try:
        theirs = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").crop(box))
    except (OSError, SyntaxError, ValueError):
        theirs = None
    return (out if done else None), theirs


BOXES = [(0, 0, *SIZE), (0, 0, 1, 1), (202, 170, 203, 171), (61, 33, 140, 99), (7, 120, 203, 171), (100, 0, 117, 171)]
KINDS = {
    "4:2:0": dict(subsampling=2),
    "4:2:2": dict(subsampling=1),
    "4:4:4": dict(subsampling=0),
    "grey": dict(mode="L"),
    "grey, restarts": dict(mode="L", restart_marker_blocks=5),
    "every coefficient": dict(quality=100, noise=60.0, subsampling=0),
    "next to nothing": dict(quality=1),
    "flat": dict(noise=0.0, quality=30),
    "its own tables": dict(optimize=True, quality=97),
    "restarts": dict(restart_marker_blocks=3),
    "restarts by rows": dict(restart_marker_rows=1, subsampling=1),
    "restart after each MCU": dict(restart_marker_blocks=1, quality=98),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_pixels(kind):
    data = encode(**KINDS[kind])
    for box in BOXES:
        ours, theirs = decoded(data, box)
        assert kernel().context().own_entropy
        assert (ours == theirs).all()


def test_a_restart_marker_out_of_turn():
    data = encode(restart_marker_blocks=3)
    assert decoded(data.replace(b"\xff\xd1", b"\xff\xd2", 1), BOXES[0])[0] is None


def test_a_symbol_that_baseline_does_not_have():
    data = bytearray(encode())
    tables = data.index(b"\xff\xc4")
    data[tables + 5 + 16] = 13  # a DC difference of 13 bits, in the table's first place
    ours, theirs = decoded(bytes(data), BOXES[0])
    assert not kernel().context().own_entropy
    assert ours is None or (ours == theirs).all()


def test_tables_that_come_again_are_stepped_over_otherwise():
    """From the second file with the same tables on, unwanted blocks are skipped with another table."""
    rng = np.random.default_rng(5)
    for kind in ("4:2:0", "every coefficient", "next to nothing", "restarts", "its own tables"):
        files = [encode(**{**KINDS[kind], "noise": noise}) for noise in (1.0, 12.0, 60.0, 100.0)]
        for data in [data for data in files for _ in range(4)]:
            left, top = int(rng.integers(SIZE[0] - 1)), int(rng.integers(SIZE[1] - 1))
            box = (left, top, int(rng.integers(left + 1, SIZE[0])), int(rng.integers(top + 1, SIZE[1])))
            ours, theirs = decoded(data, box)
            assert kernel().context().own_entropy and (ours == theirs).all()
