"""A batch as a header of JSON and buffers, and back. Nothing in it can name code, so nobody has to trust who has made it.

A batch is a tree of tensors, arrays, numbers, strings, bytes, None, tuples, lists and dicts. `encode` refuses any other object;
`decode` checks all that it reads. A tree has one encoding, so two batches have the same bits if their encodings are equal.

In the header None, truth values, numbers and strings are JSON's. All else is a list that begins with its kind:

    ["c", real, imaginary]  ["b", size]  ["t", dtype, shape, order]  ["a", dtype, shape]
    ["l", ...]  ["u", ...]  ["d", key, value, ...]
    a complex number, bytes, a tensor, a numpy array; a list, a tuple, a dict

Bytes, tensors and arrays have a buffer each, in the order of the header. A tensor's order names its dimensions from the
largest stride to the smallest, so a tensor in channels_last comes back as one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from csd_engine.errors import quote

__all__ = ["MAX_BUFFERS", "MAX_BYTES", "MAX_HEADER_BYTES", "DamagedTree", "Encoded", "NotATree", "decode", "encode"]

MAX_DEPTH = 32
MAX_HEADER_BYTES = 64 << 20
MAX_BUFFERS = 1 << 16
MAX_BYTES = 1 << 36  # of all buffers
MAX_DIMENSIONS = 64  # numpy's own limit since 2.0; before it was 32
MAX_DIGITS = 4096  # of an integer: Python itself refuses to read more than 4,300
MAX_KEY_BITS = 64  # Python's hash of an integer is its rest by 2**61 - 1, so larger ones could all have one hash

_DTYPES = {
    name: dtype
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
        "float64", "complex64", "complex128",
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)  # older torch has no uint16
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ARRAYS = {name: np.dtype(name) for name in _DTYPES if name != "bfloat16"}


class NotATree(TypeError):
    """A batch has an object that can't be sent. The text names it and its place."""


class DamagedTree(ValueError):
    """A header and buffers that are no batch."""


class Encoded(NamedTuple):
    """An encoded batch.

    Attributes:
        header: JSON.
        buffers: uint8 tensors of one dimension. They may share the batch's memory.
    """

    header: bytes
    buffers: list[torch.Tensor]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return len(self.header) + sum(map(len, self.buffers))

    def same_as(self, other: Encoded) -> bool:
        """Return whether both are the same batch, bit for bit."""
        same = self.header == other.header and len(self.buffers) == len(other.buffers)
        return same and all(map(torch.equal, self.buffers, other.buffers))


def encode(batch: Any) -> Encoded:
    """Return a batch's encoding.

    Raises:
        NotATree: it has an object of another type, a tensor that is not a plain one in this computer's memory, or it is larger
            or deeper than the limits of this module.
    """
    buffers: list[torch.Tensor] = []
    header = json.dumps(_encoded(batch, "the batch", 0, buffers), separators=(",", ":")).encode("ascii")
    if len(header) > MAX_HEADER_BYTES or len(buffers) > MAX_BUFFERS or sum(map(len, buffers)) > MAX_BYTES:
        raise NotATree(f"the batch has {len(buffers)} tensors and {len(header)} bytes besides, which is too much to send")
    return Encoded(header, buffers)


