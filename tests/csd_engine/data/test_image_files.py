"""Opening images: which formats are known. No file starts a program."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile

import numpy as np
import pytest
from PIL import Image, ImageFile, UnidentifiedImageError

from csd_engine.data.base import open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import pillow_open
from csd_engine.data.manifest import write_manifest
from csd_engine.errors import SampleError
from ddlp import ImageFiles, TarImages

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A function that says whether `gs` (Ghostscript) was run; a fake one is first in PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    (directory / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None, raising=False)  # so that Pillow looks for it again
    return lambda: (tmp_path / "ran").exists()


def test_no_file_of_a_known_data_set_runs_ghostscript(tmp_path, ran):
    (tmp_path / "x.jpg").write_bytes(EPS)
    with tarfile.open(tmp_path / "x.tar", "w") as shard:
        for name, content in (("x.jpg", EPS), ("x.cls", b"1")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    fingerprint = write_manifest(tmp_path / "m", ["x.jpg"])
    reader = open_reader(FileSet(str(tmp_path), fingerprint, 1), str, lambda _: tmp_path / "m")
    with pytest.raises(SampleError, match="cannot identify image file"):
        reader.image(0).load()
    for dataset in (ImageFiles([tmp_path / "x.jpg"], [0]), TarImages(tmp_path / "x.tar")):
        with pytest.raises(UnidentifiedImageError):
            dataset[0]
    assert not ran()
    with contextlib.suppress(Exception), Image.open(tmp_path / "x.jpg") as image:
        image.load()
    assert ran(), "Pillow itself would have run it"


@pytest.mark.filterwarnings("ignore:IM image format")
def test_other_formats_are_pillows(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (24, 16, 3), dtype=np.uint8)
    found = set()
    Image.init()
    for name in sorted(set(Image.SAVE) & set(Image.OPEN) - {"EPS"}):
        path = tmp_path / "x"
        try:
            Image.fromarray(pixels).save(path, name)
            with Image.open(path) as image:
                wanted = (image.format, image.size, np.asarray(image.convert("RGB")).tobytes())
        except (OSError, ValueError, KeyError):
            continue  # it can't be saved from RGB, or not without an option
        with pillow_open(path) as image:
            assert (image.format, image.size, np.asarray(image.convert("RGB")).tobytes()) == wanted
        found.add(name)
    assert found >= {"BMP", "GIF", "JPEG", "PNG", "PPM", "TGA", "TIFF", "PCX"}


def test_a_format_that_the_user_has_registered_is_known(tmp_path, monkeypatch):
    class Dots(ImageFile.ImageFile):
        format = "DOTS"

        def _open(self) -> None:
            self._size, self._mode = (2, 2), "L"

    monkeypatch.setattr(Image, "ID", [*Image.ID])
    monkeypatch.setattr(Image, "OPEN", {**Image.OPEN})
    Image.register_open("DOTS", Dots, lambda prefix: prefix.startswith(b"DOTS"))
    assert pillow_open(io.BytesIO(b"DOTS" + bytes(100))).format == "DOTS"
    with pytest.raises(UnidentifiedImageError):
        pillow_open(io.BytesIO(b"DOT" + bytes(100)))
