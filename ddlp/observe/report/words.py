"""Figures as words, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Cell", "Markup", "bar", "number", "percent", "seconds", "table"]


class Markup(NamedTuple):
    """HTML that goes into a cell as it is."""

    html: str


Cell = str | Markup
_FIGURES = ("", *"-<0123456789")


def number(value: float | None) -> str:
    """Three digits or all before the point; a dash where nothing is known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration."""
    if 0 < value < 0.0995:
        return f"{1e3 * value:.2g} ms" if value >= 1e-4 else "< 0.1 ms"
    return f"{value:,.0f} s" if value >= 100 or value == 0 else f"{value:.2f} s"


def percent(part: float, whole: float) -> str:
    """A part of a whole; a dash of nothing."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else "-"


def bar(value: float | None, whole: float, kind: str = "") -> Markup:
    """A bar in a cell, in the colour of its kind; what it shows stands in figures beside it."""
    part = 0.0 if not value or whole <= 0 else max(0.0, min(1.0, value / whole))
    return Markup(f'<span class="bar {kind}" style="width:{100 * part:.1f}%"></span>' if part else "")


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], kind: str = "") -> str:
    """A table whose first column names the rows; it scrolls in its own box where the page is narrow."""
    rows = list(rows)
    below = rows[0] if rows else head
    columns = zip(head, below, strict=True)
    top = "".join(f'<th scope="col"{_style(cell)}>{escape(text)}</th>' if text else "<td></td>" for text, cell in columns)
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td{_style(cell)}>{_html(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{_html(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _html(cell: Cell) -> str:
    return cell.html if isinstance(cell, Markup) else escape(cell)


def _style(cell: Cell) -> str:
    """Figures stand to the right, words to the left."""
    if isinstance(cell, Markup):
        return ' class="drawn"'
    return "" if cell[:1] in _FIGURES else ' class="text"'
