"""A whole plan: a set-up's strategies side by side, each with the least time that its rates allow; and its text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ddlp.auto.decide import decide, estimate
from ddlp.auto.measured import OffloadPath
from ddlp.observe.play import Played
from ddlp.observe.predict import Epoch, epoch_of, predict, simulated
from ddlp.observe.setup import Setup
from ddlp.schedule.strategies import STRATEGIES, Auto, Cpu, Wrr

__all__ = ["Plan", "Recorded", "Row", "make_plan", "text"]


@dataclass(frozen=True)
class Recorded:
    """An epoch as it was, to stand beside the predicted ones. ``strategy``: its strategy, or "dataloader"."""

    strategy: str
    played: Played


@dataclass(frozen=True)
class Row:
    """A strategy.

    Attributes:
        name: of the strategy, and whether it is the recorded epoch.
        engines: that take part.
        epoch: what it takes.
        speed: the time of `cpu` / its time.
        bound_s: the least time with these engines, by `estimate`. None for a recorded epoch.
    """

    name: str
    engines: tuple[str, ...]
    epoch: Epoch
    speed: float
    bound_s: float | None


@dataclass(frozen=True)
class Plan:
    """A plan. ``source`` says where the figures are from."""

    setup: Setup
    source: str
    rows: tuple[Row, ...]

    @property
    def simulated(self) -> int:
        """Batches that were simulated; the seconds of a longer epoch are scaled."""
        return simulated(self.setup)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"simulated_batches": self.simulated}


def make_plan(setup: Setup, source: str, recorded: Recorded | None = None) -> Plan:
    """Play an epoch under `cpu`, and under each other strategy if there are engines.

    ``recorded``: the epoch that the figures are from. It has the second row, as it was. `auto` works as `wrr` with the engines
    that `decide` chooses.
    """
    cpu = predict(setup, Cpu)
    rows = [Row(Cpu.name, (), cpu, 1.0, _bound_s(setup, ()))]

    def add(name: str, paths: tuple[OffloadPath, ...], epoch: Epoch, bound_s: float | None) -> None:
        rows.append(Row(name, tuple(path.source for path in paths), epoch, cpu.seconds / epoch.seconds, bound_s))

    if recorded is not None:
        paths = tuple(path for path in setup.engines if path.source in recorded.played.taken)
        add(f"{recorded.strategy}, as recorded", paths, epoch_of(setup, paths, recorded.played), None)
    if setup.engines:
        for name, strategy in STRATEGIES.items():
            if strategy.uses_device and not strategy.decides:
                bound_s = _bound_s(setup, setup.engines, strategy.needs_device)
                add(name, setup.engines, predict(setup, strategy), bound_s)
        chosen = decide(setup.measured).chosen.paths
        add(Auto.name, chosen, predict(setup, Wrr, chosen), _bound_s(setup, chosen))
    return Plan(setup, source, tuple(rows))


def _bound_s(setup: Setup, paths: tuple[OffloadPath, ...], alone: bool = False) -> float:
    """The least seconds of an epoch by `estimate`; ``alone``: the host makes nothing."""
    least = estimate(setup.measured, paths)
    assert least.time_s is not None
    if alone:
        return setup.batches * max(setup.step_s, 1 / sum(least.source_batches_per_s))
    return setup.batches * least.time_s


def text(plan: Plan) -> str:
    """For a person: what is planned for, the table, and what has been assumed."""
    setup = plan.setup
    energy, cost = setup.power is not None, setup.prices is not None
    heads = ["strategy", "engines", "epoch", "speed", "at best", "waits", "limit", *["energy"] * energy, *["cost"] * cost]
    table = [heads, *map(_cells, plan.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    words = {0, 1, 6}  # columns that stand to the left
    lines = [f"from {plan.source}:", *(f"  {line}" for line in _made_of(setup)), ""]
    for row in table:
        cells = (cell.ljust(width) if column in words else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True)))  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    lines += ["", *(f"assumed: {one}" for one in setup.assumed)]
    if plan.simulated < setup.batches:
        lines.append(f"simulated: {plan.simulated:,} of the {setup.batches:,} batches; seconds are scaled")
    return "\n".join(lines)


def _made_of(setup: Setup) -> list[str]:
    lines = [
        f"an epoch of {setup.batches:,} batches; a training step takes {setup.step_s:.4g} s",
        f"the host makes {setup.host_rate:.4g} batches/s with {setup.workers} worker{'s' * (setup.workers > 1)}",
    ]
    for path in setup.engines:
        by = f"by {path.transport}" + (f", {path.workers} workers" if path.workers > 1 else "")
        by += ", from files that the host sends" if path.carried else ""
        lines.append(f"{path.source} makes {path.batches_per_s:.4g} batches/s, {by}")
    return lines


def _cells(row: Row) -> list[str]:
    epoch = row.epoch
    cells = [
        row.name, " ".join(row.engines) or "none", _seconds(epoch.seconds), f"{row.speed:.2f}x",
        "-" if row.bound_s is None else _seconds(row.bound_s), f"{epoch.waiting:.0%}", epoch.limit,
    ]  # fmt: skip
    cells += [] if epoch.energy_j is None else [f"{epoch.energy_j / 1e3:,.4g} kJ"]
    return cells + ([] if epoch.cost is None else [f"{epoch.cost:.4g}"])


def _seconds(value: float) -> str:
    if value >= 7200:
        return f"{value / 3600:,.1f} h"
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.4g} s"
