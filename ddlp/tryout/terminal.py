"""The comparison in the terminal: bars, and what they mean for the reader's own job."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections import Counter
from statistics import fmean
from typing import NamedTuple, TextIO

from ddlp.observe.report.words import number
from ddlp.tryout.comparison import Comparison, Row

__all__ = ["names", "parts", "place", "sentences", "setting", "text"]

_NARROWEST, _WIDEST = 60, 110
_GPU = 1000  # images/s: a round figure to reckon with


class Part(NamedTuple):
    """A piece of a row's bar: who prepared it (torch, host, engine), and images a second."""

    by: str
    rate: float


_SOLID = dict.fromkeys(("torch", "host", "engine"), "█")  # where colours tell them apart
_MARKS = {"torch": "░", "host": "█", "engine": "▒"}
_ASCII = {"torch": "-", "host": "#", "engine": "="}
_COLOURS = {"torch": "90", "host": "94", "engine": "33"}  # of a terminal


def parts(row: Row) -> list[Part]:
    """A row's bar."""
    if row.name == "dataloader":
        return [Part("torch", row.rate)]
    by_engine = row.rate * fmean(row.by_engine)  # the mean first: a row all of whose batches came from the engine has one part
    return [part for part in (Part("host", row.rate - by_engine), Part("engine", by_engine)) if part.rate > 0]


def place(found: Comparison, row: Row) -> str:
    """Where a row's images are prepared."""
    cores = found.cores
    host = f"core {cores.host}"
    both = host if len(cores.both) == 1 else f"cores {cores.host}+{cores.engine}"
    if row.name == "dataloader":
        workers = "1 worker" if row.workers == 1 else f"{row.workers} workers"
        return f"{host if row.cores == 1 else both}, {workers}"
    if row.name == "cpu":
        return host
    if row.name == "csd":
        return found.csd or f"core {cores.engine}"
    return both if found.csd is None else f"{host} and {found.csd}"


def names(found: Comparison) -> dict[str, str]:
    """The names of the parts of the bars."""
    engine = found.csd or f"ddlp's engine on core {found.cores.engine}"
    return {"torch": "torch's DataLoader", "host": f"ddlp on core {found.cores.host}", "engine": engine}


def setting(found: Comparison) -> str:
    """What was compared, in two sentences."""
    engine = "" if found.rate_engine is None else f" and {number(found.rate_engine)}"
    sides = "the host needs" if found.rate_engine is None else "host and engine together need"
    rounds = len(found.rows[0].rates)
    times = f"{rounds} times in turn, medians" if rounds > 1 else "once"
    return (
        f"The same {found.images} images for each, {found.batch_size} a batch, {times}. Training is a stand-in: a step sleeps "
        f"{1e3 * found.step_s:.2g} ms, half as long as {sides} for a batch ({number(found.rate_host)}{engine} images/s were "
        f"measured), so training waits for data under every loader."
    )


def checked(found: Comparison) -> str:
    """On which cores the processes of each row ran: `ddlp.process.cores` has checked it in each turn."""
    rows = []
    for row in found.rows:
        by_cpus = Counter(process.cpus for process in row.used)
        processes = " and ".join(
            f"{count} {'process' if count == 1 else 'processes'} on {'+'.join(map(str, cpus))}"
            for cpus, count in sorted(by_cpus.items())
        )
        rows.append(f"{row.name} {processes or 'too short to tell'}")
    engine = f" (the engine has core {found.cores.engine})" if found.csd is None and found.rate_engine is not None else ""
    return f"Checked in each turn, on which cores processes ran{engine}: {'; '.join(rows)}."


def spread(found: Comparison) -> str:
    """How far the rounds' gains lie apart: the median of ratios is not the ratio of the medians beside it."""
    rows = [f"{row.name} {min(gains):.1f} to {max(gains):.1f}" for row in found.rows[1:] if (gains := found.gains(row))]
    return f"A gain is the median of the rounds', each beside the first row's of the same round: {'; '.join(rows)}."


