"""Several recorded runs, read and put together by what they are runs of: the seeds of a strategy stand for one another."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.observe.analysis import CPU, CSD, TRAINING, TRANSFER, Analysis
from ddlp.observe.energy.result import EnergyResult, load
from ddlp.observe.profile import Profile
from ddlp.observe.report.run import COMPLETE, EpochSummary, find_energy, profile_of, read_epochs
from ddlp.observe.run import EpochTrace
from ddlp.recording.events import EpochBegan, HostBatch

__all__ = ["BASELINES", "Comparison", "Group", "Kind", "OneRun", "read_comparison"]

BASELINES = ("dataloader", "cpu")  # against which the others are held, if it was recorded; else the first group


@dataclass(frozen=True)
class Kind:
    """What runs have in common that are held to be the same."""

    strategy: str
    workers: int
    devices: int
    batch_size: int
    batches: int


@dataclass(frozen=True)
class OneRun:
    """The epochs of one run that count, of one kind.

    Attributes:
        trace: the last of these epochs.
        host_cpu_s: processor seconds of the host's workers, of each of them.
        profile: torch's, if one lies there.
    """

    path: Path
    epochs: tuple[EpochSummary, ...]
    trace: EpochTrace
    host_cpu_s: tuple[float, ...]
    profile: Profile | None = None

    def mean(self, of: Callable[[Analysis], float | None]) -> float | None:
        """The mean over the epochs of what ``of`` gives; None if it gives None for each."""
        found = [value for one in self.epochs if (value := of(one.analysis)) is not None]
        return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class Group:
    """Runs of one kind. `label` names the strategy, and what else tells it from other groups."""

    label: str
    kind: Kind
    runs: tuple[OneRun, ...]
    energy: tuple[EnergyResult, ...]

    def values(self, of: Callable[[Analysis], float | None]) -> list[float]:
        """One value for each run that has it."""
        return [value for run in self.runs if (value := run.mean(of)) is not None]

    def mean(self, of: Callable[[Analysis], float | None]) -> float:
        """The mean over the runs; 0.0 if none has a value."""
        found = self.values(of)
        return statistics.fmean(found) if found else 0.0

    def beside(self) -> dict[str, tuple[float, float]]:
        """The DDLP paper's Table II: by data and other work, the seconds an epoch in which both ran at once.

        And the seconds in which these data were prepared at all; 0: this side made none.
        """
        found = {}
        for data, stage, others in (("CPU", CPU, (TRAINING, TRANSFER, CSD)), ("CSD", CSD, (TRAINING, TRANSFER, CPU))):
            prepared_s = self.mean(_at_once(stage, stage))
            for other in others:
                found[f"{data} data, prepared during {other}"] = self.mean(_at_once(stage, other)), prepared_s
        return found


@dataclass(frozen=True)
class Comparison:
    """Groups in the order in which their first runs were named. ``left_out``: what was not counted, and why."""

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]

    @property
    def runs(self) -> list[OneRun]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    @property
    def baseline(self) -> Group:
        """The group that the others are held against."""
        for strategy in BASELINES:
            for group in self.groups:
                if group.kind.strategy == strategy:
                    return group
        return self.groups[0]


def _at_once(stage: str, other: str) -> Callable[[Analysis], float]:
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
        if path.resolve() in [one.resolve() for one in paths[:k]]:
            raise DDLPError(f"{path} is named twice; name each run once.")
    found: dict[Kind, list[OneRun]] = {}
    results: dict[Kind, list[EnergyResult]] = {}
    left_out: list[str] = []
    for path in paths:
        kinds = _read(path, epoch, every, left_out)
        if not kinds:
            which = "no complete epoch" if epoch is None else f"no complete epoch {epoch}"
            raise DDLPError(f"{path}: {which} was recorded there, so nothing can be compared. Leave this run out.")
        for kind, one in kinds.items():
            found.setdefault(kind, []).append(one)
        where = find_energy(path) if energy is None else None
        for result in () if where is None else load(where):
            for kind in kinds:
                if len(kinds) == 1 or _strategy(result, kinds) == kind.strategy:
                    results.setdefault(kind, []).append(result)
    for result in () if energy is None else load(Path(energy)):
        for kind in found:
            if _strategy(result, found) == kind.strategy:
                results.setdefault(kind, []).append(result)
    labels = _labels(list(found))
    groups = [Group(labels[kind], kind, tuple(those), tuple(results.get(kind, ()))) for kind, those in found.items()]
    return Comparison(tuple(groups), tuple(left_out))


def _read(path: Path, epoch: int | None, every: bool, left_out: list[str]) -> dict[Kind, OneRun]:
    """Return the epochs of a run that count, by what they are epochs of. One trace of each kind stays in memory."""
    found: dict[Kind, list[tuple[EpochSummary, float]]] = {}
    last: dict[Kind, EpochTrace] = {}
    profile = profile_of(path)
    for summary, trace in read_epochs(path, profile):
        if summary.state != COMPLETE:
            left_out.append(f"{summary.path}: {summary.state}")
        elif epoch in (None, trace.began.epoch):
            kind = kind_of(trace.began)
            found.setdefault(kind, []).append((summary, sum(batch.cpu_s for batch in trace.of(HostBatch))))
            last[kind] = trace
    runs = {}
    for kind, epochs in found.items():
        first = min(one.began.epoch for one, _ in epochs)
        later = [] if every or epoch is not None else [pair for pair in epochs if pair[0].began.epoch > first]
        counted, host_cpu_s = zip(*(later or epochs), strict=True)
        runs[kind] = OneRun(path, counted, last[kind], host_cpu_s, profile)
    return runs


def kind_of(began: EpochBegan) -> Kind:
    """Return what an epoch is an epoch of."""
    workers = 0 if began.itself else began.workers
    return Kind(began.strategy, workers, len(began.devices), began.batch_size, began.batches)


def _strategy(result: EnergyResult, kinds: Iterable[Kind]) -> str | None:
    """Return the strategy of an energy result: DataLoader's is measured as cpu, and is called by its label."""
    return result.label if any(kind.strategy == result.label for kind in kinds) else result.strategy


def _labels(kinds: Sequence[Kind]) -> dict[Kind, str]:
    """Return a name for each kind: the strategy, and what kinds of the same strategy differ in."""
    labels = {}
    for kind in kinds:
        same = [one for one in kinds if one.strategy == kind.strategy]
        more = [
            f"{getattr(kind, name)} {text}"
            for name, text in (
                ("workers", "workers"), ("devices", "devices"), ("batch_size", "images a batch"), ("batches", "batches")
            )
            if len({getattr(one, name) for one in same}) > 1
        ]  # fmt: skip
        labels[kind] = ", ".join([kind.strategy, *more])
    return labels
