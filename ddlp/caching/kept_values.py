"""A step's result as bytes on a shelf, and back: PIL images, arrays and tensors, with the same bits, types and memory formats.

    length of the header, uint32; the header, JSON; zeros up to a multiple of 64; the numbers
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

__all__ = ["from_bytes", "to_bytes"]

_BEGIN = 64  # numbers begin at a multiple of this
_MODES = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16")
_TENSORS: dict[str, type[torch.Tensor]] = {"Tensor": torch.Tensor, "Image": tv_tensors.Image, "Mask": tv_tensors.Mask}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16,
                torch.float32, torch.float64)
}  # fmt: skip
_ARRAY_KINDS = "buif"


def to_bytes(value: Any) -> np.ndarray | None:
    """Return a value as bytes, uint8 (n,); None: it is no such value, or its bytes are not all that it is."""
    header_and_numbers = _numbers(value)
    if header_and_numbers is None:
        return None
    header, numbers = header_and_numbers
    head = json.dumps(header).encode()
    head = len(head).to_bytes(4, "little") + head
    return np.frombuffer(head + bytes(-len(head) % _BEGIN) + numbers, np.uint8)


def _numbers(value: Any) -> tuple[dict[str, Any], bytes] | None:
    if isinstance(value, Image.Image):
        if value.mode not in _MODES or "transparency" in value.info:
            return None
        return {"kind": "PIL", "mode": value.mode, "size": value.size}, value.tobytes()
    if type(value) is np.ndarray and value.dtype.kind in _ARRAY_KINDS:
        order = _order(value.strides)
        header = {"kind": "array", "dtype": value.dtype.str, "shape": value.shape, "order": order}
        return header, value.transpose(order).tobytes()
    kind = next((name for name, tensor_type in _TENSORS.items() if type(value) is tensor_type), None)
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if kind is None or name not in _DTYPES or value.requires_grad:
        return None
    if value.layout != torch.strided or value.device.type != "cpu":
        return None
    order = _order(value.stride())
    plain = value.as_subclass(torch.Tensor).resolve_conj().permute(order).contiguous()
    header = {"kind": kind, "dtype": name, "shape": tuple(value.shape), "order": order}
    return header, plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _order(strides: tuple[int, ...]) -> list[int]:
    """Return the dimensions in their order in memory."""
    return sorted(range(len(strides)), key=lambda dimension: -abs(strides[dimension]))


def from_bytes(kept: bytearray) -> Any:
    """Return the value of which `to_bytes` has made these bytes. Its memory is ``kept``, and may be written to.

    Raises:
        ValueError, KeyError, TypeError: they are no such bytes.
    """
    length = int.from_bytes(kept[:4], "little")
    header = json.loads(kept[4 : 4 + length])
    begin = (4 + length + _BEGIN - 1) // _BEGIN * _BEGIN
    if header["kind"] == "PIL":
        return Image.frombytes(header["mode"], tuple(header["size"]), memoryview(kept)[begin:])
    shape, order = tuple(header["shape"]), header["order"]
    in_memory, back = [shape[dimension] for dimension in order], np.argsort(order).tolist()
    if header["kind"] == "array":
        array = np.frombuffer(kept, np.dtype(header["dtype"]), math.prod(shape), begin)
        return array.reshape(in_memory).transpose(back)
    kind, dtype = _TENSORS[header["kind"]], _DTYPES[header["dtype"]]
    count = math.prod(shape)
    flat = torch.frombuffer(kept, dtype=dtype, count=count, offset=begin) if count else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(in_memory).permute(back)
    return tensor if kind is torch.Tensor else kind(tensor)