def text(found: Comparison, stream: TextIO) -> str:
    """The whole comparison as it fits that stream: its width, its characters, colours on a terminal."""
    width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))
    colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    marks = _ASCII if not _can_say(stream, "".join(_MARKS.values())) else _SOLID if colours else _MARKS

    def paint(text: str, by: str) -> str:
        return f"\x1b[{_COLOURS[by]}m{text}\x1b[0m" if colours else text

    def bold(text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if colours else text

    def wrapped(text: str, first: str = "", rest: str | None = None) -> str:
        return textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=first if rest is None else rest,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip

    where = [place(found, row) for row in found.rows]
    wide = max(map(len, where))
    head = f"{'':10}  {'':{wide}}  {'images/s':>8}  {'gain':>5}  {'waited':>6}  "
    room, most = width - len(head), max(row.rate for row in found.rows)
    lines = [wrapped(setting(found)), "", head.rstrip()]
    for row, at in zip(found.rows, where, strict=True):
        drawn, until = "", 0.0
        for part in parts(row):
            begin, until = until, until + part.rate
            length = max(1, round(until / most * room) - round(begin / most * room))
            drawn += paint(marks[part.by] * length, part.by)
        waited = fmean(row.waited)
        figures = f"{number(row.rate):>8}  {f'{found.times(row):.1f}x':>5}  {waited:6.0%}"
        lines.append(f"{row.name:10}  {at:{wide}}  {bold(figures)}  {drawn}")
    used = {part.by for row in found.rows for part in parts(row)}
    legend = "   ".join(f"{paint(marks[by], by)} {name}" for by, name in names(found).items() if by in used)
    notes = [*found.notes, *([spread(found)] if len(found.rows[0].rates) > 1 else []), checked(found)]
    lines += ["", legend, *(wrapped(f"- {note}", rest="  ") for note in notes)]
    lines += ["", bold("What this means for your own job")]
    lines += [wrapped(sentence, f"{k}. ", "   ") for k, sentence in enumerate(sentences(found), 1)]
    return "\n".join(lines)


def _can_say(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sentences(found: Comparison) -> list[str]:
    """Three sentences: on the swap, on a second computer, and on whether it pays at all."""
    return [_swap(found), _second(found), _whether(found)]


def _swap(found: Comparison) -> str:
    ours = found.row("cpu")
    assert ours is not None
    torch, times = found.rows[0].rate, found.times(ours)
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


def _second(found: Comparison) -> str:
    wrr, csd = found.row("wrr"), found.row("csd")
    if wrr is None or csd is None:
        return (
            f"A second computer beside the storage would add its speed to the host's {number(found.rate_host)} images/s; no "
            "engine took part here, for the reason above."
        )
    if found.csd is None and len(found.cores.both) == 1:
        return (
            "A second computer beside the storage adds its own speed, which can't be seen here: this process may use one core "
            "only, so host and engine share it, and csd, mte and wrr can be no faster than cpu."
        )
    of_both = f"{found.of_both(wrr):.0%} of the sum of cpu and csd"
    if found.csd is not None:
        return (
            f"A second computer adds its own speed: {found.csd} prepares {number(csd.rate)} images/s, and under wrr "
            f"training gets {number(wrr.rate)}, {of_both}."
        )
    return (
        f"A second computer beside the storage adds its own speed: core {found.cores.engine} stood in for one that prepares "
        f"{number(csd.rate)} images/s, and under wrr training got {number(wrr.rate)}, {of_both}; one a tenth as fast "
        "adds a tenth of that, and without one that core serves better as DDLPLoader's second worker."
    )


def _whether(found: Comparison) -> str:
    return (
        f"Your own job waits for data if it trains on about {number(found.rows[0].rate)} images/s for each core that its "
        "DataLoader workers have (a core like this one); if it trains on fewer, the training step is its limit, and none of "
        "this makes it faster."
    )
