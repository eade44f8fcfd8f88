"""The events that an engine's link gives to its jobs: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "EngineEvent",
    "EngineLost",
    "EngineNote",
    "EngineRetires",
    "LeaseFailed",
    "LeaseProgress",
    "LeasePublished",
    "RanksMeasured",
]


@dataclass(frozen=True)
class LeasePublished:
    """The batch file at `path` is complete, and not yet verified. busy_s: the worker's time on it."""

    lease: int
    path: Path
    busy_s: float


@dataclass(frozen=True)
class LeaseFailed:
    """The engine could not make the batch. `fatal`: all other leases of the job would fail as well."""

    lease: int
    reason: str
    fatal: bool = False


@dataclass(frozen=True)
class LeaseProgress:
    """How many samples are done of each lease that a worker has begun."""

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
class EngineRetires:
    """The engine is about to end. It finishes the leases that it has ``begun``, and begins no other."""

    begun: frozenset[int]


@dataclass(frozen=True)
class EngineNote:
    """The engine's note to the user changed. It is empty when there is nothing to say."""

    text: str


EngineEvent = LeasePublished | LeaseFailed | LeaseProgress | RanksMeasured | EngineRetires | EngineLost | EngineNote
