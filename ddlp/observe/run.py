"""Recorded runs as they are read again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddlp.errors import DDLPError
from ddlp.observe.spans import Span
from ddlp.recording.events import (
    FORMAT,
    EpochBegan,
    EpochEnded,
    Event,
    Exhausted,
    Fetched,
    HostBatch,
    Rested,
    Step,
    from_line,
)

__all__ = ["EpochTrace", "epoch_files", "read_epoch", "read_run", "training_spans"]

_E = TypeVar("_E")


@dataclass(frozen=True)
class EpochTrace:
    """One recorded epoch. ``wall_s``: from its beginning to its end; if no end was recorded, to the last event."""

    path: Path
    began: EpochBegan
    events: tuple[Event, ...]
    wall_s: float
    whole: bool  # its end was recorded
    left_out: int

    def of(self, kind: type[_E]) -> list[_E]:
        """The events of one kind, in the order in which they were recorded."""
        return [event for event in self.events if isinstance(event, kind)]


def training_spans(trace: EpochTrace) -> list[Span]:
    """The training of each step: from having its batch until it asked for the next, or until the epoch was broken off."""
    steps = trace.of(Step)
    asked = [step.asked_at for step in steps[1:]]
    asked += [e.asked_at for e in trace.of(Exhausted)][:1] or [trace.wall_s]
    return [(step.handed_at, at) for step, at in zip(steps, asked, strict=False)]


def epoch_files(run: str | os.PathLike[str]) -> list[Path]:
    """The files of a run's epochs; ``run`` may be one of them. Raises DDLPError where there are none."""
    path = Path(run)
    # By number, as they began: after 9999.jsonl comes 10000.jsonl.
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"), key=lambda file: (len(file.name), file.name))
    if not files:
        raise DDLPError(f"{path}: no recorded run is there. DDLPLoader(..., record={str(path)!r}) records one.")
    return files


def read_run(run: str | os.PathLike[str]) -> list[EpochTrace]:
    """All epochs of a recorded run. Raises DDLPError as `read_epoch`."""
    return [read_epoch(file) for file in epoch_files(run)]


def read_epoch(path: str | os.PathLike[str]) -> EpochTrace:
    """One epoch. A last line that is cut off (the process was killed) is left out.

    Raises:
        DDLPError: it can't be read, or is no recorded epoch.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DDLPError(f"{path} can't be read: {error}") from error
    cut_off = lines.pop()
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        try:
            events.append(from_line(line))
        except ValueError as error:
            raise DDLPError(f"{path}, line {number}: {error}. Record the run again.") from None
    began = events.pop(0) if events else None
    if not isinstance(began, EpochBegan):
        raise DDLPError(f"{path} does not begin as a recorded epoch does: {(lines or [cut_off])[0][:80]!r}")
    if began.format != FORMAT:
        raise DDLPError(f"{path} was recorded by ddlp {began.ddlp} in format {began.format}; this version reads {FORMAT}")
    for event in events:
        if (why := _misplaced(began, event)) is not None:
            raise DDLPError(f"{path}: {why}. Record the run again.")
    last = events[-1] if events else None
    if any(isinstance(event, EpochBegan) or (isinstance(event, EpochEnded) and event is not last) for event in events):
        raise DDLPError(f"{path}: it holds the beginning or the end of another epoch. Record the run again.")
    if isinstance(last, EpochEnded):
        return EpochTrace(path, began, tuple(events[:-1]), last.at, True, last.left_out)
    latest = max((getattr(e, f) for e in events for f in e._fields if f == "at" or f.endswith("_at")), default=0.0)
    return EpochTrace(path, began, tuple(events), latest, False, 0)


def _misplaced(began: EpochBegan, event: Event) -> str | None:
    """Say why an event can't be of this epoch: it is of a worker or a thread that the epoch does not have."""
    if isinstance(event, HostBatch):
        return _beyond("HostBatch: worker", event.worker, began.workers)
    if isinstance(event, Fetched):
        return _beyond("Fetched: fetcher", event.fetcher, began.fetchers)
    if isinstance(event, Rested):
        return _beyond("Rested: number", event.number, began.workers if event.who == "host" else began.fetchers)
    return None


def _beyond(what: str, number: int, of: int) -> str | None:
    return None if number < of else f"{what} is {number}; the epoch has {of} of them"
