"""The plots as PNG, by matplotlib: of the same series as the page's. Importing this needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddlp.observe.analysis import Analysis
from ddlp.observe.report import series
from ddlp.observe.report.figures import FAR, KINDS, QUOTA_FAR
from ddlp.observe.report.run import EpochSummary
from ddlp.observe.report.series import BINS, DEVICE, HOST, TRAINING, TRANSFER, UNUSED, Curve
from ddlp.observe.report.words import number
from ddlp.observe.run import EpochTrace

__all__ = ["write_plots"]

_COLOURS = {HOST: "#0969da", DEVICE: "#bc4c00", TRANSFER: "#1a7f6b", TRAINING: "#6e50b0", UNUSED: "#57606a"}
_BUFFERS = (("#0969da", "-"), ("#bc4c00", "--"), ("#1a7f6b", "-."), ("#a0622a", ":"))
_RATES = {"host makes": ("#0969da", "-"), "device makes": ("#bc4c00", "--"), "training gets": ("#6e50b0", "-.")}
_SINCE = "seconds since the epoch began"


def write_plots(epochs: Sequence[tuple[EpochSummary, EpochTrace]], page: Path) -> list[Path]:
    """Write the plots beside the page: PAGE-timeline.png and so on. With several epochs, each name has the epoch's file."""
    written = []
    for summary, trace in epochs:
        stem = page.stem if len(epochs) == 1 else f"{page.stem}-{summary.path.stem}"
        title = f"epoch {trace.began.epoch}, {trace.began.strategy}"
        for name, figure in (
            ("timeline", _timeline(trace, title)),
            ("rates", _rates(trace, summary.analysis, title)),
            ("spool", _buffers(trace, title)),
            ("resources", _resources(summary.analysis, title)),
        ):
            path = page.with_name(f"{stem}-{name}.png")
            FigureCanvasAgg(figure)
            figure.savefig(path)
            written.append(path)
    return written


def _axes(title: str, height: float, x: str, y: str = "") -> tuple[Figure, Any]:
    figure = Figure(figsize=(10, height), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=3, frameon=False, fontsize=9)


def _timeline(trace: EpochTrace, title: str) -> Figure:
    found = series.tracks(trace)
    figure, axes = _axes(f"Who was at work when: {title}", 1.8 + 0.34 * len(found), _SINCE)
    named: set[str] = set()
    times = [trace.wall_s * k / BINS for k in range(BINS + 1)]
    for row, track in enumerate(found):
        below = [row + 0.4] * BINS  # the axis points down
        for kind, text in KINDS.items():
            style: dict[str, Any] = {"facecolor": _COLOURS[kind], "edgecolor": "white", "linewidth": 0.3}
            if kind not in named and (kind in track.pieces or kind in track.shares):
                named.add(kind)
                style["label"] = text
            if kind in track.pieces:
                part = 0.4 if kind == UNUSED else 0.8
                spans = [(begin, end - begin) for begin, end in track.pieces[kind]]
                axes.broken_barh(spans, (row + 0.4 - part, part), **style)
            elif kind in track.shares:
                above = [y - 0.8 * share for y, share in zip(below, track.shares[kind], strict=True)]
                axes.fill_between(times[:-1], below, above, step="post", **style)
                below = above
    axes.set_yticks(range(len(found)), [track.name for track in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(0, max(trace.wall_s, 1e-6))
    _legend(axes)
    return figure


def _rates(trace: EpochTrace, analysis: Analysis, title: str) -> Figure:
    figure, axes = _axes(f"Rates against their bounds: {title}", 4.2, _SINCE, "images/s")
    curves = series.rates_over_time(trace)
    _draw(axes, curves, [_RATES[curve.name] for curve in curves], trace.wall_s)
    top = axes.get_ylim()[1]
    for rate, name, style in (
        (analysis.rates.both_sides, "both sides together", (0, (1, 2))),
        (analysis.rates.training, "training alone", (0, (5, 1, 1, 1))),
    ):
        if rate and rate <= FAR * top:
            axes.axhline(rate, color="#1f2328", linestyle=style, linewidth=1.2, label=f"bound: {name}, {number(rate)}")
        elif rate:
            axes.plot([], [], " ", label=f"bound, above this plot: {name}, {number(rate)}")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _buffers(trace: EpochTrace, title: str) -> Figure:
    figure, axes = _axes(f"Ready batches and spool: {title}", 4.2, _SINCE, "batches")
    _draw(axes, series.buffers(trace), _BUFFERS, trace.wall_s)
    quota = sum(device.quota for device in series.device_times(trace))
    if 0 < quota <= QUOTA_FAR * axes.get_ylim()[1]:
        axes.axhline(quota, color="#1f2328", linestyle=(0, (1, 2)), linewidth=1.2, label=f"the spool's quota, {quota}")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _draw(axes: Any, curves: Sequence[Curve], styles: Sequence[tuple[str, str]], wall_s: float) -> None:
    for curve, (colour, style) in zip(curves, styles, strict=False):
        times = [(k + 0.5) * wall_s / len(curve.mean) for k in range(len(curve.mean))]
        axes.plot(times, curve.mean, color=colour, linestyle=style, linewidth=1.6, label=curve.name)
        axes.fill_between(times, curve.low, curve.high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xlim(0, max(wall_s, 1e-6))


def _resources(analysis: Analysis, title: str) -> Figure:
    figure, axes = _axes(f"Busy, waiting, idle: {title}", 1.8 + 0.4 * len(analysis.resources), "% of its time")
    left = [0.0] * len(analysis.resources)
    for name, colour, tall in (("busy", "#44546a", 0.75), ("waiting", "#cf222e", 0.4), ("idle", "#8c959f", 0.12)):
        parts = [100 * getattr(one, f"{name}_s") / max(one.wall_s, 1e-9) for one in analysis.resources]
        axes.barh(range(len(parts)), parts, left=left, height=tall, color=colour, label=name)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    names = [f"{one.name} x {one.lanes}" if one.lanes > 1 else one.name for one in analysis.resources]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    _legend(axes)
    return figure
