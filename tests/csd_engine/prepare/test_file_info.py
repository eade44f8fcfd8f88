"""A user's function behind other operators gets the image that Pillow would give it, also if the kernel made the pixels."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from PIL import Image, ImageCms

from csd_engine.data.base import Reader
from csd_engine.data.image_files import open_sample
from csd_engine.kernels import kernel
from csd_engine.prepare import sample as samples
from csd_engine.prepare.file_info import FileInfo, Header
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms.pipeline import Pipeline

CROP = {"op": "RandomResizedCrop", "size": [24, 20], "scale": [0.08, 1.0], "ratio": [0.75, 1.333], "interpolation": "bilinear"}
USER = {"op": "User", "file": "0" * 32, "function": "mine", "parameters": {}, "size": None}


class OneFile(Reader):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1

    def open(self, index):
        return open_sample(self.path)

    def where(self, index):
        return self.path


@pytest.fixture(params=["RGB", "L"])
def mode(request):
    return request.param


@pytest.fixture
def reader(tmp_path, mode):
    pixels = np.random.default_rng(5).integers(0, 256, (60, 70, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    path = str(tmp_path / "image.jpg")
    image.save(path, dpi=(72, 144), exif=exif, icc_profile=profile)
    return OneFile(path)


def made(reader, mode, mine, *before):
    pipeline = Pipeline.parse(
        {"format": 1, "order": "pillow13", "mode": mode, "ops": [CROP, *before, USER]},
        lambda file, function, parameters: lambda image, key, size: mine(image),
    )
    out = np.zeros((24, 20, 3 if mode == "RGB" else 1), np.uint8)
    prepare_sample(reader, pipeline, (0, 0), 1, 2, out)
    return out


@pytest.fixture
def opened(monkeypatch):
    """Count how often Pillow opens a file."""
    calls, real = [], samples._opened
    monkeypatch.setattr(samples, "_opened", lambda *given: (calls.append(given), real(*given))[1])
    return calls


needs_kernel = pytest.mark.skipif(kernel() is None, reason="without a kernel Pillow makes the pixels")


@pytest.mark.parametrize("before", [(), ({"op": "RandomHorizontalFlip", "p": 1.0},), ({"op": "Pad", "padding": [1, 1, 1, 1],
                         "fill": [7], "padding_mode": "edge"}, {"op": "CenterCrop", "size": [24, 20]})])
def test_it_gets_what_pillow_would_give(reader, mode, before, monkeypatch):
    def mine(image):
        found.append((type(image), image.mode, image.size, dict(image.info), dict(image.getexif())))
        image.load()[3, 4] = image.load()[0, 0]  # the function may draw on its image
        return image.rotate(90).rotate(-90)

    found: list = []
    ours = made(reader, mode, mine, *before)
    monkeypatch.setattr(samples, "kernel", lambda: None)
    assert np.array_equal(ours, made(reader, mode, mine, *before)) and ours.any()
    assert found[0] == found[1]
    if not before:
        assert found[0][4][0x010E] == "a description" and found[0][3]["dpi"] == (72, 144) and "icc_profile" in found[0][3]


@needs_kernel
def test_the_header_is_read_only_where_somebody_looks(reader, mode, opened):
    made(reader, mode, lambda image: Image.fromarray(255 - np.asarray(image)))
    assert not opened
    made(reader, mode, lambda image: (image.crop((0, 0, 3, 3)).info.get("dpi"), image.getexif(), image)[-1])
    assert len(opened) == 1


@needs_kernel
def test_what_was_not_read_is_gone_with_the_sample(reader, mode):
    kept: list = []
    made(reader, mode, lambda image: kept.append(image) or image)
    with pytest.raises(RuntimeError, match="after the operator had returned"):
        kept[0].getexif()


def test_it_is_a_dict_in_every_way():
    content = {"dpi": (72, 72), "comment": b"x"}
    looks = {
        "in": lambda info: "dpi" in info,
        "==": lambda info: info == content,
        "!=": lambda info: not info != content,
        "len": lambda info: len(info) == 2,
        "iter": lambda info: list(info) == list(content),
        "reversed": lambda info: list(reversed(info)) == list(reversed(content)),
        "dict": lambda info: dict(info) == content,
        "**": lambda info: {**info} == content,
        "items": lambda info: list(info.items()) == list(content.items()),
        "values": lambda info: list(info.values()) == list(content.values()),
        "get": lambda info: info.get("comment") == b"x",
        "setdefault": lambda info: info.setdefault("dpi", 1) == (72, 72),
        "pop": lambda info: info.pop("dpi") == (72, 72) and len(info) == 1,
        "copy": lambda info: info.copy() == content,
        "copy.copy": lambda info: copy.copy(info) == content,
        "deepcopy": lambda info: copy.deepcopy(info) == content,
        "pickle": lambda info: pickle.loads(pickle.dumps(info)) == content,
        "repr": lambda info: repr(info) == repr(content),
        "set": lambda info: (info.__setitem__("dpi", 1), dict(info))[1] == {"dpi": 1, "comment": b"x"},
    }
    for name, look in looks.items():
        assert look(FileInfo(Header(lambda: dict(content)))), name
        assert look(FileInfo(Header(lambda: dict(content))).copy()), name


def test_copies_do_not_share_their_content():
    first = FileInfo(Header(lambda: {"dpi": 1}))
    second = first.copy()
    first["dpi"] = 2
    assert (first["dpi"], second["dpi"]) == (2, 1)
