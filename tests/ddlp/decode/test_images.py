"""A postponed image looks like Pillow's: class, files, errors, metadata, threads, processes."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFile, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from ddlp import decode
from ddlp.decode.image import PostponedFile, PostponedImage
from tests.at_once import at_once
from tests.jpegkinds import encode_kind, picture
from tests.open_files import open_files, opened_since

PICTURE = picture(1, (160, 120))
DATA = encode_kind("420", PICTURE, 90)


def plain(data: bytes = DATA) -> Image.Image:
    """The image as Pillow alone opens it."""
    return JpegImageFile(io.BytesIO(data))


def test_looks_like_an_image_of_pillow(installed):
    image = Image.open(io.BytesIO(DATA))
    assert isinstance(image, JpegImageFile) and image.__class__ is JpegImageFile and "JpegImageFile" in repr(image)
    made = image.convert("RGB")
    assert isinstance(made, Image.Image) and not isinstance(made, JpegImageFile) and made.__class__ is Image.Image
    assert made.format is None and image.format == "JPEG"
    assert (type(image), type(made)) == (PostponedFile, PostponedImage)
    assert made == plain().convert("RGB") and plain().convert("RGB") == image.convert("RGB")
    assert type(made) is Image.Image  # it has become one of Pillow's


@pytest.mark.parametrize(
    "use",
    [
        lambda image: image.tobytes(),
        lambda image: list(image.getdata() if not hasattr(image, "get_flattened_data") else image.get_flattened_data()),
        lambda image: image.getpixel((3, 5)),
        lambda image: image.load()[3, 5],
        lambda image: image.histogram(),
        lambda image: image.split()[1].tobytes(),
        lambda image: image.rotate(20, resample=2).tobytes(),
        lambda image: image.point(lambda value: 255 - value).tobytes(),
        lambda image: image.reduce(3).tobytes(),
        lambda image: image.quantize(8).tobytes(),
        lambda image: (image.load(), image.im.size)[1],
        lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
        lambda image: copy.deepcopy(image).tobytes(),
        lambda image: copy.copy(image).tobytes(),
        lambda image: ImageOps.autocontrast(image).tobytes(),
        lambda image: ImageOps.exif_transpose(image).tobytes(),
        lambda image: Image.merge("RGB", image.convert("RGB").split()[::-1]).tobytes(),
        lambda image: Image.blend(image, image.transpose(0), 0.3).tobytes(),
        lambda image: F.adjust_hue(image, 0.1).tobytes(),
        lambda image: F.pil_to_tensor(image).tolist(),
        lambda image: F.to_tensor(F.resized_crop(image, 3, 4, 70, 90, [50, 40])).tolist(),
        lambda image: v2.functional.to_image(v2.functional.horizontal_flip(image)).tolist(),
        lambda image: v2.functional.to_image(v2.functional.resize(image, [30, 40])).tolist(),
        lambda image: F.pad(image, [3, 4]).tobytes(),
        lambda image: F.get_dimensions(image),
    ],
)
def test_any_use_gives_what_pillow_gives(use, installed):
    for how in (lambda one: one, lambda one: one.convert("RGB"), lambda one: one.crop((5, 6, 100, 90)).transpose(0)):
        assert use(how(Image.open(io.BytesIO(DATA)))) == use(how(plain()))


def test_changes_in_place_change_one_image_only(installed):
    image = Image.open(io.BytesIO(DATA)).convert("RGB")
    other, reference = image.copy(), plain().convert("RGB")
    np.asarray(image)
    for one in (image, reference):
        ImageDraw.Draw(one).rectangle((10, 10, 50, 50), fill=(1, 2, 3))
        one.paste((7, 8, 9), (60, 60, 80, 80))
        one.load()[0, 0] = (4, 5, 6)
    assert image.tobytes() == reference.tobytes() and np.array_equal(np.asarray(image), np.asarray(reference))
    assert other.tobytes() == plain().tobytes()


def test_metadata_needs_no_pixels(installed):
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    PICTURE.save(stream, "JPEG", exif=exif, dpi=(72, 90), comment=b"said")
    image, reference = Image.open(io.BytesIO(stream.getvalue())), plain(stream.getvalue())
    image.load()
    assert dict(image.getexif()) == dict(reference.getexif()) and image.info == reference.info
    assert (image.size, image.mode, image.format, image.getbands()) == ((160, 120), "RGB", "JPEG", ("R", "G", "B"))
    assert image.quantization == reference.quantization and image.get_format_mimetype() == "image/jpeg"
    assert type(image) is PostponedFile
    assert ImageOps.exif_transpose(image).tobytes() == ImageOps.exif_transpose(reference).tobytes()
    made = image.crop((0, 0, 9, 9))
    made.info["comment"] = "other"
    assert image.info["comment"] == b"said"


def test_files_are_open_as_long_as_pillow_has_them_open(tmp_path, installed):
    path = tmp_path / "one.jpg"
    path.write_bytes(DATA)
    gc.collect()
    before = open_files()
    images = [Image.open(path) for _ in range(5)]
    assert len(opened_since(before)) == 5
    streams: Any = [image.fp for image in images]
    made = [image.convert("RGB") for image in images]
    assert all(stream.closed for stream in streams)
    assert opened_since(before) == [] and [image.fp for image in images] == [None] * 5
    path.unlink()
    assert {image.tobytes() for image in made} == {plain().tobytes()}

    stream = io.BytesIO(DATA)
    image = Image.open(stream)
    image.load()
    assert not stream.closed
    stream.seek(0)
    stream.write(b"0" * len(DATA))
    stream.close()
    assert image.tobytes() == plain().tobytes()


def test_closed_images_are_closed(tmp_path, installed):
    path = tmp_path / "one.jpg"
    path.write_bytes(DATA)

    def told(of: Any) -> list[str]:
        found = []
        for use in (
            lambda image: image.close() or image.load(),
            lambda image: (image.load(), image.close(), image.tobytes()),
            lambda image: (image.convert("RGB"), image.__exit__(None, None, None), image.tobytes()),
            lambda image: (image.__exit__(None, None, None), image.load()),
            lambda image: (image.verify(), image.load()),
        ):
            try:
                use(of())
                found.append("fine")
            except Exception as error:
                found.append(repr(error))
        return found

    ours = told(lambda: Image.open(path))
    decode.uninstall()
    assert ours == told(lambda: Image.open(path))
    decode.install()
    with Image.open(path) as image:
        made = image.crop((0, 0, 50, 50))
    assert made.tobytes() == plain().crop((0, 0, 50, 50)).tobytes()


def _outcome(data: bytes, use: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = use(Image.open(io.BytesIO(data)))
        except Exception as error:
            result = type(error), str(error).partition(" at 0x")[0]
    return result, [str(one.message) for one in told]


@pytest.mark.parametrize("kind", ["420", "444 progressive", "grey", "420 restart"])
def test_damaged_files_end_as_with_pillow(kind, installed):
    draw = random.Random(kind)
    whole = encode_kind(kind, PICTURE)
    late = 0
    for number in range(120):
        data = bytearray(whole)
        if number % 3 == 0:
            del data[draw.randrange(3, len(data)) :]
        else:
            for _ in range(number % 3):
                data[draw.randrange(len(data))] = draw.randrange(256)
        for truncated in (False, True):
            ImageFile.LOAD_TRUNCATED_IMAGES = truncated
            try:
                ours = [_outcome(bytes(data), use) for use in (_pixels, _loaded)]
                decode.uninstall()
                theirs = [_outcome(bytes(data), use) for use in (_pixels, _loaded)]
            finally:
                ImageFile.LOAD_TRUNCATED_IMAGES = False
                decode.install()
            assert ours[0] == theirs[0], number
            if number % 3 == 0:  # load() is what reports a truncated file
                assert ours[1] == theirs[1], number
            late += ours[1] != theirs[1]
    assert late < 20


def _pixels(image: Image.Image) -> bytes:
    return image.convert("RGB").crop((8, 8, 90, 70)).resize((40, 40), 2).tobytes()


def _loaded(image: Image.Image) -> None:
    image.load()


def test_an_error_comes_again_with_each_use(installed):
    no_tables = b"".join(part for part in _segments(DATA) if part[1] != 0xDB)  # without quantisation tables
    image = Image.open(io.BytesIO(no_tables))
    made = image.convert("RGB").resize((9, 9))  # Pillow would have raised here
    texts = []
    for use in (made.tobytes, lambda: made.load()[0, 0], image.tobytes, made.copy().histogram):
        with pytest.raises(OSError) as told:
            use()
        texts.append(str(told.value))
    with pytest.raises(OSError) as told:
        plain(no_tables).load()
    assert texts == [str(told.value)] * 4


def _segments(data: bytes) -> list[bytes]:
    """The segments of a JPEG's header; the last one with all that follows."""
    parts, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        parts.append(data[at:end])
        at = end
    return [*parts, data[at:]]


