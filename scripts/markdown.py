"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["markdown_table"]


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown: its columns' names, and its cells by lines."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))
