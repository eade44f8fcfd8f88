"""What matplotlib draws for the pages, and a drawing as an element of a page. Importing this needs matplotlib.

Each function draws series that are computed already and returns the figure. An artist's gid names what it shows.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddlp.observe.report.series import BINS, DEVICE, GPU, HOST, TRAINING, TRANSFER, UNUSED, Curve, Track
from ddlp.observe.spans import Span

__all__ = ["COLOURS", "Level", "curves", "element", "epoch_times", "lanes", "prongs", "stacked", "timeline"]

COLOURS = {
    HOST: "#0969da", DEVICE: "#bc4c00", TRANSFER: "#1a7f6b", GPU: "#1a7f6b", TRAINING: "#6e50b0", UNUSED: "#57606a",
    "held": "#a0622a", "busy": "#44546a", "waiting": "#cf222e", "idle": "#8c959f",
}  # fmt: skip
_LINES = {HOST: "-", DEVICE: "--", TRAINING: "-.", GPU: ":", TRANSFER: "-.", "held": ":"}
_TALL = {"waiting": 0.45, "idle": 0.15}  # of a bar: colours alone do not show what it is
_SINCE = "seconds since the epoch began"
_INK = "#1f2328"


class Level(NamedTuple):
    """A line straight across; ``value`` None: it lies above the picture, and is named alone."""

    name: str
    value: float | None


def element(figure: Figure, label: str) -> str:
    """Return the drawing as an element of a page. ``label`` tells in words what is to be seen."""
    FigureCanvasAgg(figure)
    written = io.BytesIO()
    figure.savefig(written, format="png", metadata={"Software": None})
    encoded = base64.b64encode(written.getvalue()).decode("ascii")
    return f'<div class="scroll" tabindex="0"><img alt="{escape(label)}" src="data:image/png;base64,{encoded}"></div>'


def _axes(height: float, x: str, y: str = "") -> tuple[Figure, Any]:
    """Return a figure so many inches high, and its axes."""
    figure = Figure(figsize=(10, height), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _legend(figure: Figure) -> Figure:
    named = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels()), strict=True))
    if named:
        figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return figure


def prongs(made: Mapping[str, Sequence[tuple[float, int]]], names: Mapping[str, str], wall_s: float, batches: int) -> Figure:
    """Draw a mark for each batch: when it was made, and which one it is. ``made``: (seconds, position) by side."""
    figure, axes = _axes(4.0, _SINCE, "batch of the epoch")
    for side, dots in made.items():
        if dots:
            times, positions = zip(*dots, strict=True)
            style = {"marker": "s" if side == DEVICE else "o", "color": COLOURS[side]}
            axes.scatter(times, positions, s=14, linewidths=0, label=names[side], gid=f"dots {side}", clip_on=False, **style)
    axes.set_xlim(0, max(wall_s, 1e-6))
    axes.set_ylim(0, max(1, batches))
    return _legend(figure)


def timeline(tracks: Sequence[Track], kinds: Mapping[str, str], wall_s: float, moments: Sequence[float]) -> Figure:
    """Draw a lane for each track, with a box for each piece of work, or with the part of the time at work."""
    figure, axes = _axes(1.6 + 0.3 * len(tracks), _SINCE)
    times = [wall_s * k / BINS for k in range(BINS + 1)]
    for row, track in enumerate(tracks):
        below = [row + 0.4] * (BINS + 1)  # the axis points down
        for kind, name in kinds.items():
            style: dict[str, Any] = {"facecolor": COLOURS[kind], "linewidth": 0, "label": name, "gid": f"box {kind}"}
            if kind in track.pieces:
                tall = 0.4 if kind == UNUSED else 0.8
                spans = [(begin, end - begin) for begin, end in track.pieces[kind]]
                axes.broken_barh(spans, (row + 0.4 - tall, tall), **style)
            elif kind in track.shares:
                shares = [*track.shares[kind], track.shares[kind][-1]]
                above = [y - 0.8 * share for y, share in zip(below, shares, strict=True)]
                axes.fill_between(times, below, above, step="post", **style)
                below = above
    for at in moments:
        axes.axvline(at, color=_INK, linestyle="--", linewidth=1, label="a device came or went: see Events", gid="moment")
    _rows(axes, [track.name for track in tracks])
    axes.set_xlim(0, max(wall_s, 1e-6))
    return _legend(figure)


def lanes(found: Mapping[str, Sequence[Span]], wall_s: float) -> Figure:
    """Draw a lane for each name, with a box for each span; neighbours have two colours."""
    figure, axes = _axes(1.2 + 0.3 * len(found), _SINCE)
    for row, spans in enumerate(found.values()):
        boxes = [(begin, end - begin) for begin, end in spans]
        axes.broken_barh(boxes, (row - 0.4, 0.8), facecolor=(COLOURS["held"], COLOURS["idle"]), linewidth=0, gid="box decision")
    _rows(axes, list(found))
    axes.set_xlim(0, max(wall_s, 1e-6))
    return figure


def curves(
    found: Sequence[Curve], styles: Sequence[str], wall_s: float, unit: str, levels: Sequence[Level] = (),
    most: float | None = None,
) -> Figure:  # fmt: skip
    """Draw curves over the epoch, each with the shade from its least to its most, and levels.

    Args:
        found: the curves; their bins cover ``wall_s`` seconds.
        styles: for each a name of `COLOURS`.
        wall_s: seconds.
        unit: of the values.
        levels: to draw across.
        most: the end of the axis; None: what the curves need.
    """
    figure, axes = _axes(3.6, _SINCE, unit)
    for curve, style in zip(found, styles, strict=False):
        times = [(k + 0.5) * wall_s / len(curve.mean) for k in range(len(curve.mean))]
        look = {"color": COLOURS[style], "linestyle": _LINES[style], "linewidth": 1.6}
        axes.plot(times, curve.mean, label=curve.name, gid=f"curve {style}", **look)
        if curve.low != curve.high:
            axes.fill_between(times, curve.low, curve.high, color=COLOURS[style], alpha=0.14, linewidth=0, gid=f"band {style}")
    for number, level in enumerate(levels):
        if level.value is None:
            axes.plot([], [], " ", label=level.name)
        else:
            look = {"linestyle": ((0, (1, 2)), (0, (5, 1, 1, 1)))[number % 2], "linewidth": 1.3}
            axes.axhline(level.value, color=_INK, label=level.name, gid="level", **look)
    axes.set_xlim(0, max(wall_s, 1e-6))
    axes.set_ylim(0, most)
    return _legend(figure)


def stacked(names: Sequence[str], parts: Mapping[str, tuple[str, Sequence[float]]], limit: float, x: str) -> Figure:
    """Draw a bar for each name, whose parts lie one after another.

    Args:
        names: of the bars.
        parts: by a name of `COLOURS`, what the part is, and its length in each bar.
        limit: the axis' end; bars are cut there.
        x: the axis' title.
    """
    figure, axes = _axes(1.2 + 0.3 * len(names), x)
    left = [0.0] * len(names)
    for style, (name, lengths) in parts.items():
        end = [min(limit, at + length) for at, length in zip(left, lengths, strict=True)]
        shown = [b - a for a, b in zip(left, end, strict=True)]
        tall = 0.75 * _TALL.get(style, 1.0)
        for bar in axes.barh(range(len(names)), shown, left=left, height=tall, color=COLOURS[style], label=name):
            bar.set_gid(f"box {style}")
        left = end
    _rows(axes, names)
    axes.set_xlim(0, limit)
    return _legend(figure)


def epoch_times(found: Mapping[str, Sequence[float]]) -> Figure:
    """Draw for each name a mark for each run's seconds, and their mean as a bar."""
    figure, axes = _axes(1.4 + 0.3 * len(found), "seconds an epoch")
    for row, times in enumerate(found.values()):
        axes.barh(row, sum(times) / len(times), height=0.3, color=COLOURS["busy"], label="mean of the runs")
        axes.scatter(times, [row] * len(times), s=22, color=COLOURS[HOST], zorder=3, label="a run", gid="dots host")
    _rows(axes, list(found))
    axes.set_xlim(left=0)
    return _legend(figure)
