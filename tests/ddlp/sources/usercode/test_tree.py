"""`tree`: what can be sent comes back with the same bits, what can't is refused, and no bytes make the decoder do more."""

from __future__ import annotations

import collections
import enum
import json
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlp.sources.usercode import tree
from ddlp.sources.usercode.tree import MAX_DEPTH, DamagedTree, Encoded, NotATree, decode, encode

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
NAMES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()


def tensor(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    return (torch.arange(math.prod(shape)) % 3).to(dtype).reshape(shape)


tensors = st.builds(tensor, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=4))
arrays = st.builds(lambda one: one.numpy(), tensors.filter(lambda one: one.dtype != torch.bfloat16))
keys = st.none() | st.booleans() | st.integers(-(1 << 64) + 1, (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
leaves = keys | st.integers() | st.floats() | st.complex_numbers() | st.binary() | tensors | arrays
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
        (np.array(["a"]), "the batch is an array of <U1"),
        (np.zeros(2, ">f4"), "an array of >f4"),
        (torch.zeros(2, requires_grad=True), "requires_grad=True"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        (torch.eye(2).to_sparse(), "the batch is a tensor .*sparse"),
        ([{-(1 << 64): 1}], r"a key of the batch\[0\] is an integer of 65 bits; 64 can be sent"),
        (torch.zeros(2, device="meta"), "meta"),
        (torch.ones(2, dtype=torch.complex64).conj(), "a tensor .torch.complex64"),
        (torch.ones(2, dtype=torch.complex64).conj().imag, "a tensor .torch.float32"),
        ({(1, 2): 3}, "a key of the batch is a tuple"),
        ([{b"a": 3}], r"a key of the batch\[0\] is a bytes"),
        ({1j: 3}, "a key of the batch is a complex"),
        (lambda: 0, "builtins.function"),
        (deep, "deeper than 32 levels"),
    ],
)
def test_what_is_no_tree_is_refused_by_its_place(thing, said):
    with pytest.raises(NotATree, match=said):
        encode(thing)


def test_a_refusal_says_what_can_be_sent():
    with pytest.raises(NotATree) as refusal:
        encode([{1, 2}])
    assert str(refusal.value) == (
        "the batch[0] is a builtins.set; tensors, numpy arrays, numbers, strings, bytes, None, tuples, lists and dicts of "
        "these can be sent"
    )


def test_keys_have_different_hashes():
    """A dict of a hostile node costs what an honest one does: of integers that long at most 16 share a hash."""
    assert hash(1 << 64) == hash(8) and encode({(1 << 64) - 1: 1}) and encode({1 - (1 << 64): 1})


def test_dimensions_that_this_numpy_does_not_have(monkeypatch):
    monkeypatch.setattr(tree, "MAX_DIMENSIONS", 100)
    with pytest.raises(DamagedTree, match="no shape: "):
        decode(Encoded(f'["a","uint8",{[1] * 65}]'.encode(), [bytes_of(1)]))


def test_a_circle_is_refused():
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotATree, match="deeper than"):
        encode(circle)


def bytes_of(count: int) -> torch.Tensor:
    return torch.full((count,), 2, dtype=torch.uint8)


@pytest.mark.parametrize("levels", [0, 30])
def test_what_is_nested_deep_is_refused_where_python_can_read_it_too(levels):
    limit = sys.getrecursionlimit()
    for depth in (*range(limit - 150, limit), 100_000):
        with pytest.raises(DamagedTree):
            decode(Encoded(b'["l",' * levels + b"[" * depth + b"]" * (depth + levels), []))


