"""Values on a shelf come back as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from ddlp.caching.kept_values import from_bytes, to_bytes

MODES = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16")


def again(value: Any) -> Any:
    kept = to_bytes(value)
    assert kept is not None
    assert kept.dtype == np.uint8
    return from_bytes(bytearray(kept.tobytes()))


@pytest.mark.parametrize("mode", MODES)
def test_images(mode: str) -> None:
    grey = Image.effect_noise((37, 21), 60)
    image = grey.convert(mode) if mode != "LAB" else Image.frombytes("LAB", (37, 21), grey.convert("RGB").tobytes())
    found = again(image)
    assert (found.mode, found.size, found.tobytes()) == (mode, image.size, image.tobytes())
    found.putpixel((0, 0), found.getpixel((1, 1)))  # it may be changed


@pytest.mark.parametrize("dtype", ("u1", "i8", "f2", "f4", ">f4", "bool"))
@pytest.mark.parametrize("shape", ((), (5,), (3, 1, 4), (2, 0), (2, 3, 4)))
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for one in (array, np.asfortranarray(array), np.moveaxis(array, 0, -1) if array.ndim else array):
        found = again(one)
        assert (found.dtype, found.shape) == (one.dtype, one.shape)
        assert found.strides == one.strides or one.size == 0 or 1 in one.shape
        assert found.tobytes() == one.tobytes()
        assert found.flags.writeable


@pytest.mark.parametrize("dtype", (torch.uint8, torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.int64))
def test_tensors(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    subclasses = tv_tensors.Image(tensor), tv_tensors.Mask(tensor)
    for one in (tensor, tensor.permute(2, 0, 1), tensor[0, 0, 0], tensor[:0], *subclasses):
        found = again(one)
        assert type(found) is type(one)
        assert found.stride() == one.stride()
        assert found.dtype == dtype
        assert torch.equal(found, one)


def test_what_is_not_kept() -> None:
    clear = Image.new("RGB", (3, 3))
    clear.info["transparency"] = (0, 0, 0)
    values = ("text", 3, {}, None, np.array([object()]), np.array("x"), torch.zeros(3, requires_grad=True), clear,
              Image.new("P", (3, 3)), torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"),
              tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(3, 3)))  # fmt: skip
    assert [to_bytes(value) for value in values] == [None] * len(values)