def _encoded(thing: Any, where: str, depth: int, buffers: list[torch.Tensor]) -> Any:
    kind = type(thing)
    if thing is None or kind in (bool, float, str):
        return thing
    if kind is int:
        if thing.bit_length() > 3 * MAX_DIGITS:
            raise NotATree(f"{where} is an integer of {thing.bit_length()} bits")
        return thing
    if kind is complex:
        return ["c", thing.real, thing.imag]
    if kind is bytes:
        buffers.append(torch.frombuffer(bytearray(thing), dtype=torch.uint8) if thing else torch.empty(0, dtype=torch.uint8))
        return ["b", len(thing)]
    if kind is torch.Tensor:
        return _tensor(thing, where, buffers)
    if kind is np.ndarray:
        return _array(thing, where, buffers)
    if kind not in (list, tuple, dict):
        raise NotATree(f"{where} is a {kind.__module__}.{kind.__qualname__}; {_ALLOWED}")
    if depth >= MAX_DEPTH:
        raise NotATree(f"{where} is deeper than {MAX_DEPTH} levels")
    if kind is not dict:
        parts = [_encoded(part, f"{where}[{k}]", depth + 1, buffers) for k, part in enumerate(thing)]
        return ["l" if kind is list else "u", *parts]
    parts = ["d"]
    for key, value in thing.items():
        if type(key) not in (str, int, bool, float, type(None)):
            raise NotATree(f"a key of {where} is a {type(key).__qualname__}; keys may be strings and numbers")
        if type(key) is int and key.bit_length() > MAX_KEY_BITS:
            raise NotATree(f"a key of {where} is an integer of {key.bit_length()} bits; {MAX_KEY_BITS} can be sent in a key")
        parts += [_encoded(key, where, depth, buffers), _encoded(value, f"{where}[{key!r:.80}]", depth + 1, buffers)]
    return parts


_ALLOWED = "tensors, numpy arrays, numbers, strings, bytes, None, tuples, lists and dicts of these can be sent"


def _tensor(tensor: torch.Tensor, where: str, buffers: list[torch.Tensor]) -> Any:
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.dtype in _NAMES
    if not plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        raise NotATree(
            f"{where} is a tensor ({tensor.dtype}, {tensor.layout}, {tensor.device}, requires_grad={tensor.requires_grad}); "
            "a plain one in this computer's memory can be sent"
        )
    order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
    if not tensor.permute(order).is_contiguous():
        order = list(range(tensor.dim()))
    flat = tensor.permute(order).contiguous().reshape(-1)
    buffers.append(flat.view(torch.uint8))
    return ["t", _NAMES[tensor.dtype], list(tensor.shape), order]


def _array(array: np.ndarray, where: str, buffers: list[torch.Tensor]) -> Any:
    if array.dtype not in _ARRAYS.values():  # also not in the other order of bytes
        raise NotATree(f"{where} is an array of {array.dtype}; arrays of numbers can be sent")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    buffers.append(torch.from_numpy(flat if flat.flags.writeable else flat.copy()))
    return ["a", array.dtype.name, list(array.shape)]


