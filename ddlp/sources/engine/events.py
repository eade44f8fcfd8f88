"""What an engine's link tells its jobs: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "EngineEvent",
    "EngineLost",
    "EngineNote",
    "LeaseFailed",
    "LeaseProgress",
    "LeasePublished",
    "RanksMeasured",
]


@dataclass(frozen=True)
class LeasePublished:
    """The batch file at `path` is complete; not yet verified. busy_s: the worker's time on it."""

    lease: int
    path: Path
    busy_s: float


@dataclass(frozen=True)
class LeaseFailed:
    """The lease came to nothing; `fatal` where all others of the job would fail as well."""

    lease: int
    reason: str
    fatal: bool = False


@dataclass(frozen=True)
class LeaseProgress:
    """Samples done of each lease that a worker is at."""

    samples: dict[int, int]


@dataclass(frozen=True)
class RanksMeasured:
    """(samples, busy seconds) of batches that the engine has made for other ranks of the run."""

    batches: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class EngineLost:
    """Nothing more will come: the engine died, fell silent or dropped the job."""

    reason: str


@dataclass(frozen=True)
class EngineNote:
    """The engine's word to the user changed; empty when there is nothing to say."""

    text: str


EngineEvent = LeasePublished | LeaseFailed | LeaseProgress | RanksMeasured | EngineLost | EngineNote
