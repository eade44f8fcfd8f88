"""One sample: the kernel and Pillow give the same pixels and the same errors, and each file is opened once."""

from __future__ import annotations

import errno
import io
import os
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageCms

from csd_engine.data import image_files as imagefiles
from csd_engine.data.base import open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.errors import SampleError
from csd_engine.kernels import kernel
from csd_engine.kernels.library import Context
from csd_engine.prepare import sample as samples
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms.pipeline import Pipeline
from tests.open_files import open_files, opened_since

SHAPES = {"RGB": (32, 24, 3), "L": (32, 24, 1)}
TRAIN = (
    {"op": "RandomResizedCrop", "size": [32, 24], "scale": [0.08, 1.0], "ratio": [0.75, 1.333], "interpolation": "bilinear"},
    {"op": "RandomHorizontalFlip", "p": 0.5},
)
TEST = (
    {"op": "Resize", "size": 40, "max_size": None, "interpolation": "bicubic"},
    {"op": "CenterCrop", "size": [32, 24]},
)
PIPELINES = {
    "train": TRAIN,
    "evaluation": TEST,
    "a step for Pillow behind": (*TRAIN, {"op": "Pad", "padding": [2, 2, 2, 2], "fill": [7], "padding_mode": "constant"},
                                 {"op": "CenterCrop", "size": [32, 24]}),
    "nearest": ({"op": "CenterCrop", "size": [70, 70]},
                {"op": "Resize", "size": [32, 24], "max_size": None, "interpolation": "nearest"}),
    "all Pillow's": ({"op": "Pad", "padding": [2, 2, 2, 2], "fill": [7], "padding_mode": "edge"}, *TRAIN),
    "masks": (*TRAIN, {"op": "Cutout", "holes": 2, "length": 9}),
}  # fmt: skip


def pipeline(ops, mode="RGB", decode="exact"):
    data = {"format": 1, "order": "pillow13", "mode": mode, "ops": list(ops)}
    return Pipeline.parse(data if decode == "exact" else dict(data, decode=decode))


