"""A whole plan: strategies side by side, answers, the curve over the number of engines; and its text."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from ddlp.planning.answers import CACHE_COST, Answer, Point, answers, curve, seconds
from ddlp.planning.compared import Recorded, Row, compared
from ddlp.planning.predict import simulated
from ddlp.planning.setup import Setup
from ddlp.schedule.strategies import Strategy, Wrr

__all__ = ["Plan", "headings", "made_of", "make_plan", "notes", "text", "values"]

_WIDTH = 110  # of a line


@dataclass(frozen=True)
class Plan:
    """A plan. ``strategy`` is the answers' and the curve's; ``source`` says where the figures are from."""

    setup: Setup
    source: str
    strategy: str
    rows: tuple[Row, ...]
    answers: tuple[Answer, ...]
    curve: tuple[Point, ...]

    @property
    def simulated(self) -> int:
        """Batches that were simulated; the seconds of a longer epoch are scaled."""
        return simulated(self.setup)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self) | {"simulated_batches": self.simulated}
        data["setup"]["moves"] = [move._asdict() for move in self.setup.moves]
        return data


def make_plan(
    setup: Setup, source: str, strategy: type[Strategy] = Wrr, *, pool: int = 4, cache_cost: float = CACHE_COST,
    engines: int | None = None, recorded: Recorded | None = None,
) -> Plan:  # fmt: skip
    """Predict everything. ``engines``: of the curve, at most; None: no curve. The others are as in `compared` and `answers`."""
    return Plan(
        setup, source, strategy.name, compared(setup, recorded), answers(setup, strategy, pool=pool, cache_cost=cache_cost),
        () if engines is None else curve(setup, strategy, engines),
    )  # fmt: skip


def made_of(plan: Plan) -> list[str]:
    """What is planned for, in lines."""
    setup = plan.setup
    lines = [
        f"an epoch of {setup.batches:,} batches; a training step takes {setup.step_s:.4g} s",
        f"the host makes {setup.host_rate:.4g} batches/s with {setup.workers} worker{'s' * (setup.workers > 1)}",
    ]
    for path in setup.engines:
        by = f"by {path.transport}" + (f", {path.workers} workers" if path.workers > 1 else "")
        by += ", from files that the host sends" if path.carried else ""
        lines.append(f"{path.source} makes {path.batches_per_s:.4g} batches/s, {by}")
    for move in setup.moves:
        lines.append(f"{move.engine} {'joins' if move.joins else 'leaves'} after {move.seconds:g} s")
    return lines


def headings(plan: Plan) -> list[str]:
    """Of the table's columns."""
    energy, cost = plan.setup.power is not None, plan.setup.prices is not None
    return ["strategy", "engines", "epoch", "speed", "at best", "waits", "limit", *["energy"] * energy, *["cost"] * cost]


def values(plan: Plan, row: Row) -> list[str]:
    """A row's cells."""
    epoch = row.epoch
    cells = [
        row.name, " ".join(row.engines) or "none", seconds(epoch.seconds), f"{row.speed:.2f}x",
        "-" if row.bound_s is None else seconds(row.bound_s), f"{epoch.waiting:.0%}", epoch.limit,
    ]  # fmt: skip
    cells += [] if epoch.energy_j is None else [f"{epoch.energy_j / 1e3:,.4g} kJ"]
    return cells + ([] if epoch.cost is None else [f"{epoch.cost:.4g}"])


def text(plan: Plan) -> str:
    """For a person."""
    table = [headings(plan), *(values(plan, row) for row in plan.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    words = {0, 1, 6}  # columns that stand to the left
    lines = [f"from {plan.source}:", *(f"  {line}" for line in made_of(plan)), ""]
    for row in table:
        cells = (cell.ljust(width) if column in words else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True)))  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    lines += ["", f"answers ({plan.strategy if plan.setup.engines else 'the host alone'}, simulated)"]
    lines += [textwrap.fill(f"- {answer.text}", _WIDTH, subsequent_indent="  ") for answer in plan.answers]
    if plan.curve:
        lines += ["", f"an epoch with n engines like {plan.setup.engines[0].source}"]
        lines += [f"{point.engines:4}  {seconds(point.epoch.seconds):>10}" for point in plan.curve]
    return "\n".join([*lines, "", *notes(plan)])


def notes(plan: Plan) -> list[str]:
    """How the figures came about, and what has been assumed."""
    lines = [f"assumed: {one}" for one in plan.setup.assumed]
    if plan.simulated < plan.setup.batches:
        lines.append(f"simulated: {plan.simulated:,} of the {plan.setup.batches:,} batches; seconds are scaled")
    return lines
