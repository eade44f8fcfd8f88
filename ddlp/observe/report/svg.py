"""Drawing: marks as SVG that stretches to the width there is, words beside it as HTML that does not.

A plot's area is WIDTH units wide and as many pixels high as it says. Its SVG is stretched to the page's width, so strokes do
not scale and no text is in it: labels and ticks are elements of the page, placed by percent, and keep their size on a phone.

Why not matplotlib, which makes the PNG plots (`ddlp.observe.report.png`): the page needs no extra as it is, and a browser can
style it. Marks have CSS classes here, so the page is light or dark as the reader's system is. matplotlib writes colours into
each mark, one width and one size of text into the file, and each box of a time line as an element of its own: 161 kB for 1000
boxes that are one path here, and 19 kB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ddlp.observe.spans import Span

__all__ = ["WIDTH", "Axis", "Tick", "area", "band", "boxes", "dots", "level", "line", "plot", "time_axis", "upright", "upwards"]

WIDTH = 1000.0


@dataclass(frozen=True)
class Tick:
    """``at``: from 0 (left, bottom) to 1."""

    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """From 0 to ``limit`` in ``unit``s."""

    title: str
    limit: float
    ticks: tuple[Tick, ...]


def upwards(title: str, most: float) -> Axis:
    """An axis for values up to ``most``, with round ticks; it ends at the last one."""
    step = _round_step(most, 4)
    count = max(1, math.ceil(most / step - 1e-9))
    return Axis(title, count * step, tuple(Tick(k / count, _text(k * step)) for k in range(count + 1)))


def time_axis(wall_s: float) -> Axis:
    """Seconds since the epoch's beginning; a tick never stands so close to the end that its text would leave the plot."""
    wall_s = max(wall_s, 1e-6)
    step = _round_step(wall_s, 6)
    times = [k * step for k in range(math.floor(wall_s / step + 1e-9) + 1)]
    ticks = tuple(Tick(at / wall_s, _text(at)) for at in times if at <= 0.98 * wall_s)
    return Axis("seconds since the epoch began", wall_s, ticks)


def _round_step(most: float, about: int) -> float:
    """1, 2 or 5 times a power of ten, such that about so many fit in."""
    if most <= 0:
        return 1.0
    rough = most / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _text(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.3g}"


def n(value: float) -> str:
    """A coordinate. Raises ValueError for what is no number: a browser would silently draw nothing."""
    if not math.isfinite(value):
        raise ValueError(f"a plot has a coordinate that is {value}")
    return f"{value:.1f}".removesuffix(".0")


# -- marks: path data and elements -----------------------------------------------------------------------------------


def _path(data: str, style: str) -> str:
    return f'<path class="{style}" d="{data}"/>' if data else ""


def boxes(spans: Iterable[Span], limit: float, top: float, height: float, style: str) -> str:
    """A box for each span of an axis that ends at ``limit``."""
    scale, data = WIDTH / limit, []
    for begin, end in spans:
        wide = max(0.2, (end - begin) * scale)
        data.append(f"M{n(begin * scale)} {n(top)}h{n(wide)}v{n(height)}h{n(-wide)}z")
    return _path("".join(data), style)


def area(shares: Sequence[float], below: Sequence[float], top: float, height: float, style: str) -> str:
    """Shares from 0 to 1 of equal bins, as a filled shape that stands on ``below`` in a lane."""
    if not any(shares):
        return ""
    width, floor = WIDTH / len(shares), top + height
    upper = [n(floor - height * min(1.0, base + share)) for base, share in zip(below, shares, strict=True)]
    lower = [n(floor - height * min(1.0, base)) for base in below]
    up = "".join(f"V{y}H{n((k + 1) * width)}" for k, y in enumerate(upper))
    down = "".join(f"V{lower[k]}H{n(k * width)}" for k in reversed(range(len(lower))))
    return _path(f"M0 {lower[0]}{up}{down}z", style)


def line(values: Sequence[float], limit: float, height: float, style: str) -> str:
    """A curve through the middles of equal bins; ``limit`` is the axis'."""
    points = _points(values, limit, height)
    return _path("M" + "L".join(points), style) if points else ""


def band(low: Sequence[float], high: Sequence[float], limit: float, height: float, style: str) -> str:
    """What lies between two curves; nothing where they are one."""
    if list(low) == list(high):
        return ""
    there, back = _points(high, limit, height), _points(low, limit, height)
    return _path("M" + "L".join([*there, *reversed(back)]) + "z", style)


def _points(values: Sequence[float], limit: float, height: float) -> list[str]:
    width = WIDTH / max(1, len(values))
    return [f"{n((k + 0.5) * width)} {n(height * (1 - value / limit))}" for k, value in enumerate(values)]


def level(value: float, limit: float, height: float, style: str) -> str:
    """A line straight across."""
    return _path(f"M0 {n(height * (1 - value / limit))}H{n(WIDTH)}", style)


def upright(at: float, limit: float, height: float, style: str) -> str:
    """A line from bottom to top."""
    return _path(f"M{n(at / limit * WIDTH)} 0V{n(height)}", style)


def dots(points: Iterable[tuple[float, float]], x_limit: float, y_limit: float, height: float, style: str) -> str:
    """A point each: a line of no length, whose cap does not stretch."""
    found = (f"M{n(x / x_limit * WIDTH)} {n(height * (1 - y / y_limit))}h0" for x, y in points)
    return _path("".join(found), style)


# -- a plot ----------------------------------------------------------------------------------------------------------


def plot(
    marks: Iterable[str], *, height: float, x: Axis, y: Axis | None = None, rows: Sequence[str] = (), label: str
) -> str:
    """The marks with their axes: a ``y`` axis, or a name for each of the equally high ``rows``.

    ``label`` tells in words what is to be seen.
    """
    grid = "".join(f"M{n(tick.at * WIDTH)} 0V{n(height)}" for tick in x.ticks)
    if y is not None:
        grid += "".join(f"M0 {n(height * (1 - tick.at))}H{n(WIDTH)}" for tick in y.ticks)
    svg = (
        f'<svg viewBox="0 0 {n(WIDTH)} {n(height)}" height="{n(height)}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{_path(grid, "grid")}<g class="marks">{"".join(marks)}</g></svg>'
    )
    if y is not None:
        left = "".join(f'<span style="bottom:{100 * tick.at:.2f}%">{tick.text}</span>' for tick in y.ticks)
        left = f'<div class="ys" aria-hidden="true">{left}</div>'
        over = f'<div class="axis over">{escape(y.title)}</div>'
    else:
        left = "".join(f'<span title="{escape(name)}">{escape(name)}</span>' for name in rows)
        left, over = f'<div class="rows">{left}</div>', ""
    below = "".join(f'<span style="left:{100 * tick.at:.2f}%">{tick.text}</span>' for tick in x.ticks)
    return (
        f'{over}<div class="plot{" lanes" if rows else ""}">{left}<div class="area">{svg}</div>'
        f'<div class="xs" aria-hidden="true">{below}</div><div class="axis">{escape(x.title)}</div></div>'
    )
