"""The comparison as a PNG, drawn by Pillow: matplotlib need not be there."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from ddlp.observe.report.words import number
from ddlp.tryout.comparison import Comparison
from ddlp.tryout.terminal import names, parts, place

__all__ = ["draw"]

_COLOURS = {"torch": "#818b98", "host": "#0969da", "engine": "#bc4c00"}
_INK, _SOFT, _PAPER = "#1f2328", "#57606a", "#ffffff"
_WIDTH, _ROW, _EDGE = 1600, 84, 48
_TOP, _BELOW = 170, 120


def draw(found: Comparison, path: Path) -> None:
    """Write it. Raises OSError."""
    rows = found.rows
    image = Image.new("RGB", (_WIDTH, _TOP + _ROW * len(rows) + _BELOW), _PAPER)
    canvas = ImageDraw.Draw(image)
    title, plain, small = _font(38), _font(28), _font(23)
    canvas.text((_EDGE, 36), "Images a second that reach training", _INK, title)
    canvas.text((_EDGE, 96), f"{found.images} images, {found.batch_size} a batch; training waits for data", _SOFT, small)
    left = 2 * _EDGE + max(canvas.textlength(place(found, row), small) for row in rows)
    room, most = _WIDTH - left - _EDGE - 220, max(row.rate for row in rows)  # what the figures beside the bars need
    for k, row in enumerate(rows):
        y = _TOP + _ROW * k
        canvas.text((_EDGE, y), row.name, _INK, plain)
        canvas.text((_EDGE, y + 35), place(found, row), _SOFT, small)
        x = left
        for part in parts(row):
            end = x + part.rate / most * room
            if round(end) > round(x):  # less than a pixel otherwise
                canvas.rectangle((round(x), y + 4, round(end) - 1, y + 54), _COLOURS[part.by])
            x = end
        canvas.text((x + 14, y + 4), number(row.rate), _INK, plain)
        canvas.text((x + 14, y + 35), f"{found.times(row):.1f}x, waited {fmean(row.waited):.0%}", _SOFT, small)
    said, x, y = names(found), float(_EDGE), _TOP + _ROW * len(rows) + 40
    for by in dict.fromkeys(part.by for row in rows for part in parts(row)):
        canvas.rectangle((round(x), y + 2, round(x) + 22, y + 24), _COLOURS[by])
        canvas.text((x + 34, y - 2), said[by], _SOFT, small)
        x += 34 + canvas.textlength(said[by], small) + 40
    image.save(path)


def _font(size: int) -> Any:
    """Pillow's own; before 10.1 it has one size only, a small one."""
    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()
