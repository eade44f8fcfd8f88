"""What an epoch did: who made how much, how long training waited, and how far it was from the bound."""

from __future__ import annotations

from dataclasses import dataclass


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
