"""The page of several runs: strategies side by side, each with the spread over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape

from ddlp.observe.analysis import TRAINING, TRANSFER, WAITING, Analysis
from ddlp.observe.energy.compare import summaries
from ddlp.observe.report import pictures, series
from ddlp.observe.report.comparison import Comparison, Group
from ddlp.observe.report.figures import NO_GPU, at_work, figure
from ddlp.observe.report.page import document, tiles
from ddlp.observe.report.series import DEVICE, HOST
from ddlp.observe.report.words import Cell, number, percent, seconds, table
from ddlp.process.version import __version__

__all__ = ["comparison_page"]


def comparison_page(comparison: Comparison) -> str:
    """The whole file."""
    return document("ddlp report: runs side by side", "".join(_body(comparison)))


def _wall_s(analysis: Analysis) -> float:
    return analysis.wall_s


def _rate(analysis: Analysis) -> float:
    return analysis.images_per_s


def _made(side: str) -> Callable[[Analysis], float]:
    return lambda analysis: analysis.batches[side]


def _spent(on: str) -> Callable[[Analysis], float]:
    return lambda analysis: analysis.seconds.get(on, 0.0)


def _device_rate(name: str) -> Callable[[Analysis], float | None]:
    return lambda analysis: analysis.rates.devices.get(name)


def _body(comparison: Comparison) -> Iterator[str]:
    runs = len(comparison.runs)
    yield f'<header class="top"><span><b>ddlp report</b> {runs} runs side by side</span></header>'
    yield f"<h1>{escape(headline(comparison))}</h1>"
    yield (
        '<p class="lead">Each figure is the mean of the runs of a strategy, and each run the mean of its epochs. A difference '
        "that is smaller than the spread of the runs means nothing.</p>"
    )
    yield tiles(_tiles(comparison))
    if comparison.left_out:
        yield f'<ul class="notes">{"".join(f"<li>left out: {escape(one)}</li>" for one in comparison.left_out)}</ul>'
    yield _times(comparison)
    yield _shares(comparison)
    yield _seconds(comparison)
    yield _side_by_side(comparison)
    yield '<h2>At work over time</h2><p class="lead">Of each run\'s last epoch, which is over where a line stays at 0.'
    yield f"{escape(_gpus_unknown(comparison))}</p>"
    until_s = max(run.trace.wall_s for run in comparison.runs)  # one axis for all strategies
    for number_, group in enumerate(comparison.groups):
        yield at_work(f"work-{number_}", group.label, [(run.trace, run.profile) for run in group.runs], until_s)
    yield _energy(comparison)
    yield _runs(comparison)
    yield (
        f"<footer>Written by ddlp {escape(__version__)}. The figures are those of <code>ddlp analyse</code>; "
        "docs/seeing.md says how each is taken.</footer>"
    )


def headline(comparison: Comparison) -> str:
    """A line that says which strategy was the fastest, and whether the runs' spread allows to say so."""
    best, base = max(comparison.groups, key=lambda group: group.mean(_rate)), comparison.baseline
    if len(comparison.groups) == 1:
        return f"{best.label}: {seconds(best.mean(_wall_s))} an epoch in {len(best.runs)} runs"
    if best is base:
        return f"{best.label} was the fastest, and nothing else paid"
    told = f"{best.label} was the fastest: {best.mean(_rate) / base.mean(_rate):.2f} times {base.label}"
    overlap = min(best.values(_rate)) <= max(base.values(_rate))
    return f"{told}, but their runs overlap" if overlap else told


