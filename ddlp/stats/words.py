"""Figures as words, and tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned", "number", "percent", "seconds", "step_time"]


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


def step_time(value: float) -> str:
    """The seconds of a batch or a step: three digits, as milliseconds below one second."""
    return f"{number(value)} s" if value >= 1 else f"{number(1e3 * value)} ms"


def percent(part: float, whole: float = 1.0) -> str:
    """A part of a whole; a dash of nothing."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else "-"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Lines with columns of equal width: those of ``left`` to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(cell.ljust(width) if n in left else cell.rjust(width) for n, (cell, width) in enumerate(cells)))
    return [line.rstrip() for line in lines]
