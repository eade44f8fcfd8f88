"""Several recorded runs, read and put together by what they are runs of: the seeds of a strategy stand for one another."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ddlp.errors import DDLPError
from ddlp.observe.analysis import COMPLETE, CPU, CSD, TRAINING, TRANSFER, WAITING, Analysis, analyse
from ddlp.observe.energy.compare import comparison as energy_comparison
from ddlp.observe.energy.result import EnergyResult, find, load
from ddlp.observe.run import epoch_files, read_epoch
from ddlp.stats.words import aligned, number, percent, seconds

__all__ = ["BASELINES", "Comparison", "Group", "Kind", "read_comparison"]

BASELINES = ("dataloader", "cpu")  # against which the others are held, if it was recorded; else the first group
Figure = Callable[[Analysis], float | None]


class Kind(NamedTuple):
    """What runs have in common that are held to be the same."""

    strategy: str
    workers: int
    devices: int
    batch_size: int
    batches: int


@dataclass(frozen=True)
class Group:
    """Runs of one kind, each with the epochs that count. `label` names the strategy, and what else tells it from others."""

    label: str
    kind: Kind
    runs: dict[Path, list[Analysis]]
    energy: tuple[EnergyResult, ...]

    def values(self, of: Figure) -> list[float]:
        """One value for each run that has it: the mean of its epochs."""
        by_run = ([value for analysis in epochs if (value := of(analysis)) is not None] for epochs in self.runs.values())
        return [statistics.fmean(values) for values in by_run if values]

    def mean(self, of: Figure) -> float:
        """The mean over the runs; 0.0 if none has a value."""
        values = self.values(of)
        return statistics.fmean(values) if values else 0.0

    def spent(self, on: str) -> float:
        """Seconds of an epoch, as training saw it."""
        return self.mean(lambda analysis: analysis.seconds.get(on, 0.0))

    def beside(self) -> dict[str, tuple[float, float]]:
        """The DDLP paper's Table II: by who prepares and other work, the seconds an epoch in which both ran at once.

        And the seconds in which these data were prepared at all; 0: this side made none.
        """
        times = {}
        for stage, others in ((CPU, (TRAINING, TRANSFER, CSD)), (CSD, (TRAINING, TRANSFER, CPU))):
            prepared_s = self.mean(_at_once(stage, stage))
            for other in others:
                times[f"{stage} beside {other}"] = self.mean(_at_once(stage, other)), prepared_s
        return times


@dataclass(frozen=True)
class Comparison:
    """Groups in the order in which their first runs were named. ``left_out``: what was not counted, and why.

    As a string it is the comparison for people: each figure is the mean of the runs of a strategy.
    """

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]

    @property
    def baseline(self) -> Group:
        """The group that the others are held against."""
        for strategy in BASELINES:
            for group in self.groups:
                if group.kind.strategy == strategy:
                    return group
        return self.groups[0]

    @property
    def headline(self) -> str:
        """Which strategy was the fastest, and whether the runs' spread allows to say so."""
        best, base = max(self.groups, key=lambda group: group.mean(_rate)), self.baseline
        if len(self.groups) == 1:
            return f"{best.label}: {seconds(best.mean(_wall_s))} an epoch in {len(best.runs)} runs"
        if best is base:
            return f"{best.label} was the fastest, and nothing else paid"
        text = f"{best.label} was the fastest: {best.mean(_rate) / base.mean(_rate):.2f} times {base.label}"
        overlap = min(best.values(_rate)) <= max(base.values(_rate))
        return f"{text}, but their runs overlap" if overlap else text

    def __str__(self) -> str:
        return "\n".join([
            *aligned(list(self._times())), "", *aligned(list(self._seconds())), "", *aligned(list(self._beside())), "",
            *self._energy(), *aligned(list(self._runs()), (0, 1)), *(f"left out: {text}" for text in self.left_out),
        ])  # fmt: skip

    def _times(self) -> Iterator[list[str]]:
        yield ["an epoch", "runs", "time", "deviation", "least to most", "images/s", f"times {self.baseline.label}",
               "of the bound", "by devices", "host's rate", "devices' rate", "processor s/batch", "GPU busy"]  # fmt: skip
        for group in self.groups:
            times, rate = group.values(_wall_s), group.mean(_rate)
            bound, gpu = group.values(lambda analysis: analysis.of_bound), group.values(_gpu_busy)
            host = group.mean(lambda analysis: analysis.rates.host)
            devices = group.mean(lambda analysis: sum(analysis.rates.devices.values()))
            yield [
                group.label, str(len(times)), seconds(statistics.fmean(times)),
                seconds(statistics.stdev(times)) if len(times) > 1 else "-", f"{seconds(min(times))} to {seconds(max(times))}",
                number(rate), f"{rate / self.baseline.mean(_rate):.2f}", percent(statistics.fmean(bound)) if bound else "-",
                percent(group.mean(_by_devices)), number(host or None), number(devices or None),
                number(group.mean(lambda analysis: analysis.host_cpu_s / max(1, sum(analysis.batches.values())))),
                percent(statistics.fmean(gpu)) if gpu else "-",
            ]  # fmt: skip

    def _seconds(self) -> Iterator[list[str]]:
        analyses = [analysis for group in self.groups for epochs in group.runs.values() for analysis in epochs]
        names = list(dict.fromkeys(name for analysis in analyses for name in analysis.seconds))
        wall_s = [group.mean(_wall_s) for group in self.groups]
        waited_s = [group.mean(lambda analysis: analysis.stages[WAITING]) for group in self.groups]
        yield ["where each second went", *(group.label for group in self.groups)]
        yield ["waiting", *map(percent, waited_s, wall_s)]
        for name in names:
            yield [name, *map(percent, (group.spent(name) for group in self.groups), wall_s)]

    def _beside(self) -> Iterator[list[str]]:
        """The paper's Table II. ``dataloader`` is its column of PyTorch."""
        yield ["part of the preparing that ran beside other work", *(group.label for group in self.groups)]
        tables = [group.beside() for group in self.groups]
        for title in tables[0]:
            times = (table[title] for table in tables)
            yield [title, *(f"{percent(both_s, of_s)} of {seconds(of_s)}" if of_s else "-" for both_s, of_s in times)]

    def _energy(self) -> Iterator[str]:
        results = [replace(result, label=group.label) for group in self.groups for result in group.energy]
        if results:
            base = self.baseline.label
            yield "energy; modelled is watts times time, not measured"
            yield energy_comparison(results, base if any(result.label == base for result in results) else None)
            yield ""

    def _runs(self) -> Iterator[list[str]]:
        yield ["run", "strategy", "epochs", "workers", "batches", "time", "images/s", "limit"]
        for group in self.groups:
            for path, epochs in group.runs.items():
                numbers = ", ".join(str(analysis.epoch) for analysis in epochs)
                wall_s, rate = (statistics.fmean(map(of, epochs)) for of in (_wall_s, _rate))
                size = f"{group.kind.batches} of {group.kind.batch_size}"
                yield [str(path), group.label, numbers, str(group.kind.workers), size, seconds(wall_s), number(rate),
                       epochs[-1].limit]  # fmt: skip


