"""Each check at its limits: what it accepts, what it returns, and what it says about the rest."""

from __future__ import annotations

import math

import pytest

from csd_engine.protocol import fields

BIG = (1 << 63) - 1
TAKEN = [
    (fields.integer(-2, 3), [-2, 0, 3], [-3, 4, True, 1.0, "1", None], "an integer from -2 to 3"),
    (fields.count, [0, BIG], [-1, BIG + 1], f"an integer from 0 to {BIG}"),
    (fields.signed, [-(1 << 63), (1 << 64) - 1], [-(1 << 63) - 1, 1 << 64], f"an integer from {-(1 << 63)} to {(1 << 64) - 1}"),
    (fields.number(-1, 2), [-1, 2, 0.5], [-1.1, 2.1, math.nan, math.inf, True, "1", None], "a number from -1 to 2"),
    (fields.rate, [0, 1e9], [-1e-9, 1e9 + 1], "a number from 0 to 1e+09"),
    (fields.seconds, [0, 0.5, 999_999_999], [-0.1, 1e9, math.nan, True, "1", None], "a number of seconds"),
    (fields.truth, [True, False], [0, 1, None, "true"], "true or false"),
    (fields.an_object, [{}, {"a": 1}], [[], None, "{}"], "an object"),
    (fields.anything, ["", "a\nb", "x" * 4096], ["x" * 4097, b"x", None, 1], "a text of at most 4096 characters"),
    (fields.name, ["a", "Z-_9", "x" * 64], ["", "x" * 65, "a b", "a/b", "ä", "a\n"],
     "a name of 1 to 64 letters, digits, '-' or '_'"),
    (fields.no_or_name, ["", "aZ-_9", "x" * 64], ["x" * 65, ".", "a\n"],
     "a name of at most 64 letters, digits, '-' or '_', or nothing"),
    (fields.hex32, ["0123456789abcdef" * 2], ["0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 32 + "\n"], "32 hex digits"),
    (fields.file, ["a/" + "0" * 32 + ".1.safetensors", "Z_-9/" + "f" * 32 + "." + "9" * 19 + ".safetensors"],
     ["a/" + "0" * 32 + "." + "9" * 20 + ".safetensors", "a/" + "0" * 32 + "..safetensors", "a/" + "0" * 32 + ".1xsafetensors",
      "a/b/" + "0" * 32 + ".1.safetensors", "../" + "0" * 32 + ".1.safetensors"], "a batch file below the spool"),
    (fields.shared_file, ["", "files/a_1/Z-9"], ["files/", "files/a", "files/a/b/c", "files/../x", "Files/a/b", "files/a/b\n"],
     "a host's file below the spool's files/, or nothing"),
    (fields.kind, ["manifest", "array"], ["", "manifests", "Array", None], "'manifest' or 'array'"),
    (fields.list_of(fields.count, 2), [[], (), [1, 2]], [[1, 2, 3], "ab", {1: 2}, None], "a list of at most 2"),
    (fields.tuple_of(fields.count, fields.truth), [[1, True], (1, False)], [[], [1], [1, True, 1], {1: 2, 3: 4}, "ab", None],
     "a list of exactly 2"),
    (fields.versions, [{}, {"a": "b"}, {str(k): "x" for k in range(32)}], [{str(k): "x" for k in range(33)}, [], None],
     "an object of at most 32 texts"),
]  # fmt: skip


@pytest.mark.parametrize("check, taken, refused, meaning", TAKEN, ids=[one[-1][:40] for one in TAKEN])
def test_a_check_takes_what_it_says_and_says_what_it_takes(check, taken, refused, meaning):
    for value in taken:
        found = check(value)
        assert found == (tuple(value) if isinstance(value, list) else value)
        assert not isinstance(value, (list, tuple)) or type(found) is tuple
    for value in refused:
        with pytest.raises(ValueError) as refusal:
            check(value)
        assert str(refusal.value) == meaning


def test_numbers_become_floats():
    assert [type(check(1)) for check in (fields.seconds, fields.number(0, 2), fields.rate)] == [float] * 3


def test_what_is_inside_is_checked_too():
    for check, value, meaning in (
        (fields.list_of(fields.truth, 2), [True, 1], "true or false"),
        (fields.tuple_of(fields.count, fields.truth), [1, 1], "true or false"),
        (fields.versions, {"a": 1}, "a text of at most 4096 characters"),
        (fields.versions, {1: "a"}, "a text of at most 4096 characters"),
        (fields.optional(fields.truth), 1, "true or false"),
    ):
        with pytest.raises(ValueError) as refusal:
            check(value)
        assert str(refusal.value) == meaning
    assert fields.optional(fields.truth)(None) is None and fields.optional(fields.truth)(False) is False


def test_a_lease_has_so_many_samples_at_most():
    assert fields.items([[0, BIG]] * fields.MAX_ITEMS) == ((0, BIG),) * (1 << 17)
    with pytest.raises(ValueError, match="a list of at most 131072"):
        fields.items([[0, 0]] * (fields.MAX_ITEMS + 1))
