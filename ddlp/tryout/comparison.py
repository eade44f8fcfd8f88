"""What a comparison has found: plain data."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from ddlp.tryout.rounds import ratios

__all__ = ["Comparison", "Cores", "Row"]


@dataclass(frozen=True)
class Cores:
    """CPUs by number, which stand for the host and for the computer beside the storage; the same one twice if there is one."""

    host: int
    engine: int

    @property
    def both(self) -> tuple[int, ...]:
        """Both CPUs, each once."""
        return (self.host,) if self.engine == self.host else (self.host, self.engine)


@dataclass
class Row:
    """One loader. For each of its turns: images a second, and parts (0 to 1) of the time and of the batches.

    ``cores``: how many it has; ``workers``: DataLoader's best number of them, None for ours.
    """

    name: str
    cores: int
    workers: int | None = None
    rates: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)  # training had no batch
    by_engine: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Images a second, the median."""
        return statistics.median(self.rates)


@dataclass
class Comparison:
    """What was found. Rates in images a second, each of one side alone and without a training step."""

    images: int
    batch_size: int
    cores: Cores
    csd: str | None  # a device; None: the engine ran on a core of this machine
    rate_host: float
    rate_engine: float | None = None
    step_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what could not be compared, and why
    recorded: Path | None = None  # an epoch under wrr

    def row(self, name: str, cores: int | None = None) -> Row | None:
        """The first row of this name, with so many cores; None if it could not take part."""
        return next((row for row in self.rows if row.name == name and cores in (None, row.cores)), None)

    def gains(self, row: Row) -> list[float]:
        """How many times as fast as DataLoader on one core, in each round."""
        return ratios(row.rates, self.rows[0].rates)

    def times(self, row: Row) -> float:
        """How many times as fast as DataLoader on one core: the median of the rounds' gains."""
        return statistics.median(self.gains(row))

    def of_both(self, row: Row) -> float:
        """Its rate as a part of what ``cpu`` and ``csd`` made together: the median of the rounds' ratios."""
        alone = [side.rates for side in self.rows if side.name in ("cpu", "csd")]
        return statistics.median(ratios(row.rates, [sum(rates) for rates in zip(*alone, strict=True)]))
