"""A peer's text, made safe for a log or a terminal."""

from __future__ import annotations

import pytest

from csd_engine.protocol.printable import printable


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a plain text, with ä, 水 and €", "a plain text, with ä, 水 and €"),
        ("one\ntwo\r\n", r"one\ntwo\r\n"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("\x9b2J\x7f\0", r"\x9b2J\x7f\x00"),
        ("line\u2028and\u2029paragraph", r"line\u2028and\u2029paragraph"),
        ("name\u202egpj.exe", r"name\u202egpj.exe"),
        ("half \udcff", r"half \udcff"),
        ("ä and \\ stay\n", r"ä and \ stay\n"),
        ("", ""),
    ],
)
def test_nothing_is_left_that_a_terminal_obeys(text: str, shown: str) -> None:
    assert printable(text) == shown and shown.isprintable()


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 9000, 100) == "x" * 97 + "..."
    assert printable("x" * 100, 100) == "x" * 100
    assert printable("x" * 101, 100) == "x" * 97 + "..." and printable("x" * 501) == "x" * 497 + "..."
    assert printable("x" * 500) == "x" * 500 and printable("xxxxx", 4) == "x..." and printable("xxx", 2) == "..."
