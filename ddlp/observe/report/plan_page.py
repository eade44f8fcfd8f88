"""A plan as a page: the table, the answers, and the curve of an epoch's time over the number of engines."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.observe.report import pictures
from ddlp.observe.report.figures import figure
from ddlp.observe.report.page import document, tiles
from ddlp.observe.report.words import Cell, bar, percent, table
from ddlp.planning.answers import seconds
from ddlp.planning.compared import Row
from ddlp.planning.plan import Plan, headings, made_of, notes, values
from ddlp.process.version import __version__

__all__ = ["plan_page", "write_plan"]


def write_plan(plan: Plan, path: Path) -> Path:
    """Write the page, and return its file. Raises DDLPError if it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plan_page(plan), encoding="utf-8")
    except OSError as error:
        raise DDLPError(f"{path} can't be written: {error.strerror}. --html FILE names another file.") from error
    return path


def plan_page(plan: Plan) -> str:
    """The whole file."""
    return document(f"{plan.source}: ddlp plan", "".join(_body(plan)))


def _body(plan: Plan) -> Iterator[str]:
    row = next((one for one in plan.rows if one.name == plan.strategy), plan.rows[0])
    where = escape(plan.source)
    yield f'<header class="top"><span><b>ddlp plan</b> {where}</span><span>predicted, not measured</span></header>'
    yield f'<p class="which">{escape("; ".join(made_of(plan)))}.</p><h1>{escape(_headline(row))}</h1>'
    yield tiles(_figures(plan, row))
    yield "<h2>Strategies</h2>"
    slowest = max(one.epoch.seconds for one in plan.rows)
    rows: list[list[Cell]] = [[*values(plan, one), bar(one.epoch.seconds, slowest)] for one in plan.rows]
    yield table([*headings(plan), ""], rows)
    yield "<h2>Before you buy</h2>"
    yield table(["question", "answer"], [[one.question, one.text] for one in plan.answers], "wrapped")
    if plan.curve:
        yield _curve(plan)
    if told := notes(plan):
        yield f"<h2>Assumed</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in told)}</ul>"
    yield (
        f"<footer>Written by ddlp {escape(__version__)}: an epoch played in simulated time by the ledger and the strategies of "
        "the loader. docs/plan.md explains the figures.</footer>"
    )


def _headline(row: Row) -> str:
    if not row.engines:
        return f"The host alone: {seconds(row.epoch.seconds)} an epoch"
    return f"{row.name} with {' and '.join(row.engines)}: {row.speed:.2f} times as fast as the host alone"


def _figures(plan: Plan, row: Row) -> Iterator[tuple[str, str, str]]:
    epoch = row.epoch
    bound = "" if row.bound_s is None else f"at best {seconds(row.bound_s)} at these rates"
    yield "epoch", seconds(epoch.seconds), bound
    yield "the host alone", seconds(plan.rows[0].epoch.seconds), f"{plan.rows[0].epoch.limit} limits"
    yield "training waits", percent(epoch.waiting, 1.0), "of the epoch"
    yield "limit", epoch.limit, "the stage to make faster"
    if row.engines:
        yield "from the engines", percent(1 - epoch.shares[""], 1.0), "of the batches"


def _curve(plan: Plan) -> str:
    points, first = plan.curve, plan.setup.engines[0].source
    times, bounds = [point.epoch.seconds for point in points], [point.bound_s for point in points]
    trains = plan.setup.step_s * plan.setup.batches
    drawn = pictures.over_engines([point.engines for point in points], times, bounds, trains, f"engines like {first}")
    rows: list[list[Cell]] = [
        [str(point.engines), seconds(point.epoch.seconds), seconds(point.bound_s), percent(point.epoch.waiting, 1.0),
         point.epoch.limit] for point in points
    ]  # fmt: skip
    label = f"Seconds an epoch over 0 to {points[-1].engines} engines: from {seconds(times[0])} to {seconds(times[-1])}."
    says = f"How long an epoch takes with so many engines like {first}. Where the curve is flat, another engine brings nothing."
    return figure(
        "engines", "An epoch over the number of engines", says, pictures.element(drawn, label),
        table(["engines", "epoch", "at best", "waits", "limit"], rows), "Figures",
    )  # fmt: skip