def test_large_images_are_told_of_as_by_pillow(installed, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 160 * 120 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        image = Image.open(io.BytesIO(DATA))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 41)
    with pytest.warns(Image.DecompressionBombWarning):
        image.crop((0, 0, 9, 9))
    with pytest.raises(Image.DecompressionBombError):
        image.crop((0, 0, 10, 9))
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(DATA))


def test_other_files_are_pillows(installed, tmp_path):
    for name in ("one.png", "one.webp", "one.bmp", "one.gif"):
        PICTURE.save(tmp_path / name)
        assert not isinstance(Image.open(tmp_path / name), JpegImageFile)
    two = io.BytesIO()
    PICTURE.save(two, "MPO", save_all=True, append_images=[PICTURE])
    assert type(Image.open(two)).__name__ == "MpoImageFile"
    with pytest.raises(Image.UnidentifiedImageError):
        Image.open(io.BytesIO(b"\xff\xd8\xff no JPEG"))


def test_file_objects_of_ones_own(installed):
    class Stream:  # no seek: Pillow reads it whole
        def __init__(self) -> None:
            self._inner = io.BytesIO(DATA)

        def read(self, count: int = -1) -> bytes:
            return self._inner.read(count)

    class NoEnd(io.BytesIO):
        def seek(self, place: int, whence: int = 0) -> int:
            if whence:
                raise OSError("from the beginning only")
            return super().seek(place)

    for stream in (Stream(), NoEnd(DATA)):
        assert Image.open(stream).convert("RGB").tobytes() == plain().tobytes()  # type: ignore[arg-type]


