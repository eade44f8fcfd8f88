"""What an epoch did: who made how much, how long training waited, and how far it was from the bound."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ddlp.ledger import Side
from ddlp.rates import Rates


@dataclass(frozen=True)
class EpochReport:
    """An epoch (or the part of it so far). Times in seconds, rates in samples a second, each side alone."""

    strategy: str
    epoch: int
    batches_cpu: int
    batches_csd: int
    samples: int
    seconds: float
    waiting_s: float  # the training loop waited for a batch
    host_cpu_s: float  # processor time of the host's workers and of bringing the devices' batches in
    rate_cpu: float | None
    rate_csd: float | None
    notes: tuple[str, ...] = ()  # what the devices say of themselves

    @property
    def bound_s(self) -> float | None:
        """The least time in which both sides together prepare these samples: n / (r_cpu + r_csd)."""
        rates = [r for r in (self.rate_cpu, self.rate_csd) if r]
        return self.samples / sum(rates) if rates else None


@dataclass
class Counts:
    """What an epoch has counted so far; times are the monotonic clock's."""

    sides: dict[Side, int] = field(default_factory=lambda: {Side.HOST: 0, Side.CSD: 0})
    samples: int = 0
    waiting_s: float = 0.0
    host_cpu_s: float = 0.0
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def delivered(self, side: Side, samples: int, waiting_s: float) -> None:
        """A batch of so many samples, for which training has waited so long."""
        self.sides[side] += 1
        self.samples += samples
        self.waiting_s += waiting_s

    def cpu(self, before: float) -> float:
        """Count this thread's processor seconds since ``before``; returns those until now."""
        now = time.thread_time()
        self.host_cpu_s += now - before
        return now

    def report(self, strategy: str, epoch: int, rates: Rates, full_batch: int, notes: tuple[str, ...]) -> EpochReport:
        """As a report; ``full_batch`` turns batches a second into samples."""
        r_cpu, r_csd = rates.host.per_s, rates.csd_per_s()
        return EpochReport(
            strategy=strategy,
            epoch=epoch,
            batches_cpu=self.sides[Side.HOST],
            batches_csd=self.sides[Side.CSD],
            samples=self.samples,
            seconds=(self.ended_s or time.monotonic()) - self.started_s,
            waiting_s=self.waiting_s,
            host_cpu_s=self.host_cpu_s,
            rate_cpu=None if r_cpu is None else r_cpu * full_batch,
            rate_csd=None if r_csd is None else r_csd * full_batch,
            notes=notes,
        )
