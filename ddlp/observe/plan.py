"""A set-up's strategies side by side, each played by the simulator, with the least time that its rates allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlp.auto.decide import decide, estimate
from ddlp.auto.measured import OffloadPath
from ddlp.observe.play import Played, play_epoch
from ddlp.observe.setup import Setup
from ddlp.schedule.strategies import STRATEGIES, Auto, Cpu, Strategy, Wrr
from ddlp.stats.words import aligned, seconds

__all__ = ["SIMULATED", "WAITS", "Row", "predict", "rows", "text"]

SIMULATED = 1000  # batches at most: a longer epoch is simulated with so many
WAITS = 0.05  # part of the epoch: if training waits less than this, training limits, as `ddlp analyse` has it


@dataclass(frozen=True)
class Row:
    """A whole epoch under a strategy.

    Attributes:
        name: of the strategy, and whether it is the recorded epoch.
        engines: that take part.
        seconds: it takes.
        waiting: the part of these in which training has no batch.
        limit: the stage that limits: "training", "host", "source", "transfer" or "spool".
        bound_s: the least time with these engines, by `estimate`. None for a recorded epoch.
        speed: the time of `cpu` / its time.
    """

    name: str
    engines: tuple[str, ...]
    seconds: float
    waiting: float
    limit: str
    bound_s: float | None
    speed: float


def rows(setup: Setup, recorded: Played | None = None, name: str = "") -> list[Row]:
    """Play an epoch under `cpu`, and under each other strategy if there are engines.

    ``recorded``: the epoch that the figures are from, under the strategy ``name``. It has the second row, as it was. `auto`
    works as `wrr` with the engines that `decide` chooses.
    """
    engines = setup.measured.paths
    table = [predict(setup, Cpu)]
    if recorded is not None:
        paths = tuple(path for path in engines if path.source in recorded.taken)
        table.append(_row(setup, f"{name}, as recorded", paths, recorded, None, table[0].seconds))
    if engines:
        for strategy in STRATEGIES.values():
            if strategy.uses_device and not strategy.decides:
                table.append(predict(setup, strategy, engines, cpu_s=table[0].seconds))
        table.append(predict(setup, Wrr, decide(setup.measured).chosen.paths, Auto.name, table[0].seconds))
    return table


def predict(
    setup: Setup, strategy: type[Strategy], paths: tuple[OffloadPath, ...] = (), name: str = "", cpu_s: float | None = None
) -> Row:
    """Simulate an epoch by the loader's ledger and this strategy. ``paths``: the engines that take part.

    A long epoch is simulated with fewer batches (`SIMULATED`), and its seconds are scaled in proportion. ``name``: another name
    than the strategy's; ``cpu_s``: the time of `cpu`, None: this is it.
    """
    measured, batches = setup.measured, min(setup.batches, SIMULATED)
    played = play_epoch(measured, paths, strategy, batches=batches, workers=setup.workers)
    least = estimate(measured, paths)
    assert least.time_s is not None and measured.step_s is not None
    if strategy.needs_device:  # the host makes nothing
        bound_s = max(measured.step_s, 1 / sum(least.source_batches_per_s))
    else:
        bound_s = least.time_s
    return _row(setup, name or strategy.name, paths, played, setup.batches * bound_s, cpu_s)


def _row(
    setup: Setup, name: str, paths: tuple[OffloadPath, ...], played: Played, bound_s: float | None, cpu_s: float | None
) -> Row:
    epoch_s, waiting = played.seconds * setup.batches / played.batches, played.waiting_s / played.seconds
    if waiting < WAITS:
        limit = "training"
    elif 2 * sum(played.taken.values()) <= played.batches:
        limit = "host"
    else:
        limits = dict(zip((path.source for path in paths), estimate(setup.measured, paths).source_limits, strict=True))
        limit = limits[max(played.taken, key=played.taken.__getitem__)]
    engines = tuple(path.source for path in paths)
    return Row(name, engines, epoch_s, waiting, limit, bound_s, 1.0 if cpu_s is None else cpu_s / epoch_s)


def text(setup: Setup, source: str, rows: Sequence[Row]) -> str:
    """For a person: what is planned for, the table, and what has been assumed. ``source`` says where the figures are from."""
    measured = setup.measured
    table = [("strategy", "engines", "epoch", "speed", "at best", "waits", "limit"), *map(_cells, rows)]
    lines = [
        f"from {source}:",
        f"  an epoch of {setup.batches:,} batches; a training step takes {measured.step_s:.4g} s",
        f"  the host makes {measured.host_batches_per_s:.4g} batches/s with {setup.workers} worker{'s' * (setup.workers > 1)}",
    ]
    for path in measured.paths:
        workers = f", {path.workers} workers" if path.workers > 1 else ""
        lines.append(f"  {path.source} makes {path.batches_per_s:.4g} batches/s, by {path.transport}{workers}")
    lines += ["", *aligned(table, left=(0, 1, 6)), "", *(f"assumed: {assumption}" for assumption in setup.assumed)]
    if setup.batches > SIMULATED:
        lines.append(f"simulated: {SIMULATED:,} of the {setup.batches:,} batches; seconds are scaled")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    bound = "-" if row.bound_s is None else seconds(row.bound_s)
    engines = " ".join(row.engines) or "none"
    return row.name, engines, seconds(row.seconds), f"{row.speed:.2f}x", bound, f"{row.waiting:.0%}", row.limit
