"""Texts of a peer, made fit for a log or a terminal."""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: str, longest: int = 500) -> str:
    r"""Return a text without control characters, and cut to `longest` characters.

    What a terminal would obey, or what would end the line, is written as an escape: \n, \x1b, \u202e. That includes the
    marks that turn the direction of writing, and halves of surrogate pairs. A text that holds none of them stays as it is.
    """
    cut = text if len(text) <= longest else text[: max(0, longest - 3)] + "..."
    if cut.isprintable():
        return cut
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in cut)


def printable_lines(text: str) -> str:
    """Return a text of several lines with each of them `printable`, and none cut. Tabulators become blanks."""
    return "\n".join(printable(line, len(line)) for line in text.expandtabs().split("\n"))
