"""Checks of data from files and states: each error names the field, what was found, and what it must be."""

from __future__ import annotations

import pytest

from csd_engine.protocol.fields import count, truth
from csd_engine.protocol.schema import Misfit, checked_fields, one_of, text_of


def test_the_fields_come_back_as_their_checks_return_them():
    data = {"b": 2, "a": "x\n", "c": True}
    found = checked_fields("it", data, {"a": text_of(3), "b": count}, {"c": truth, "d": truth})
    assert found == {"b": 2, "a": r"x\n", "c": True} and list(found) == ["b", "a", "c"]
    assert checked_fields("it", {}, {}, {"c": truth}) == {}


@pytest.mark.parametrize(
    "data, text",
    [
        (3, "it is 3; it must be an object"),
        ([("a", 1)], "it is [('a', 1)]; it must be an object"),
        ({}, "it has no a"),
        ({"b": 1}, "it has no a"),
        ({"a": 1}, "it has no b"),
        ({"a": 1, "b": 2, "x": 3, "y": 4}, "it has a field 'x' that is not known"),
        ({"a": -1, "b": 2}, "it: a is -1; it must be an integer from 0 to 9223372036854775807"),
        ({"a": 1, "b": 2, "c": 1}, "it: c is 1; it must be true or false"),
        ({"a": 1, "b": "x" * 500, "c": True}, None),
    ],
)
def test_what_does_not_fit_is_named(data, text):
    with pytest.raises(Misfit) as misfit:
        checked_fields("it", data, {"a": count, "b": count}, {"c": truth})
    if text is not None:
        assert str(misfit.value) == text
    assert len(str(misfit.value)) < 200 and misfit.value.__cause__ is None


def test_a_misfit_of_what_is_inside_stays_whole():
    def inner(value):
        return checked_fields("the inner one", value, {"a": count}, {})

    with pytest.raises(Misfit) as misfit:
        checked_fields("it", {"in": {}}, {"in": inner}, {})
    assert str(misfit.value) == "the inner one has no a"


def test_a_text_is_bounded_and_made_fit_for_a_terminal():
    check = text_of(4)
    assert check("abcd") == "abcd" and check("") == "" and check("\x1b") == r"\x1b"
    for value in ("abcde", b"abc", None, 3):
        with pytest.raises(ValueError, match="^a text of at most 4 characters$"):
            check(value)
    assert text_of(600)("x" * 600) == "x" * 600, "it is not cut"


def test_one_of_some_texts():
    check = one_of("cpu", "csd")
    assert check("csd") == "csd"
    for value in ("gpu", "", None, ["cpu"], 3):
        with pytest.raises(ValueError, match="^cpu or csd$"):
            check(value)