def _wall_s(analysis: Analysis) -> float:
    return analysis.wall_s


def _rate(analysis: Analysis) -> float:
    return analysis.images_per_s


def _by_devices(analysis: Analysis) -> float:
    return analysis.batches["csd"] / max(1, sum(analysis.batches.values()))


def _gpu_busy(analysis: Analysis) -> float | None:
    """The mean of the GPUs that did anything; None: none was asked about."""
    parts = [busy for busy, *_ in analysis.gpus.values()]
    return statistics.fmean([busy for busy in parts if busy] or parts) if parts else None


def _at_once(stage: str, other: str) -> Figure:
    return lambda analysis: analysis.overlap[stage][other]


def read_comparison(
    runs: Sequence[str | os.PathLike[str]], *, epoch: int | None = None, every: bool = False,
    energy: str | os.PathLike[str] | None = None,
) -> Comparison:  # fmt: skip
    """Read recorded runs.

    Args:
        runs: directories of `DDLPLoader(record=...)`, or files of such.
        epoch: count the epochs of this number alone; else all but the first of each run, if it has several.
        every: count the first epochs too.
        energy: results of all runs, which belong to the groups by strategy; else the newest such file of each run.

    Raises:
        DDLPError: a run is named twice, nothing was recorded there, it has no complete epoch that counts, or a file can't be
            read.
    """
    paths = [Path(run) for run in runs]
    for k, path in enumerate(paths):
        if path.resolve() in [earlier.resolve() for earlier in paths[:k]]:
            raise DDLPError(f"{path} is named twice; name each run once.")
    by_kind: dict[Kind, dict[Path, list[Analysis]]] = {}
    results: dict[Kind, list[EnergyResult]] = {}
    left_out: list[str] = []
    for path in paths:
        kinds = _read(path, epoch, every, left_out)
        if not kinds:
            which = "no complete epoch" if epoch is None else f"no complete epoch {epoch}"
            raise DDLPError(f"{path}: {which} was recorded there, so nothing can be compared. Leave this run out.")
        for kind, epochs in kinds.items():
            by_kind.setdefault(kind, {})[path] = epochs
        where = find(path) if energy is None else None
        for result in () if where is None else load(where):
            for kind in kinds:
                if len(kinds) == 1 or _strategy(result, kinds) == kind.strategy:
                    results.setdefault(kind, []).append(result)
    for result in () if energy is None else load(Path(energy)):
        for kind in by_kind:
            if _strategy(result, by_kind) == kind.strategy:
                results.setdefault(kind, []).append(result)
    labels = _labels(list(by_kind))
    groups = [Group(labels[kind], kind, those, tuple(results.get(kind, ()))) for kind, those in by_kind.items()]
    return Comparison(tuple(groups), tuple(left_out))


