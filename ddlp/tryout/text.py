"""The comparison as text: a table, and what it means for the reader's own job; and the page of its recorded epoch."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from statistics import fmean

from ddlp.errors import DDLPError
from ddlp.observe.report import write_report
from ddlp.stats.words import aligned, number
from ddlp.tryout.comparison import Comparison, Row

__all__ = ["place", "sentences", "setting", "text", "write_page"]

_NARROWEST, _WIDEST = 60, 110
_GPU = 1000  # images/s: a round figure to reckon with


def place(comparison: Comparison, row: Row) -> str:
    """Where a row's images are prepared."""
    cores = comparison.cores
    host = f"core {cores.host}"
    both = host if len(cores.both) == 1 else f"cores {cores.host}+{cores.engine}"
    if row.name == "dataloader":
        workers = "1 worker" if row.workers == 1 else f"{row.workers} workers"
        return f"{host if row.cores == 1 else both}, {workers}"
    if row.name == "cpu":
        return host
    if row.name == "csd":
        return comparison.csd or f"core {cores.engine}"
    return both if comparison.csd is None else f"{host} and {comparison.csd}"


def setting(comparison: Comparison) -> str:
    """What was compared, in two sentences."""
    engine = "" if comparison.rate_engine is None else f" and {number(comparison.rate_engine)}"
    sides = "the host needs" if comparison.rate_engine is None else "host and engine together need"
    rounds = len(comparison.rows[0].rates)
    times = f"{rounds} times in turn, medians" if rounds > 1 else "once"
    return (
        f"The same {comparison.images} images for each, {comparison.batch_size} a batch, {times}. Training is a stand-in: a "
        f"step sleeps {1e3 * comparison.step_s:.2g} ms, half as long as {sides} for a batch ({number(comparison.rate_host)}"
        f"{engine} images/s were measured), so training waits for data under every loader."
    )


def text(comparison: Comparison) -> str:
    """The whole comparison, as wide as the terminal."""
    width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))

    def wrapped(text: str, first: str = "") -> str:
        rest = " " * len(first)
        return textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )

    rows = [["", "", "images/s", "gain", "least to most", "waited", "engine"]]
    for row in comparison.rows:
        gains = comparison.gains(row)
        spread = f"{min(gains):.1f} to {max(gains):.1f}" if len(gains) > 1 else "-"
        rows.append([
            row.name, place(comparison, row), number(row.rate), f"{comparison.times(row):.1f}x", spread,
            f"{fmean(row.waited):.0%}", f"{fmean(row.by_engine):.0%}",
        ])  # fmt: skip
    lines = [wrapped(setting(comparison)), "", *aligned(rows, left=(0, 1)), ""]
    lines += [wrapped("A gain is the median of the rounds', each beside the first row's of the same round.", "- ")]
    lines += [wrapped(note, "- ") for note in comparison.notes]
    lines += ["", "What this means for your own job"]
    lines += [wrapped(sentence, f"{k}. ") for k, sentence in enumerate(sentences(comparison), 1)]
    return "\n".join(lines)


def write_page(comparison: Comparison, directory: Path) -> str:
    """Write the page of `ddlp report` of the recorded epoch, if there is one. Returns the line for the user."""
    if comparison.recorded is None:
        return "no page: no engine took part"
    try:
        return f"page:  {write_report(comparison.recorded, directory).absolute().as_uri()}  (an epoch under wrr)"
    except DDLPError as error:  # matplotlib is missing, or the disk is full
        return f"no page: {error}"


def sentences(comparison: Comparison) -> list[str]:
    """Three sentences: on the swap, on a second computer, and on whether it pays at all."""
    return [_swap(comparison), _second(comparison), _whether(comparison)]


def _swap(comparison: Comparison) -> str:
    ours = comparison.row("cpu")
    assert ours is not None
    torch, times = comparison.rows[0].rate, comparison.times(ours)
    rates = f"{number(torch)} images/s with DataLoader and {number(ours.rate)} with DDLPLoader"
    if times < 1.05:
        return f"The swap alone brings nothing here: one core prepares {rates}; `explain()` of such a loader may tell why."
    return (
        f"The swap alone: one core of this machine prepares {rates}, {times:.1f} times as many, with the same bits; a GPU "
        f"that trains on {number(_GPU)} images/s needs {_cores(torch)} such cores with the one, {_cores(ours.rate)} with "
        "the other."
    )


def _cores(rate: float) -> str:
    """How many of this rate such a GPU needs."""
    needed = _GPU / rate
    return f"{needed:.1f}" if needed < 10 else number(round(needed))


def _second(comparison: Comparison) -> str:
    wrr, csd = comparison.row("wrr"), comparison.row("csd")
    if wrr is None or csd is None:
        return (
            f"A second computer beside the storage would add its speed to the host's {number(comparison.rate_host)} images/s; "
            "no engine took part here, for the reason above."
        )
    if comparison.csd is None and len(comparison.cores.both) == 1:
        return (
            "A second computer beside the storage adds its own speed, which can't be seen here: this process may use one core "
            "only, so host and engine share it, and csd, mte and wrr can be no faster than cpu."
        )
    of_both = f"{comparison.of_both(wrr):.0%} of the sum of cpu and csd"
    if comparison.csd is not None:
        return (
            f"A second computer adds its own speed: {comparison.csd} prepares {number(csd.rate)} images/s, and under wrr "
            f"training gets {number(wrr.rate)}, {of_both}."
        )
    return (
        f"A second computer beside the storage adds its own speed: core {comparison.cores.engine} stood in for one that "
        f"prepares {number(csd.rate)} images/s, and under wrr training got {number(wrr.rate)}, {of_both}; one a tenth as fast "
        "adds a tenth of that, and without one that core serves better as DDLPLoader's second worker."
    )


def _whether(comparison: Comparison) -> str:
    return (
        f"Your own job waits for data if it trains on about {number(comparison.rows[0].rate)} images/s for each core that its "
        "DataLoader workers have (a core like this one); if it trains on fewer, the training step is its limit, and none of "
        "this makes it faster."
    )
