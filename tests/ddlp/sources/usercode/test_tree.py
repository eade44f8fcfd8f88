"""`tree`: what can be sent comes back with the same bits, what can't is refused, and no bytes make the decoder do more."""

from __future__ import annotations

import collections
import enum
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlp.sources.usercode.tree import MAX_DEPTH, DamagedTree, Encoded, NotATree, decode, encode

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


def tensor(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    return (torch.arange(math.prod(shape)) % 3).to(dtype).reshape(shape)


tensors = st.builds(tensor, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=4))
arrays = st.builds(lambda one: one.numpy(), tensors.filter(lambda one: one.dtype != torch.bfloat16))
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
leaves = keys | st.floats() | st.complex_numbers() | st.binary() | tensors | arrays
trees = st.recursive(
    leaves,
    lambda part: st.lists(part, max_size=4) | st.lists(part, max_size=4).map(tuple) | st.dictionaries(keys, part, max_size=4),
    max_leaves=12,
)


def shape_of(thing: Any) -> Any:
    """The types of a tree's parts, with the dtypes, shapes and strides of tensors, and the exact numbers."""
    if isinstance(thing, (list, tuple)):
        return type(thing), [shape_of(part) for part in thing]
    if isinstance(thing, dict):
        return dict, [(shape_of(key), shape_of(part)) for key, part in thing.items()]
    if isinstance(thing, torch.Tensor):
        return thing.dtype, thing.shape, thing.stride(), thing.tolist()
    if isinstance(thing, np.ndarray):
        return thing.dtype, thing.shape, thing.tolist()
    return type(thing), repr(thing)


@given(trees)
def test_it_comes_back_the_same(tree):
    encoded = encode(tree)
    back = decode(encoded)
    assert shape_of(back) == shape_of(tree)
    assert encode(back).same_as(encoded)


def test_strides_stay():
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back, turned, spread = decode(encode([images, images.transpose(0, 3), torch.ones(3, 1).expand(3, 4)]))
    assert torch.equal(back, images) and back.stride() == images.stride() and torch.equal(turned, images.transpose(0, 3))
    assert torch.equal(spread, torch.ones(3, 4)) and spread.is_contiguous()


class Named(str):
    pass


class Colour(enum.IntEnum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")
deep: list[Any] = []
for _ in range(MAX_DEPTH + 1):
    deep = [deep]


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (Named("x"), "the batch is a .*Named"),
        ({"a": [Colour.RED]}, r"the batch\['a'\]\[0\] is a .*Colour"),
        (Pair(1, 2), "is a .*Pair"),
        ([{1, 2}], "builtins.set"),
        (np.float32(1), "numpy.float32"),
        (np.array(["a"]), "an array of <U1"),
        (np.zeros(2, ">f4"), "an array of >f4"),
        (torch.zeros(2, requires_grad=True), "requires_grad=True"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
        ({(1, 2): 3}, "a key of the batch is a tuple"),
        (lambda: 0, "builtins.function"),
        (deep, "deeper than 32 levels"),
    ],
)
def test_what_is_no_tree_is_refused_by_its_place(thing, said):
    with pytest.raises(NotATree, match=said):
        encode(thing)


def test_an_integer_has_a_limit():
    with pytest.raises(NotATree, match="the batch is an integer of 20001 bits"):
        encode(1 << 20_000)


def test_a_circle_is_refused():
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotATree, match="deeper than"):
        encode(circle)


def bytes_of(count: int) -> torch.Tensor:
    return torch.full((count,), 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("header", "sizes"),
    [
        (b"", []), (b"\xff", []), (b"[" * 100_000, []), (b"1", []), (b"[]", []), (b'["x"]', []), (b'{"a":1}', []),
        (b'["i","1_0"]', []), (b'["i",1]', []), (b'["i","' + b"9" * 5000 + b'"]', []), (b'["f","y"]', []),
        (b'["f","0x1p9999"]', []),
        (b'["s",1]', []), (b'["b",3]', [2]), (b'["b",3]', []), (b"null", [1]), (b'["d",null]', []),
        (b'["d",["s","a"],null,["s","a"],null]', []), (b'["d",["l"],null]', []), (b'["d",["t","uint8",[],[]],null]', [1]),
        (b'["t","uint8",[2],[0]]', [3]), (b'["t","object",[2],[0]]', [16]), (b'["t","uint8",[-1],[0]]', [1]),
        (b'["t","uint8",[2],[1]]', [2]), (b'["t","uint8",[2],[]]', [2]), (b'["t","uint8",[1,2],[0,0]]', [2]),
        (b'["t","bool",[2],[0]]', [2]), (b'["t","int64",[9223372036854775807,2],[0,1]]', [0]),
        (b'["t","uint8",[0,68719476736,68719476736],[0,1,2]]', [0]), (b'["t",["uint8"],[2],[0]]', [2]),
        (b'["a","bfloat16",[1]]', [2]), (b'["a","uint8",[true]]', [1]), (b'["t","uint8",[1]]', [1]),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(header, sizes):
    with pytest.raises(DamagedTree):
        decode(Encoded(header, [bytes_of(size) for size in sizes]))


pieces = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 70) | st.floats()
    | st.sampled_from(["i", "f", "c", "s", "b", "t", "a", "l", "u", "d", "uint8", "bool", "1", "-0", "0x1p0", "nan"]),
    lambda part: st.lists(part, max_size=5) | st.dictionaries(st.text(max_size=2), part, max_size=2),
    max_leaves=12,
)  # fmt: skip


@given(pieces.map(lambda one: json.dumps(one).encode()) | st.binary(max_size=40), st.lists(st.integers(0, 16), max_size=3))
def test_the_decoder_makes_a_tree_of_any_bytes_or_refuses_them(header, sizes):
    try:
        made = decode(Encoded(header, [bytes_of(size) for size in sizes]))
    except DamagedTree:
        return
    encode(made)  # whatever it made, is a tree


@given(trees, st.data())
def test_a_changed_header_is_refused_or_is_another_tree(tree, data):
    encoded = encode(tree)
    place = data.draw(st.integers(0, len(encoded.header) - 1))
    header = encoded.header[:place] + data.draw(st.binary(max_size=2)) + encoded.header[place + data.draw(st.integers(0, 2)) :]
    try:
        encode(decode(encoded._replace(header=header)))
    except DamagedTree:
        pass
