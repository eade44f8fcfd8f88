import itertools
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from csd_engine.transforms import resample
from csd_engine.transforms.resample import FILTERS, ORDERS, RESAMPLED, crop_resize, native_order, resize

# (width, height) -> (width, height): sizes for which both orders agree, and sizes for which Pillow 13 begins vertically.
SHAPES = [
    ((61, 40), (32, 32)), ((40, 90), (33, 31)), ((30, 90), (64, 20)), ((90, 41), (33, 41)), ((50, 50), (70, 81)),
    ((50, 60), (40, 40)), ((50, 60), (40, 39)), ((50, 60), (40, 35)), ((50, 60), (52, 59)), ((50, 60), (52, 60)),
]


def noise(size, mode="RGB", seed=0):
    channels = (3,) if mode == "RGB" else ()
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (size[1], size[0], *channels)).astype(np.uint8))


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_either_order_comes_out_of_any_pillow(monkeypatch, name):
    """The native order is Pillow's own. With a wrong assumption about it, two passes are forced wherever the orders differ."""
    native = native_order()
    other = "pillow12" if native == "pillow13" else "pillow13"
    for (source, target), mode in itertools.product(SHAPES, ("RGB", "L")):
        image = noise(source, mode)
        by_pillow = image.resize(target, FILTERS[name]).tobytes()
        assert resize(image, *target, name, native).tobytes() == by_pillow, (source, target, mode)
        if name not in RESAMPLED:
            continue
        horizontal = image.resize((target[0], source[1]), FILTERS[name]).resize(target, FILTERS[name]).tobytes()
        assert (resize(image, *target, name, other).tobytes() if native == "pillow13" else by_pillow) == horizontal
        with monkeypatch.context() as wrong:
            wrong.setattr(resample, "native_order", lambda: other)
            assert resize(image, *target, name, native).tobytes() == by_pillow, (source, target, mode)


def test_the_orders_differ_somewhere():
    image = noise((40, 90))
    first, second = (resize(image, 33, 31, "bilinear", order).tobytes() for order in ("pillow12", "pillow13"))
    assert first != second


BOXES = [
    ((0, 0, 90, 70), (20, 24)), ((3, 5, 90, 66), (30, 9)), ((11, 0, 31, 70), (12, 10)), ((40, 8, 42, 70), (33, 31)),
    ((0, 2, 88, 4), (7, 40)), ((1, 1, 60, 61), (59, 20)), ((1, 1, 60, 61), (20, 60)), ((5, 5, 60, 50), (100, 90)),
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", sorted(FILTERS))
def test_bands_make_the_same_pixels_as_one_piece(monkeypatch, name, order):
    for (box, target), mode in itertools.product(BOXES, ("RGB", "L")):
        image = noise((90, 70), mode)
        whole = resize(image.crop(box), *target, name, order).tobytes()
        monkeypatch.undo()
        assert crop_resize(image, box, mode, *target, name, order).tobytes() == whole
        monkeypatch.setattr(resample, "_WHOLE_PIXELS", 0)
        for pixels in (1, 333, 1 << 18):
            monkeypatch.setattr(resample, "_BAND_PIXELS", pixels)
            assert crop_resize(image, box, mode, *target, name, order).tobytes() == whole


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F", "transparent P"])
@pytest.mark.parametrize("to", ["RGB", "L"])
def test_cropped_then_converted_is_converted_then_cropped(monkeypatch, mode, to):
    if mode in ("I;16", "I", "F"):
        image = Image.fromarray(np.asarray(noise((90, 70), "L"), dtype={"I;16": "<u2", "I": "<i4", "F": "<f4"}[mode]) * 3)
    else:
        image = noise((90, 70)).convert(mode.split()[-1])
        if mode == "transparent P":
            image.info["transparency"] = 7
    expected = resize(image.convert(to).crop((3, 5, 85, 60)), 30, 20, "bilinear", native_order()).tobytes()
    assert crop_resize(image, (3, 5, 85, 60), to, 30, 20, "bilinear", native_order()).tobytes() == expected
    monkeypatch.setattr(resample, "_WHOLE_PIXELS", 0)
    monkeypatch.setattr(resample, "_BAND_PIXELS", 500)
    assert crop_resize(image, (3, 5, 85, 60), to, 30, 20, "bilinear", native_order()).tobytes() == expected


MEMORY = """
import sys
from pathlib import Path
from PIL import Image
from csd_engine.transforms.resample import crop_resize, native_order
def peak_kib():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
width, height = map(int, sys.argv[1:])
native_order()
image = Image.new("RGB", (width, height), (1, 2, 3))
before = peak_kib()
crop_resize(image, (1, 1, width, height), "RGB", 224, 224, "bilinear", "pillow13")
print(peak_kib() - before)
"""


@pytest.mark.parametrize("size", [(4288, 2848), (2000, 6000)])
def test_a_large_crop_takes_little_memory_beside_the_image(size):
    done = subprocess.run([sys.executable, "-c", MEMORY, *map(str, size)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10 << 10  # 48 MB in one piece
