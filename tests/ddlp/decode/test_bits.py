"""Postponed images through random chains of steps: every value and all metadata equal Pillow's."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from csd_engine.transforms.resample import FILTERS
from ddlp import decode
from ddlp.decode.image import PostponedFile, PostponedImage
from tests.jpegkinds import FOR_PILLOW, KINDS, encode_kind, picture

CHAINS_A_KIND = 15


def steps(draw: random.Random) -> list[Callable[[Image.Image], Image.Image]]:
    """Up to six steps: the usual ones of torchvision, and some that can't be postponed."""

    def crop(image: Image.Image) -> Image.Image:
        across, down = (draw.randrange(1, length + 1) for length in image.size)
        left, top = draw.randrange(image.width - across + 1), draw.randrange(image.height - down + 1)
        beyond = draw.choice((0, 0, 0, 0, 5))
        return image.crop((left - beyond, top, left + across, top + down + beyond))

    def float_crop(image: Image.Image) -> Image.Image:
        return image.crop((0.5, 0.49, image.width / 2 + 0.5, image.height - 0.51))

    def resize(image: Image.Image) -> Image.Image:
        to = draw.randrange(1, 150), draw.choice((image.height, draw.randrange(1, 150)))
        return image.resize(to, draw.choice((None, 0, 1, 2, 2, 2, 3, 3, 4, 5)))

    def resize_box(image: Image.Image) -> Image.Image:
        return image.resize((20, 30), 2, box=(0.5, 0, image.width, image.height), reducing_gap=draw.choice((None, 2.0)))

    def flip(image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose(draw.choice((0, 0, 1, 1, 2, 3, 5))))

    def convert(image: Image.Image) -> Image.Image:
        return image.convert(draw.choice(("RGB", "RGB", "L", None)))

    def load(image: Image.Image) -> Image.Image:
        image.load()
        return image

    def thumbnail(image: Image.Image) -> Image.Image:
        image.thumbnail((40, 50))
        return image

    def draft(image: Image.Image) -> Image.Image:
        image.draft(draw.choice(("RGB", "L", None)), (image.width // draw.choice((1, 2, 4, 9)) or 1, 1))
        return image

    def pixel(image: Image.Image) -> Image.Image:
        image.putpixel((0, 0), 7)
        return image

    def copy(image: Image.Image) -> Image.Image:
        return image.copy()

    often = (crop, crop, resize, flip, convert, copy)
    seldom = (float_crop, resize_box, load, thumbnail, draft, pixel)
    return [draw.choice(often if draw.random() < 0.8 else seldom) for _ in range(draw.randrange(7))]


def opened(how: str, data: bytes, path: Any) -> Image.Image:
    if how == "path":
        path.write_bytes(data)
        return Image.open(path)
    return Image.open(io.BytesIO(data) if how == "bytes" else path.open("rb"))


def run(chain_seed: int, image: Image.Image) -> list[Any]:
    """The result, and the image before the last step; or the error."""
    draw = random.Random(chain_seed)
    before = image
    for step in steps(draw):
        try:
            before, image = image, step(image)
        except ValueError as error:
            return [repr(error)]
        if 0 in image.size:
            break
    return [
        part
        for one, array in [(one, np.asarray(one)) for one in (image, before)]
        for part in (
            array.dtype, array.shape, array.tobytes(), one.mode, one.size, one.info, one.format, one.tobytes(), one.readonly,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["path", "bytes", "file object"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.some(8)
def test_chains_give_the_bits_of_pillow(kind, how, tmp_path, installed):
    draw = random.Random(f"{kind} {how}")
    put_off = 0
    path = tmp_path / "one.jpg"
    for number in range(CHAINS_A_KIND):
        size = draw.choice(((1, 1), (17, 9), (61, 83), (160, 120), (243, 181)))
        data = encode_kind(kind, picture(number, size), draw.choice((30, 85, 97)))
        path.write_bytes(data)
        chain_seed = draw.getrandbits(32)
        decode.uninstall()
        wanted = run(chain_seed, opened(how, data, path))
        decode.install()
        image = opened(how, data, path)
        assert type(image) is PostponedFile
        assert run(chain_seed, image) == wanted, (number, size, chain_seed)
        put_off += type(opened(how, data, path).convert("RGB")) is PostponedImage
    assert put_off == (0 if kind in FOR_PILLOW else CHAINS_A_KIND)


def test_many_looks_at_one_image(installed):
    data = encode_kind("420", picture(5, (243, 181)))
    decode.uninstall()
    plain = Image.open(io.BytesIO(data)).convert("RGB")
    decode.install()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    draw = random.Random(3)
    for _ in range(8):  # the third access decodes the whole image, and later ones use it
        left, top, to = draw.randrange(100), draw.randrange(80), draw.randrange(20, 90)
        box = (left, top, left + draw.randrange(40, 143), top + draw.randrange(40, 101))
        ours, theirs = (one.crop(box).resize((to, 32), 3).transpose(0) for one in (image, plain))
        assert type(ours) is PostponedImage
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert type(ours) is PostponedImage  # the accesses asked for arrays, not for a Pillow image
    assert np.array_equal(np.asarray(image), np.asarray(plain))


@pytest.mark.parametrize("name", FILTERS)
def test_a_resize_by_any_filter_of_the_kernel_is_one_call(name, installed):
    """The access for an array leaves the image postponed only if Pillow has done none of the work."""
    data = encode_kind("420", picture(5, (243, 181)))
    decode.uninstall()
    plain = Image.open(io.BytesIO(data)).convert("RGB")
    decode.install()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    for size in ((97, 64), (300, 200), (30, 181)):
        ours, theirs = (one.resize(size, FILTERS[name]).crop((5, 6, 30, 64)).transpose(0) for one in (image, plain))
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert (type(ours) is PostponedImage) == (name != "nearest")