@pytest.mark.parametrize(
    ("header", "sizes"),
    [
        (b"", []), (b"\xff", []), (b"[" * 100_000, []), (b"[1]", []), (b"[]", []), (b'["x"]', []), (b'{"a":1}', []),
        (b"1_0", []), (b"9" * 5000, []), (b'["c",1,1]', []), (b'["c",1.0]', []), (b'["c","1.0",1.0]', []),
        (b'["b",3]', [2]), (b'["b",3]', []), (b"null", [1]), (b'["d",null]', []),
        (b'["d","a",null,"a",null]', []), (b'["d",["l"],null]', []), (b'["d",["t","uint8",[],[]],null]', [1]),
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


# -- limits: both sides have the same, and what is within them comes back


def nested(kind: type, levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = {None: made} if kind is dict else kind([made])
    return made


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_a_tree_has_32_levels_at_most(kind):
    encoded = encode(nested(kind, 32))
    assert decode(encoded) == nested(kind, 32)
    with pytest.raises(NotATree, match="deeper than 32 levels"):
        encode(nested(kind, 33))
    for one_more in (b'["l",%s]', b'["u",%s]', b'["d",null,%s]'):
        with pytest.raises(DamagedTree, match="deeper than 32 levels"):
            decode(encoded._replace(header=one_more % encoded.header))


def test_the_longest_integers_are_sent():
    for longest in ((1 << 12288) - 1, 1 - (1 << 12288)):
        assert decode(encode([longest])) == [longest]
        with pytest.raises(NotATree, match=r"the batch\[0\] is an integer of 12289 bits"):
            encode([2 * longest])
    assert decode(Encoded(b"9" * 4096, [])) == int("9" * 4096) and decode(Encoded(b"-" + b"9" * 4096, [])) == -int("9" * 4096)
    for text in ("9" * 4097, "-" + "9" * 4097, "", "-", "01", "+1", "1.", "--1", "1_0"):
        with pytest.raises(DamagedTree, match="is no JSON"):
            decode(Encoded(text.encode(), []))


def test_the_limits_of_a_batch(monkeypatch):
    assert (tree.MAX_HEADER_BYTES, tree.MAX_BUFFERS, tree.MAX_BYTES) == (64 << 20, 65_536, 64 << 30)
    batch = [bytes_of(3), bytes_of(2)]
    encoded = encode(batch)
    for limit, most in (("MAX_HEADER_BYTES", len(encoded.header)), ("MAX_BUFFERS", 2), ("MAX_BYTES", 5)):
        monkeypatch.setattr(tree, limit, most)
        decode(encode(batch))
        monkeypatch.setattr(tree, limit, most - 1)
        with pytest.raises(NotATree, match=f"2 tensors and {len(encoded.header)} bytes besides"):
            encode(batch)
        if limit != "MAX_BYTES":
            with pytest.raises(DamagedTree, match="the header is too long"):
                decode(encoded)
        monkeypatch.undo()


def test_a_shape_is_as_large_as_a_batch_may_be():
    for dimensions in (["a"], ["t"]):
        order = [[0, 1]] if dimensions == ["t"] else []
        made = decode(Encoded(json.dumps([*dimensions, "uint8", [0, 64 << 30], *order]).encode(), [bytes_of(0)]))
        assert tuple(made.shape) == (0, 64 << 30)
        for shape in ([0, (64 << 30) + 1], [0, 1 << 18, (1 << 18) + 1]):
            order = [list(range(len(shape)))] if dimensions == ["t"] else []
            with pytest.raises(DamagedTree, match="no s"):
                decode(Encoded(json.dumps([*dimensions, "uint8", shape, *order]).encode(), [bytes_of(0)]))


def test_a_tensor_has_64_dimensions_at_most():
    most = torch.full((1,) * 64, 2, dtype=torch.uint8)
    assert torch.equal(decode(encode(most)), most)
    header = json.dumps(["t", "uint8", [1] * 65, list(range(65))]).encode()
    with pytest.raises(DamagedTree, match="no sizes"):
        decode(Encoded(header, [bytes_of(1)]))


# -- what lies in the buffers


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(getattr(torch, name, None), torch.dtype)])
def test_each_kind_of_number_is_sent(name):
    one = torch.tensor([0, 1, 1]).to(getattr(torch, name))
    back = decode(encode(one))
    assert back.dtype == one.dtype and back.tolist() == one.tolist()
    if name != "bfloat16":
        made = decode(encode(one.numpy()))
        assert made.dtype == np.dtype(name) and made.tolist() == one.tolist()


def test_what_lies_in_one_piece_is_not_copied():
    images, numbers = torch.zeros(2, 3), np.zeros(4, np.int64)
    encoded = encode((images, numbers))
    images[1, 2], numbers[3] = 7, 9
    back = decode(encoded)
    assert back[0][1, 2] == 7 and back[1][3] == 9
    back[0][0, 0], back[1][0] = 5, 6
    assert images[0, 0] == 5 and numbers[0] == 6, "nor when it is read"


@pytest.mark.parametrize("array", [
    np.arange(6).reshape(2, 3).T, np.arange(9)[::-2], np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(3.5),
    np.broadcast_to(np.int8(3), (2, 2)), np.frombuffer(b"abcd", np.uint8),
])  # fmt: skip
def test_an_array_comes_back_whatever_its_strides(array, recwarn):
    back = decode(encode(array))
    assert back.dtype == array.dtype and back.shape == array.shape and np.array_equal(back, array) and back.flags.writeable
    assert not recwarn.list, "torch warns of arrays that can't be written to"


@pytest.mark.parametrize(
    "buffer", [bytes_of(2), bytes_of(4), bytes_of(3).reshape(1, 3), bytes_of(3).reshape(3, 1), bytes_of(3).view(torch.int8)]
)
def test_a_buffer_is_bytes_in_a_row_as_many_as_the_header_says(buffer):
    for header in (b'["b",3]', b'["t","uint8",[3],[0]]', b'["a","uint8",[3]]'):
        assert decode(Encoded(header, [bytes_of(3)])) is not None
        with pytest.raises(DamagedTree, match="another size than the header's 3 bytes"):
            decode(Encoded(header, [buffer]))


def test_two_encodings_are_the_same_if_all_their_bits_are():
    one = encode([b"abc", b"d"])
    assert one.same_as(encode([b"abc", b"d"])) and one.nbytes == len(one.header) + 4
    for other in (encode([b"abx", b"d"]), encode((b"abc", b"d")), one._replace(buffers=one.buffers[:1])):
        assert not one.same_as(other) and not other.same_as(one)


# -- what the decoder says of what is damaged


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("", "the header is no JSON"), ("{}", "{} is no part of a batch"), ("[1]", r"\[1\] is no part of a batch"),
        ('["x",1]', "'x' is no kind of a part"), ('["d","a"]', "a dict has a key without a value"),
        *(
            (f'["d",{key},1]', "is no key")
            for key in ('["c",0.0,0.0]', '["b",0]', '["l"]', '["u"]', "[]", "{}", '["a","x"]')
        ),
        ('["d",1,null,true,null]', "a dict has a key twice"), ('["s","a"]', "no kind of a part"),
        ('["c",0.0]', "no complex number"), ('["c",0.0,"x"]', "no complex number"), ('["c",0.0,true]', "no complex number"),
        ('["b"]', "or is missing"), ('["b",1,1]', "no sizes"), ('["b",true]', "no sizes"), ('["b",1.0]', "no sizes"),
        ('["a","uint8",[1],[0]]', "no tensor"), ('["a","uint8"]', "no tensor"), ('["t","uint8",[1],[0],[0]]', "no tensor"),
        ('["t","uint8",[1]]', "no tensor"), ('["a","uint8",3]', "no sizes"), ('["a","uint8",[-1]]', "no sizes"),
        ('["t","uint8",[1],3]', "no sizes"), ('["t","uint8",[1],[1]]', r"\[1\]: no order of 1 dimensions"),
        ('["t","uint8",[1],[0,0]]', "no order of 1 dimensions"), ("null", "more buffers than the header names"),
        ('["a","bool",[1]]', "a truth value is neither 0 nor 1"),
        (f'["d",{1 << 64},null]', "an integer of 65 bits is too large for a key"),
        (f'["d",-{1 << 64},null]', "an integer of 65 bits is too large for a key"),
    ],
)  # fmt: skip
def test_it_is_said_what_is_wrong(header, said):
    with pytest.raises(DamagedTree, match=said):
        decode(Encoded(header.encode(), [bytes_of(1)]))
