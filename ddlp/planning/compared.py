"""A set-up's strategies side by side: ddlp's, and the rules of the paper, of FastFlow and of Cachew beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.papers.decisions import RULES
from benchmarks.papers.rules import FastFlow
from benchmarks.papers.validation import split
from ddlp.planning.decide import decide, estimate, path_limit
from ddlp.planning.measured import Measured, OffloadPath
from ddlp.planning.play import Played
from ddlp.planning.predict import Epoch, epoch_of, predict, simulated
from ddlp.planning.setup import Setup
from ddlp.planning.simulate import paper_epoch
from ddlp.schedule.strategies import STRATEGIES, Cpu, Wrr

__all__ = ["Recorded", "Row", "compared"]


@dataclass(frozen=True)
class Recorded:
    """An epoch as it was, to stand beside the predicted ones. ``strategy``: its strategy, or "dataloader"."""

    strategy: str
    played: Played


@dataclass(frozen=True)
class Row:
    """A strategy, or another's rule.

    Attributes:
        name: of the strategy, and whose rules they are if they are not ddlp's, or that it is a recorded epoch.
        engines: that take part.
        epoch: what it takes.
        speed: the time of `cpu` / its time.
        bound_s: the least time with these engines, by `estimate`, if all are there all the time. None for the paper's rules,
            which work otherwise, for a recorded epoch, and if engines that work alone leave.
    """

    name: str
    engines: tuple[str, ...]
    epoch: Epoch
    speed: float
    bound_s: float | None


def compared(setup: Setup, recorded: Recorded | None = None) -> tuple[Row, ...]:
    """Return a row for each strategy, `cpu` first, and for each rule, if there are engines.

    ``recorded``: the epoch that the figures are from. It has the second row, as it was.
    """
    cpu = predict(setup, Cpu)
    rows = [Row(Cpu.name, (), cpu, 1.0, _bound_s(setup, ()))]
    if recorded is not None:
        paths = tuple(path for path in setup.engines if path.source in recorded.played.taken)
        rows.append(_row(f"{recorded.strategy}, as recorded", paths, epoch_of(setup, paths, recorded.played), cpu, None))
    if not setup.engines:
        return tuple(rows)
    for name, strategy in STRATEGIES.items():
        if strategy.uses_device and not strategy.decides:  # what auto would choose is among the rules
            alone = strategy.needs_device
            bound_s = None if alone and setup.moves else _bound_s(setup, setup.engines, alone)
            rows.append(_row(name, setup.engines, predict(setup, strategy), cpu, bound_s))
    rows += [_row(name, setup.engines, epoch, cpu, None) for name, epoch in _papers(setup)]
    for name, paths in _choices(setup.measured):
        rows.append(_row(f"wrr, engines by {name}", paths, predict(setup, Wrr, paths), cpu, _bound_s(setup, paths)))
    return tuple(rows)


def _row(name: str, paths: tuple[OffloadPath, ...], epoch: Epoch, cpu: Epoch, bound_s: float | None) -> Row:
    return Row(name, tuple(path.source for path in paths), epoch, cpu.seconds / epoch.seconds, bound_s)


def _bound_s(setup: Setup, paths: tuple[OffloadPath, ...], alone: bool = False) -> float:
    """The least seconds of an epoch by `estimate`; ``alone``: the host makes nothing."""
    one = estimate(setup.measured, paths)
    assert one.time_s is not None
    if alone:
        return setup.batches * max(setup.step_s, 1 / sum(one.source_batches_per_s))
    return setup.batches * one.time_s


def _choices(measured: Measured) -> Iterator[tuple[str, tuple[OffloadPath, ...]]]:
    """Yield the engines that each rule chooses. Windows are measured exactly, so their times are the estimate's."""
    for name, rule in RULES.items():
        if rule is None:
            yield name, decide(measured).chosen.paths
        elif isinstance(rule, FastFlow):
            yield name, rule.choose(measured)
        else:
            yield name, rule.choose(measured, lambda paths: estimate(measured, paths).value("time"))


def _papers(setup: Setup) -> Iterator[tuple[str, Epoch]]:
    """Yield the paper's MTE and WRR by its own event rules, with all engines as one CSD.

    Its host is serial, and that limits: it prepares a batch, or reads one of the CSD, and trains on it.
    """
    n = simulated(setup)
    rates = [path_limit(path, path.batches_per_s)[0] for path in setup.engines]
    reads = [rate * (path.bytes_per_batch or 0.0) / (path.bandwidth_bytes_per_s or math.inf)
             for rate, path in zip(rates, setup.engines, strict=True)]  # fmt: skip
    times = 1 / setup.host_rate + setup.step_s, 1 / sum(rates), sum(reads) / sum(rates) + setup.step_s
    for name, host_batches in (("mte", split(n, *times[:2])), ("wrr", None)):
        seconds, trained, used = paper_epoch(n, *times, host_batches)
        taken = {path.source: round(used * rate / sum(rates)) for rate, path in zip(rates, setup.engines, strict=True)}
        played = Played(trained, seconds, seconds - trained * setup.step_s, trained - used, taken)
        yield f"{name}, the paper's rules", replace(epoch_of(setup, setup.engines, played), limit="serial host")