def encoded(image, kind="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def contents():
    """Files by name, of every kind that a data set may hold: valid ones, then bad ones."""
    smooth = np.random.default_rng(3).integers(0, 256, (12, 15, 3), dtype=np.uint8)
    colour = Image.fromarray(smooth).resize((150, 117), 2)
    grey = colour.convert("L")
    good = {
        "plain.jpg": encoded(colour),
        "444.jpg": encoded(colour, quality=95, subsampling=0),
        "progressive.jpg": encoded(colour, progressive=True),
        "grey.jpg": encoded(grey),
        "cmyk.jpg": encoded(colour.convert("CMYK")),
        "profile.jpg": encoded(colour, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()),
        "png named.jpg": encoded(colour, "PNG"),
        "palette.png": encoded(colour.quantize(), "PNG"),
        "bytes behind.jpg": encoded(colour) + b"more",
    }
    whole = good["plain.jpg"]
    middle = len(whole) // 2
    bad = {
        "empty.jpg": b"",
        "text.jpg": b"hello",
        "half.jpg": whole[:middle],
        "no end.jpg": whole[:-2],
        "header only.jpg": whole[:300],
        "zeros inside.jpg": whole[:middle] + bytes(40) + whole[middle + 40 :],
        "progressive half.jpg": good["progressive.jpg"][: len(good["progressive.jpg"]) // 2],
        "png half.jpg": good["png named.jpg"][:2000],
    }
    return good, bad


GOOD, BAD = contents()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("files")
    for name, data in {**GOOD, **BAD}.items():
        (home / name).write_bytes(data)
    return home


@pytest.fixture
def reader(folder, tmp_path):
    names = [*GOOD, *BAD, "missing.jpg"]
    write_manifest(tmp_path / "m", names)
    return open_reader(FileSet(str(folder), "0" * 32, len(names)), str, lambda _: tmp_path / "m")


def sample(reader, pipe, index, occurrence=0):
    """Pixels and boxes, or the error."""
    out = np.zeros(SHAPES[pipe.mode], np.uint8)
    boxes = np.zeros((pipe.boxes, 4), np.int32) if pipe.boxes else None
    try:
        prepare_sample(reader, pipe, (index, occurrence), 1, 2, out, boxes)
    except SampleError as error:
        return type(error.__cause__), str(error)
    return out.tobytes(), None if boxes is None else boxes.tobytes()


@pytest.fixture
def both(monkeypatch, need_kernel):
    """Return a function's result with the kernel and without."""
    def run(function):
        with_kernel = function()
        with monkeypatch.context() as without:
            without.setattr(samples, "kernel", lambda: None)
            return with_kernel, function()

    return run


@pytest.mark.parametrize(
    ("name", "mode", "decode"), [*((name, mode, "exact") for name in PIPELINES for mode in SHAPES), ("train", "RGB", "fast")]
)
def test_kernel_and_pillow_make_the_same_pixels(both, reader, name, mode, decode):
    pipe = pipeline(PIPELINES[name], mode, decode)
    for index in range(len(GOOD)):
        for occurrence in range(6):
            ours, pillows = both(lambda: sample(reader, pipe, index, occurrence))  # noqa: B023 - called at once
            assert type(ours[0]) is bytes and ours == pillows, list(GOOD)[index]


@pytest.mark.parametrize("name", [*BAD, "missing.jpg"])
def test_kernel_and_pillow_give_the_same_errors(both, reader, name):
    index = [*GOOD, *BAD, "missing.jpg"].index(name)
    for ops in (TRAIN, TEST):
        for occurrence in range(4):
            ours, pillows = both(lambda: sample(reader, pipeline(ops), index, occurrence))  # noqa: B023
            assert ours == pillows
            if name not in ("no end.jpg", "zeros inside.jpg"):  # Pillow may take these
                assert name in ours[1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_does_not_read_is_told_alike(both, reader, monkeypatch, number):
    def broken(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Context, "read", broken)
    monkeypatch.setattr(imagefiles, "os", SimpleNamespace(pread=broken, close=os.close))
    ours, pillows = both(lambda: sample(reader, pipeline(TRAIN), 0))
    assert ours == pillows and os.strerror(number) in ours[1]


def test_the_kernel_does_what_it_is_for(both, reader, monkeypatch):
    """Without this test the others would also pass with a kernel that refuses everything."""
    monkeypatch.setattr(samples, "open_image", None)  # using Pillow raises
    for name in ("plain.jpg", "444.jpg", "progressive.jpg", "grey.jpg", "profile.jpg"):
        for ops in ("train", "evaluation", "a step for Pillow behind", "nearest", "masks"):
            result = sample(reader, pipeline(PIPELINES[ops]), list(GOOD).index(name))
            assert type(result[0]) is bytes, (name, ops, result)


def test_an_image_larger_than_the_user_allows_is_pillows(both, reader, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    ours, pillows = both(lambda: sample(reader, pipeline(TRAIN), 0))
    assert ours == pillows and "DecompressionBombError" in ours[1]


@pytest.mark.parametrize("setting", ["kernel", "pillow"])
def test_each_file_is_opened_once_and_closed(reader, monkeypatch, setting):
    if setting == "pillow":
        monkeypatch.setattr(samples, "kernel", lambda: None)
    opened = []
    right = os.open
    sample(reader, pipeline(TRAIN), 0)  # files that are opened once per process are open from here on
    monkeypatch.setattr(os, "open", lambda path, *more: opened.append(path) or right(path, *more))
    before = open_files()
    for index in range(len(GOOD) + len(BAD)):
        sample(reader, pipeline(TRAIN), index)
    assert len(opened) == len(GOOD) + len(BAD) and opened_since(before) == []


def test_what_must_wait_is_told_its_memory(reader, monkeypatch):
    asked = []
    out = np.zeros(SHAPES["RGB"], np.uint8)

    def prepare(name):
        asked.clear()
        prepare_sample(reader, pipeline(TRAIN), (list(GOOD).index(name), 0), 1, 2, out, None, asked.append)
        return asked[:]

    with monkeypatch.context() as without:
        without.setattr(samples, "kernel", lambda: None)
        assert prepare("plain.jpg") == [4 * 150 * 117]
    if kernel() is not None:
        assert prepare("plain.jpg") == []  # the kernel needs only a band of rows
        assert prepare("progressive.jpg") == [6 * 150 * 117] and prepare("cmyk.jpg") == [(4 + 4) * 150 * 117]
