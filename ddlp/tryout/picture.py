"""The comparison as a PNG, drawn by matplotlib. Importing this needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddlp.observe.report.words import number
from ddlp.tryout.comparison import Comparison
from ddlp.tryout.terminal import names, parts, place

__all__ = ["draw"]

_COLOURS = {"torch": "#818b98", "host": "#0969da", "engine": "#bc4c00"}


def draw(found: Comparison, path: Path) -> None:
    """Write it. Raises OSError."""
    rows, said = found.rows, names(found)
    figure = Figure(figsize=(12, 2 + 0.6 * len(rows)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{found.images} images, {found.batch_size} a batch; training waits for data", loc="left")
    axes.set_xlabel("images a second that reach training")
    axes.spines[["top", "right"]].set_visible(False)
    for k, row in enumerate(rows):
        left = 0.0
        for part in parts(row):
            axes.barh(k, part.rate, left=left, height=0.6, color=_COLOURS[part.by], label=said[part.by], gid=f"bar {part.by}")
            left += part.rate
        told = f"  {number(row.rate)}: {found.times(row):.1f}x, waited {fmean(row.waited):.0%}"
        axes.text(left, k, told, va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [f"{row.name}\n{place(found, row)}" for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * max(row.rate for row in rows))
    bars = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(bars.values(), bars.keys(), loc="outside lower left", ncols=3, frameon=False)
    figure.savefig(path)
