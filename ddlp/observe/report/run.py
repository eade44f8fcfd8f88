"""A recorded run, read and analysed for its report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.observe.analysis import Analysis, analyse
from ddlp.observe.energy.result import FORMAT, EnergyResult, load
from ddlp.observe.profile import Profile, find_profile, read_profile
from ddlp.observe.run import EpochTrace, epoch_files, read_epoch
from ddlp.recording.events import EpochBegan, Exhausted

__all__ = ["COMPLETE", "EpochSummary", "RunReport", "find_energy", "profile_of", "read_epochs", "read_report"]

COMPLETE = "complete"


@dataclass(frozen=True)
class EpochSummary:
    """A line of the table of epochs: what is kept of an epoch that is not shown in detail."""

    path: Path
    began: EpochBegan
    analysis: Analysis
    state: str  # complete; broken off; end not recorded


@dataclass(frozen=True)
class RunReport:
    """A run: all its epochs, and the traces of those that are shown in detail, in the same order."""

    path: Path
    epochs: tuple[EpochSummary, ...]
    detailed: tuple[tuple[EpochSummary, EpochTrace], ...]
    profile: Profile | None
    energy: tuple[EnergyResult, ...]
    energy_from: Path | None


def read_report(
    run: str | os.PathLike[str], *, epoch: int | None = None, every: bool = False, energy: str | os.PathLike[str] | None = None
) -> RunReport:
    """Read a recorded run.

    Args:
        run: the directory of `DDLPLoader(record=...)`, or one of its files.
        epoch: show the epoch of this number (of several the one that was recorded last); else the last one.
        every: show every epoch in detail.
        energy: what `ddlp energy run --out` or `energy.save` has written; else the newest such file in the directory.

    Raises:
        DDLPError: nothing was recorded there, there is no such epoch, or a file can't be read.
    """
    profile = profile_of(run)
    found: list[EpochSummary] = []
    shown: dict[Path, EpochTrace] = {}
    for summary, trace in read_epochs(run, profile):
        found.append(summary)
        if every:
            shown[summary.path] = trace
        elif epoch is None or trace.began.epoch == epoch:
            shown = {summary.path: trace}
    if not shown:
        numbers = ", ".join(str(number) for number in sorted({one.began.epoch for one in found}))
        raise DDLPError(f"{run}: epoch {epoch} was not recorded, only {numbers}. Choose one of these, or --all.")
    energy_from = Path(energy) if energy is not None else find_energy(run)
    return RunReport(
        Path(run),
        tuple(found),
        tuple((one, shown[one.path]) for one in found if one.path in shown),
        profile,
        () if energy_from is None else tuple(load(energy_from)),
        energy_from,
    )


def profile_of(run: str | os.PathLike[str]) -> Profile | None:
    """Return torch's profile that lies in a run's directory. Raises DDLPError if it can't be read."""
    where = find_profile(run)
    return None if where is None else read_profile(where)


def read_epochs(run: str | os.PathLike[str], profile: Profile | None) -> Iterator[tuple[EpochSummary, EpochTrace]]:
    """Yield each epoch of a run, analysed, in the order of recording. Raises DDLPError as `read_report` does."""
    for file in epoch_files(run):
        trace = read_epoch(file)
        yield EpochSummary(file, trace.began, analyse(trace, profile), _state(trace)), trace


def _state(trace: EpochTrace) -> str:
    if not trace.whole:
        return "end not recorded"
    return COMPLETE if trace.of(Exhausted) else "broken off"


def find_energy(run: str | os.PathLike[str]) -> Path | None:
    """The newest file of energy results in a run's directory: energy*.json or *.energy.json."""
    found: Iterable[Path] = {path for pattern in ("energy*.json", "*.energy.json") for path in Path(run).glob(pattern)}
    ours = [path for path in found if FORMAT in path.read_text(errors="replace")[:200]]
    return max(ours, key=lambda path: path.stat().st_mtime, default=None)