def _read(path: Path, epoch: int | None, every: bool, left_out: list[str]) -> dict[Kind, list[Analysis]]:
    """Return the epochs of a run that count, by what they are epochs of."""
    by_kind: dict[Kind, list[Analysis]] = {}
    for file in epoch_files(path):
        analysis = analyse(read_epoch(file))
        if analysis.state != COMPLETE:
            left_out.append(f"{file}: {analysis.state}")
        elif epoch in (None, analysis.epoch):
            began = analysis.began
            workers = 0 if began.itself else began.workers
            kind = Kind(analysis.strategy, workers, len(began.devices), began.batch_size, began.batches)
            by_kind.setdefault(kind, []).append(analysis)
    if every or epoch is not None:
        return by_kind
    first = {kind: min(analysis.epoch for analysis in epochs) for kind, epochs in by_kind.items()}
    return {
        kind: [analysis for analysis in epochs if analysis.epoch > first[kind]] or epochs for kind, epochs in by_kind.items()
    }


def _strategy(result: EnergyResult, kinds: Iterable[Kind]) -> str | None:
    """Return the strategy of an energy result: DataLoader's is measured as cpu, and is called by its label."""
    return result.label if any(kind.strategy == result.label for kind in kinds) else result.strategy


def _labels(kinds: Sequence[Kind]) -> dict[Kind, str]:
    """Return a name for each kind: the strategy, and what kinds of the same strategy differ in."""
    labels = {}
    for kind in kinds:
        same = [other for other in kinds if other.strategy == kind.strategy]
        units = ("", "workers", "devices", "images a batch", "batches")
        more = [f"{value} {unit}" for value, unit, all_values in zip(kind, units, zip(*same, strict=True), strict=True)
                if len(set(all_values)) > 1]  # fmt: skip
        labels[kind] = ", ".join([kind.strategy, *more])
    return labels