def _tiles(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    for group in comparison.groups:
        times = group.values(_wall_s)
        yield group.label, seconds(group.mean(_wall_s)), f"an epoch, {_spread(times)}; {number(group.mean(_rate))} images/s"


def _spread(times: Sequence[float]) -> str:
    """Standard deviation and extremes of the runs' seconds."""
    if len(times) == 1:
        return "of one run"
    return f"± {seconds(statistics.stdev(times))}: {len(times)} runs, {seconds(min(times))} to {seconds(max(times))}"


def _times(comparison: Comparison) -> str:
    groups, base = comparison.groups, comparison.baseline
    rows: list[list[Cell]] = []
    for group in groups:
        times, rates = group.values(_wall_s), group.mean(_rate)
        deviation = seconds(statistics.stdev(times)) if len(times) > 1 else "-"
        bound = [
            min(a.bound_s, a.wall_s) / a.wall_s for run in group.runs for a in (one.analysis for one in run.epochs) if a.bound_s
        ]
        rows.append([
            group.label, str(len(times)), seconds(statistics.fmean(times)), deviation,
            f"{seconds(min(times))} to {seconds(max(times))}", number(rates), f"{rates / base.mean(_rate):.2f}",
            percent(statistics.fmean(bound), 1.0) if bound else "-",
        ])  # fmt: skip
    head = ["", "runs", "epoch", "deviation", "least to most", "images/s", f"times {base.label}", "of the bound"]
    label = "Seconds an epoch: " + ", ".join(f"{row[0]} {row[2]}" for row in rows) + "."
    says = "A mark for each run, and their mean as a bar."
    drawing = pictures.element(pictures.epoch_times({group.label: group.values(_wall_s) for group in groups}), label)
    return figure("times", "Time of an epoch", says, drawing, table(head, rows), "Times in figures")


def _shares(comparison: Comparison) -> str:
    groups = comparison.groups
    rows: list[list[Cell]] = []
    parts: dict[str, tuple[str, list[float]]] = {HOST: ("host", []), DEVICE: ("device", [])}
    for group in groups:
        cpu, csd = (group.mean(_made(side)) for side in ("cpu", "csd"))
        for side, made in ((HOST, cpu), (DEVICE, csd)):
            parts[side][1].append(100 * made / (cpu + csd) if cpu + csd else 0.0)
        processor = [s / max(1, sum(one.analysis.batches.values())) for run in group.runs
                     for one, s in zip(run.epochs, run.host_cpu_s, strict=True)]  # fmt: skip
        rows.append([
            group.label, number(cpu), number(csd), percent(csd, cpu + csd), _parts_of_devices(group),
            seconds(statistics.fmean(processor)),
        ])  # fmt: skip
    label = "Who prepared what: " + ", ".join(f"{row[0]} {row[3]} by devices" for row in rows) + "."
    drawn = pictures.stacked([group.label for group in groups], parts, 100.0, "per cent of the batches")
    head = ["", "host batches", "device batches", "by devices", "rates, images/s", "host's processor time a batch"]
    return figure("shares", "Who prepared what", "The part of each epoch's batches that host and devices made.",
                  pictures.element(drawn, label), table(head, rows), "Batches in figures")  # fmt: skip


def _parts_of_devices(group: Group) -> str:
    """The rates of both sides, as measured."""
    found = {"host": group.values(lambda a: a.rates.host)}
    for name in dict.fromkeys(name for run in group.runs for one in run.epochs for name in one.analysis.rates.devices):
        found[name] = group.values(_device_rate(name))
    return ", ".join(f"{name} {number(statistics.fmean(values))}" for name, values in found.items() if values) or "-"


def _seconds(comparison: Comparison) -> str:
    groups = comparison.groups
    names = list(dict.fromkeys(name for run in comparison.runs for one in run.epochs for name in one.analysis.seconds))
    most = max(group.mean(_wall_s) for group in groups)
    rows: list[list[Cell]] = []
    parts: dict[str, tuple[str, list[float]]] = {
        "training": ("training", []), "transfer": ("transfer", []), "waiting": ("training waits (low)", []),
    }  # fmt: skip
    for group in groups:
        spent = {name: group.mean(_spent(name)) for name in names}
        waited = sum(s for name, s in spent.items() if name.startswith(WAITING))
        for style, took in (
            ("training", spent.get(TRAINING, 0.0)), ("transfer", spent.get(TRANSFER, 0.0)), ("waiting", waited)
        ):  # fmt: skip
            parts[style][1].append(took)
        cells = [percent(spent[name], group.mean(_wall_s)) for name in names]
        rows.append([group.label, percent(waited, group.mean(_wall_s)), *cells])
    label = "Where each second went: " + ", ".join(f"{row[0]} waits {row[1]}" for row in rows) + "."
    drawing = pictures.element(pictures.stacked([group.label for group in groups], parts, most, "seconds of an epoch"), label)
    says = "Each second of an epoch once, as training saw it. What is missing is before the first batch and after the last."
    head = ["of the epoch", "waiting", *names]
    return figure("seconds", "Waiting", says, drawing, table(head, rows), "What was waited for")


def _side_by_side(comparison: Comparison) -> str:
    """The paper's Table II: which part of the time in which data are prepared runs beside other work."""
    found = [group.beside() for group in comparison.groups]
    rows: list[list[Cell]] = []
    for title in found[0]:
        times = (one[title] for one in found)
        cells = [f"{percent(both_s, of_s)} of {seconds(of_s)}" if of_s else "-" for both_s, of_s in times]
        rows.append([title, *cells])
    return (
        '<h2>At work at once</h2><p class="lead">As in the DDLP paper\'s Table II: the part of the time in which data are '
        "prepared that runs beside other work, of the seconds of an epoch in which they are prepared at all. "
        "<code>dataloader</code> is PyTorch's.</p>"
        + table(["", *(group.label for group in comparison.groups)], rows)
    )


def _gpus_unknown(comparison: Comparison) -> str:
    """A sentence on the groups that have no figures of a GPU; empty if all have."""
    without = [group.label for group in comparison.groups if not any(series.gpus(run.trace) for run in group.runs)]
    of_some = f" Of {'; '.join(without)}:" if len(without) < len(comparison.groups) else ""
    return f"{of_some} {NO_GPU}" if without else ""


def _energy(comparison: Comparison) -> str:
    results = [replace(one, label=group.label) for group in comparison.groups for one in group.energy]
    if not results:
        return ""
    rows: list[list[Cell]] = []
    base = comparison.baseline.label
    found = summaries(results, base if any(one.label == base for one in results) else None)
    for one in found:
        modelled = f" ({one.how})" if "modelled" in one.how else ""
        least_to_most = f"{number(one.least_j)} to {number(one.most_j)}"
        rows.append([
            one.label, str(one.runs), f"{number(one.joules)}{modelled}", least_to_most,
            "-" if one.ratio is None else f"{one.ratio:.2f}", ", ".join(f"{part} {number(j)}" for part, j in one.parts.items()),
            f"{one.cost:.3g} {one.currency}", number(one.co2_g), one.how,
        ])  # fmt: skip
    held_against = base if any(one.label == base for one in found) else found[0].label
    head = ["", "results", f"J a {found[0].unit}", "least to most", f"times {held_against}", "parts, J", "cost a run"]
    head += ["CO2, g", "total is"]
    return (
        '<section class="energy"><h2>Energy</h2><p class="lead">Modelled is watts times time, not measured.</p>'
        f"{table(head, rows)}</section>"
    )


def _runs(comparison: Comparison) -> str:
    rows: list[list[Cell]] = []
    for group in comparison.groups:
        for run in group.runs:
            numbers = ", ".join(str(one.analysis.epoch) for one in run.epochs)
            wall_s, rate = run.mean(_wall_s) or 0.0, run.mean(_rate)
            waited = run.mean(lambda a: a.stages[WAITING] / a.wall_s if a.wall_s else None)
            size = f"{group.kind.batches} of {group.kind.batch_size}"
            rows.append([
                str(run.path), group.label, numbers, str(group.kind.workers), size,
                seconds(wall_s), number(rate), percent(waited or 0.0, 1.0), run.epochs[-1].analysis.limit,
            ])  # fmt: skip
    head = ["run", "strategy", "epochs", "host workers", "batches", "epoch", "images/s", "waited", "limit"]
    return f"<h2>Runs</h2>{table(head, rows)}"
