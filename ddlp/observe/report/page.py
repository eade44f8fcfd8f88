"""The page: one HTML file with everything in it. No script, no request; its own policy forbids both to the browser."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files

from ddlp.observe.analysis import START, TRAINING, WAITING, Analysis, by_size
from ddlp.observe.happened import happened
from ddlp.observe.report import figures, series
from ddlp.observe.report.energy import energy_section
from ddlp.observe.report.run import EpochSummary, RunReport
from ddlp.observe.report.words import Cell, bar, number, percent, seconds, table
from ddlp.observe.run import EpochTrace
from ddlp.process.version import __version__
from ddlp.recording.events import Joined

__all__ = ["document", "page", "tiles"]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_MOST_EVENTS = 100  # in the list; beyond that they are counted


def page(report: RunReport) -> str:
    """The whole file."""
    return document(f"{report.path.name}: ddlp report", "".join(_body(report)))


def document(title: str, body: str) -> str:
    """A page of ours: ``body`` is HTML."""
    css = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{css}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _body(report: RunReport) -> Iterator[str]:
    recorded = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.epochs[0].began.clock))
    where = escape(str(report.path))
    yield f'<header class="top"><span><b>ddlp report</b> {where}</span><span>recorded {recorded}</span></header>'
    for summary, trace in report.detailed:
        yield f'<section class="epoch">{"".join(_epoch(report, summary, trace))}</section>\n'
    if len(report.epochs) > 1:
        yield _epochs(report)
    if report.energy:
        yield energy_section(report.energy, report.energy_from)
    yield (
        f"<footer>Written by ddlp {escape(__version__)}. The figures are those of <code>ddlp analyse</code>; "
        "docs/seeing.md says how each is taken.</footer>"
    )


def _epoch(report: RunReport, summary: EpochSummary, trace: EpochTrace) -> Iterator[str]:
    analysis = summary.analysis
    others = f', of <a href="#epochs">{len(report.epochs)} recorded</a>' if len(report.epochs) > 1 else ""
    size = f"{summary.began.batches} batches" if summary.began.batches else "batches"
    size = escape(f"{size} of {summary.began.batch_size} images")
    which = f"Epoch {escape(str(analysis.epoch))}{others}. Strategy {escape(analysis.strategy)}"
    yield f'<p class="which">{which}, {size}.</p><h1>{escape(headline(analysis))}</h1>'
    yield f'<p class="lead">{escape(_lead(analysis))}</p><p class="verdict">{escape(str(analysis.verdict))}</p>'
    yield _tiles(analysis)
    yield _sides(analysis)
    notes = [*_state(summary, trace), *analysis.notes]
    yield f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""
    yield figures.prongs(trace)
    yield figures.timeline(trace)
    yield figures.decisions(trace)
    no_gpu = "" if series.gpus(trace) else figures.NO_GPU
    yield figures.at_work("work", "At work over time", [(trace, report.profile)], trace.wall_s, no_gpu)
    yield figures.engines(trace, analysis)
    yield figures.rates(trace, analysis)
    yield figures.buffers(trace)
    yield figures.resources(analysis)
    yield _seconds(analysis)
    yield _overlap(analysis)
    yield _happened(trace)
    yield _settings(report, summary)


def headline(analysis: Analysis) -> str:
    """A line that says what limited the epoch."""
    if not analysis.samples:
        return "No batch was delivered in this epoch"
    if analysis.limit == TRAINING:
        return "Training limited this epoch: data were ready when it asked"
    if analysis.limit == START:
        return "The start limited this epoch: it was over before it was under way"
    return f"{analysis.limit[0].upper()}{analysis.limit[1:]} limited this epoch"


def _lead(analysis: Analysis) -> str:
    if not analysis.samples:
        return f"In {seconds(analysis.wall_s)} training got nothing, so nothing limited it."
    return f"What would move it: {analysis.advice}."


def _tiles(analysis: Analysis) -> str:
    wall_s, bound_s = analysis.wall_s, analysis.bound_s
    of = "-" if bound_s is None else percent(min(bound_s, wall_s), wall_s)
    of_bound = "no bound known" if bound_s is None else f"at best {seconds(bound_s)} at these rates"
    rates = analysis.rates
    able = f"{'host and device together' if rates.devices else 'the host alone'} can {number(rates.both_sides)}"
    made = sum(analysis.batches.values())
    return tiles([
        ("images/s", number(analysis.images_per_s), able),
        ("epoch", seconds(wall_s), of_bound),
        ("of the bound", of, "100 %: as fast as these rates allow"),
        ("from the device", percent(analysis.batches["csd"], made), f"{analysis.batches['csd']} of {made} batches"),
        ("training waited", percent(analysis.stages[WAITING], wall_s), f"{seconds(analysis.stages[WAITING])} of the epoch"),
    ])


def tiles(shown: Iterable[tuple[str, str, str]]) -> str:
    """The large figures: name, value, and what belongs to it."""
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>"
        for name, value, more in (map(escape, one) for one in shown)
    )
    return f'<dl class="tiles">{cells}</dl>'


def _sides(analysis: Analysis) -> str:
    cpu, csd = analysis.batches["cpu"], analysis.batches["csd"]
    if not cpu + csd:
        return ""
    strips = "".join(
        f'<i class="key-{side}" style="flex:{count};background:var(--{side})"></i>'
        for side, count in (("host", cpu), ("device", csd)) if count
    )  # fmt: skip
    return (
        f'<div class="sides"><div class="strip" aria-hidden="true">{strips}</div><div class="said">'
        f"<span>host, from the head: {cpu} batches ({percent(cpu, cpu + csd)})</span>"
        f"<span>device, from the tail: {csd} batches ({percent(csd, cpu + csd)})</span></div></div>"
    )


def _state(summary: EpochSummary, trace: EpochTrace) -> Iterator[str]:
    delivered, batches = sum(summary.analysis.batches.values()), summary.began.batches
    if summary.state == "broken off":
        of = f" of {batches}" if batches else ""
        yield f"the epoch was broken off after {delivered}{of} batches, {seconds(trace.wall_s)}"
    there = {event.device for event in trace.of(Joined)}
    for device in summary.began.devices:
        if device not in there:
            yield f"{device} did not join while this epoch ran"


def _seconds(analysis: Analysis) -> str:
    longest = max(analysis.seconds.values(), default=0.0)
    named = [(name, one_s, "waiting" if name.startswith(WAITING) else "training" if name == TRAINING else "")
             for name, one_s in by_size(analysis.seconds)]  # fmt: skip
    named += [(f"of training: {name}", one_s, "training") for name, one_s in analysis.training_parts.items()]
    rows: list[list[Cell]] = [
        [name, seconds(one_s), percent(one_s, analysis.wall_s), bar(one_s, longest, kind)] for name, one_s, kind in named
    ]
    return (
        '<h2>Where each second went</h2><p class="lead">Every second of the epoch once, as training saw it.</p>'
        + table(["", "time", "of the epoch", ""], rows)
    )


def _overlap(analysis: Analysis) -> str:
    names = list(analysis.overlap)
    rows: list[list[Cell]] = [
        [a, *(f"{seconds(analysis.overlap[a][b])} ({percent(analysis.overlap[a][b], analysis.wall_s)})" for b in names)]
        for a in names
    ]
    return (
        '<h2>At work at once</h2><p class="lead">Seconds in which two stages ran side by side, and their part of the epoch; '
        "on the diagonal, those in which a stage ran at all.</p>" + table(["", *names], rows, "matrix")
    )


def _happened(trace: EpochTrace) -> str:
    found = list(happened(trace))
    if not found:
        return "<h2>Events</h2><p>None: no lease was taken back, no device came or went.</p>"
    rows: list[list[Cell]] = [[f"{one.at:.3f} s", one.text] for one in found[:_MOST_EVENTS]]
    counts = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in found).items())
    more = f" The first {_MOST_EVENTS} are shown; <code>ddlp trace</code> has all." if len(found) > _MOST_EVENTS else ""
    return f"<h2>Events</h2><p>{escape(counts)}.{more}</p>{table(['at', 'what'], rows, 'wrapped')}"


def _settings(report: RunReport, summary: EpochSummary) -> str:
    began = summary.began
    rows: list[list[Cell]] = [
        ["file", str(summary.path)],
        ["began", time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(began.clock))],
        ["ddlp", began.ddlp],
        ["epoch", f"{began.epoch}, {summary.state}"],
        ["strategy", began.strategy],
        ["batches", f"{began.batches or 'not known at the start'}, of {began.batch_size} images"],
        ["host workers", "0: the training thread prepares" if began.itself else str(began.workers)],
        ["devices", ", ".join(began.devices) or "none"],
        ["fetchers", str(began.fetchers)],
        ["delivered to", began.target],
        ["process", f"{began.pid}, rank {began.rank}"],
    ]
    if report.profile is not None:
        rows.append(["torch's profile", str(report.profile.path)])
    counts = ", ".join(f"{count} {name}" for name, count in summary.analysis.counts.items() if count)
    rows += [["counted", counts]] if counts else []
    return f"<h2>Settings</h2>{table(['setting', 'value'], rows, 'wrapped')}"


def _epochs(report: RunReport) -> str:
    shown = {one.path for one, _ in report.detailed}
    head = ["epoch", "file", "strategy", "state", "time", "images/s", "host batches", "device batches", "waited"]
    head += ["of the bound", "limit"]
    rows: list[list[Cell]] = []
    for one in report.epochs:
        a = one.analysis
        bound = "-" if a.bound_s is None else percent(min(a.bound_s, a.wall_s), a.wall_s)
        rows.append([
            f"{a.epoch}" + (" (above)" if one.path in shown and len(shown) < len(report.epochs) else ""),
            one.path.name, a.strategy, one.state, seconds(a.wall_s), number(a.images_per_s), str(a.batches["cpu"]),
            str(a.batches["csd"]), percent(a.stages[WAITING], a.wall_s), bound, a.limit if a.samples else "-",
        ])  # fmt: skip
    return f'<section id="epochs"><h2>All {len(rows)} epochs of this run</h2>{table(head, rows)}</section>'