def decode(encoded: Encoded) -> Any:
    """Return the batch. Its tensors and arrays lie in the buffers, each in its own.

    Raises:
        DamagedTree: the header or a buffer is no part of a batch, or beyond a limit.
    """
    if len(encoded.header) > MAX_HEADER_BYTES or len(encoded.buffers) > MAX_BUFFERS:
        raise DamagedTree("the header is too long")
    try:
        data = json.loads(encoded.header.decode("ascii"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise DamagedTree(f"the header is no JSON: {error}") from None
    buffers = iter(encoded.buffers)
    batch = _decoded(data, 0, buffers)
    if next(buffers, None) is not None:
        raise DamagedTree("there are more buffers than the header names")
    return batch


def _decoded(data: Any, depth: int, buffers: Iterator[torch.Tensor]) -> Any:
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is not list or not data or type(data[0]) is not str:
        raise DamagedTree(f"{quote(data):.80} is no part of a batch")
    kind, *parts = data
    if kind in ("l", "u", "d"):
        if depth >= MAX_DEPTH:
            raise DamagedTree(f"it is deeper than {MAX_DEPTH} levels")
        if kind == "d":
            return _dict(parts, depth, buffers)
        values = [_decoded(part, depth + 1, buffers) for part in parts]
        return values if kind == "l" else tuple(values)
    read = _LEAVES.get(kind)
    if read is None:
        raise DamagedTree(f"{quote(kind):.80} is no kind of a part")
    return read(parts, buffers)


def _dict(parts: list[Any], depth: int, buffers: Iterator[torch.Tensor]) -> dict[Any, Any]:
    if len(parts) % 2:
        raise DamagedTree("a dict has a key without a value")
    mapping = {}
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if type(key) in (list, dict):
            raise DamagedTree(f"{quote(key):.80} is no key")
        if type(key) is int and key.bit_length() > MAX_KEY_BITS:
            raise DamagedTree(f"an integer of {key.bit_length()} bits is too large for a key")
        mapping[key] = _decoded(value, depth + 1, buffers)
    if 2 * len(mapping) != len(parts):
        raise DamagedTree("a dict has a key twice")
    return mapping


def _integer(text: str) -> int:
    if len(text.removeprefix("-")) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _complex(parts: list[Any], _: Iterator[torch.Tensor]) -> complex:
    if len(parts) != 2 or not all(type(part) is float for part in parts):
        raise DamagedTree(f"{quote(parts):.80}: no complex number")
    return complex(*parts)


def _bytes(parts: list[Any], buffers: Iterator[torch.Tensor]) -> bytes:
    return bytes(_buffer(buffers, *_sizes(parts, 1)).numpy())


def _sizes(sizes: Any, most: int) -> list[int]:
    if type(sizes) is not list or len(sizes) > most or not all(type(size) is int and 0 <= size <= MAX_BYTES for size in sizes):
        raise DamagedTree(f"{quote(sizes):.80}: no sizes")
    return sizes


def _buffer(buffers: Iterator[torch.Tensor], size: int = -1) -> torch.Tensor:
    buffer = next(buffers, None)
    if buffer is None or buffer.dtype != torch.uint8 or buffer.dim() != 1 or len(buffer) != size:
        raise DamagedTree(f"a buffer has another size than the header's {size} bytes, or is missing")
    return buffer


def _typed(parts: list[Any], buffers: Iterator[torch.Tensor], number: int, dtypes: Any) -> tuple[torch.Tensor, Any, list[int]]:
    if len(parts) != number or type(parts[0]) is not str or parts[0] not in dtypes:
        raise DamagedTree(f"{quote(parts):.80}: no tensor")
    dtype, shape = dtypes[parts[0]], _sizes(parts[1], MAX_DIMENSIONS)
    if math.prod(size for size in shape if size) > MAX_BYTES:  # also where another size is 0: torch multiplies them
        raise DamagedTree(f"{quote(shape):.80}: no shape")
    buffer = _buffer(buffers, math.prod(shape) * dtype.itemsize)
    if parts[0] == "bool" and bool((buffer > 1).any()):
        raise DamagedTree("a truth value is neither 0 nor 1")
    return buffer, dtype, shape


def _read_tensor(parts: list[Any], buffers: Iterator[torch.Tensor]) -> torch.Tensor:
    buffer, dtype, shape = _typed(parts, buffers, 3, _DTYPES)
    order = _sizes(parts[2], MAX_DIMENSIONS)
    if sorted(order) != list(range(len(shape))):
        raise DamagedTree(f"{quote(order):.80}: no order of {len(shape)} dimensions")
    back = sorted(range(len(order)), key=order.__getitem__)
    return buffer.view(dtype).view([shape[k] for k in order]).permute(back)


def _read_array(parts: list[Any], buffers: Iterator[torch.Tensor]) -> np.ndarray:
    buffer, dtype, shape = _typed(parts, buffers, 2, _ARRAYS)
    try:
        return buffer.numpy().view(dtype).reshape(shape)
    except ValueError as error:  # more dimensions than this numpy has
        raise DamagedTree(f"{quote(shape):.80}: no shape: {error}") from None


_LEAVES: dict[str, Callable[[list[Any], Iterator[torch.Tensor]], Any]] = {
    "c": _complex,
    "b": _bytes,
    "t": _read_tensor,
    "a": _read_array,
}