def test_threads_share_images(installed):
    data = [encode_kind("420", picture(number, (200, 150))) for number in range(4)]
    wanted = [plain(one).convert("RGB").resize((60, 50), 2).tobytes() for one in data]
    images = [Image.open(io.BytesIO(one)).convert("RGB") for one in data for _ in range(5)]
    for found in at_once(lambda _: [(image.resize((60, 50), 2).tobytes(), image.tobytes()) for image in images], 6):
        assert [one for one, _ in found] == [one for one in wanted for _ in range(5)]
        assert [one for _, one in found] == [plain(one).tobytes() for one in data for _ in range(5)]


def test_forked_children_go_on_with_images(installed):
    image = Image.open(io.BytesIO(DATA)).convert("RGB").resize((60, 50), 2)
    image.copy().tobytes()  # this thread has its decoder now
    child = os.fork()
    if child == 0:
        os._exit(image.tobytes() != plain().convert("RGB").resize((60, 50), 2).tobytes())
    assert os.waitpid(child, 0)[1] == 0
    assert image.tobytes() == plain().convert("RGB").resize((60, 50), 2).tobytes()


def test_the_array_is_the_kernels_own(installed):
    image = Image.open(io.BytesIO(DATA)).convert("RGB").resize((60, 50), 2)
    first, second = np.asarray(image), np.asarray(image)
    assert first.ctypes.data == second.ctypes.data and not first.flags.writeable
    assert type(image) is PostponedImage
    assert torch.equal(F.to_tensor(image), F.to_tensor(plain().resize((60, 50), 2)))
    assert image.tobytes() == first.tobytes()
