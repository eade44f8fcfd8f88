"""The numbers of a loader at work: of its epoch at this moment, and of all its epochs together.

`Live` has the numbers of a running loader that `ddlp.observe` shows (progress, TensorBoard, Prometheus). All are taken at one
moment, so that they belong together.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddlp.schedule.ledger import Side
from ddlp.schedule.rates import Rates
from ddlp.stats.engines import DeviceLive
from ddlp.stats.report import CAUSES, Counts, EpochReport
from ddlp.stats.waiting import Ceiling

__all__ = ["Life", "Live", "Sums", "counted", "length"]


@dataclass(frozen=True)
class Sums:
    """What all epochs of a loader have counted, the one under way included: these never fall. Times in seconds."""

    epochs: int = 0  # begun
    batches_host: int = 0
    batches_csd: int = 0
    samples: int = 0
    seconds: float = 0.0  # from each epoch's beginning to its end
    waiting: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))  # by `ddlp.stats.report.CAUSES`
    host_cpu_s: float = 0.0
    leases_taken_back: int = 0
    leases_lost: int = 0

    def plus(self, counts: Counts) -> Sums:
        """These sums with one more epoch."""
        return Sums(
            self.epochs + 1,
            self.batches_host + counts.sides[Side.HOST],
            self.batches_csd + counts.sides[Side.CSD],
            self.samples + counts.samples,
            self.seconds + counts.seconds,
            {cause: self.waiting[cause] + counts.waiting[cause] for cause in CAUSES},
            self.host_cpu_s + counts.host_cpu_s,
            self.leases_taken_back + counts.taken_back,
            self.leases_lost + counts.lost,
        )


@dataclass(frozen=True)
class Live:
    """A loader at one moment: the epoch under way, or the last one."""

    report: EpochReport
    total: Sums
    batches: int | None = None  # of the whole epoch; None: not known (yet)
    delivered: int = 0  # of these; includes those before a resume
    waiting_now_s: float = 0.0  # since training asked for the batch that it waits for; it is not in the counts yet
    ready_host: int = 0  # batches in memory, by who made them
    ready_csd: int = 0

    @property
    def devices(self) -> tuple[DeviceLive, ...]:
        """Devices and engines of pools, those of the report."""
        return self.report.engines

    @property
    def bound(self) -> float | None:
        """Samples a second that both sides can prepare together, as far as their rates are known: r_cpu + r_csd."""
        rates = [rate for rate in (self.report.rate_cpu, self.report.rate_csd) if rate]
        return sum(rates) if rates else None


class Life:
    """What a loader keeps of its epochs: the rates of both sides, for the next epoch to begin with, and all counts.

    ``ceiling``: a training step without loading, once a replay has measured it.
    """

    _LEAST = 4  # batches, until it is known whether training waits
    _NO_WAITING = 0.02  # of the time
    _JUDGED_S = 0.1  # so long a judgement holds: one takes as long as a sample
    _KEPT = 8  # epochs whose counts may still change: their threads are about to end, or several run at once

    def __init__(self) -> None:
        self.rates = Rates()
        self.ceiling: Ceiling | None = None
        self._slow, self._judged_s = True, -math.inf
        self._lock = threading.RLock()  # a signal's handler may ask for a report in the midst of it
        self._ended = Sums()
        self._counts: deque[Counts] = deque()

    def __reduce__(self) -> tuple[type[Life], tuple[()]]:
        """An unpickled copy begins anew, since another computer may have other rates."""
        return Life, ()

    def began(self, counts: Counts) -> None:
        """An epoch has begun, which counts here."""
        with self._lock:
            if len(self._counts) == self._KEPT:
                self._ended = self._ended.plus(self._counts.popleft())
            self._counts.append(counts)

    @property
    def last(self) -> Counts:
        """The counts of the epoch that began last; before the first one, counts of no batches."""
        with self._lock:
            return self._counts[-1] if self._counts else Counts(ended_s=0.0, started_s=0.0)

    def total(self) -> Sums:
        """All epochs together."""
        with self._lock:
            sums = self._ended
            for counts in self._counts:
                sums = sums.plus(counts)
            return sums

    def waits(self) -> bool:
        """Whether training has waited for its data so far; true until that is known. Each epoch's first batch does not count.

        While an accelerator is at work training does not wait: its thread may ask for a batch long before the step is over.
        """
        total = self.total()
        batches, first_s = total.batches_host + total.batches_csd - total.epochs, total.waiting["start"]
        waited_s = min(sum(total.waiting.values()), total.seconds - self.rates.training.total_s) - first_s
        return batches < self._LEAST or waited_s > self._NO_WAITING * (total.seconds - first_s)

    def host_is_slow(self) -> bool:
        """Whether training waits, or would wait without the devices that make a part of its batches. It may be asked often."""
        now = time.monotonic()
        if now >= self._judged_s + self._JUDGED_S:
            self._slow, self._judged_s = self._judge(), now
        return self._slow

    def _judge(self) -> bool:
        if self.waits():
            return True
        host, training = self.rates.host.per_s, self.rates.training
        return bool(self.total().batches_csd and host and host * training.seconds * (1 + self._NO_WAITING) < 1)


def counted(counts: Counts, total: Sums, batches: int | None) -> Live:
    """The numbers of an epoch that ddlp does not schedule: only delivered batches were counted. All count as the host's."""
    report = counts.report(counts.strategy, counts.rates, max(1, counts.rates.full_batch), ())
    return Live(report, total, batches, counts.before + report.batches_cpu, counts.waiting_now_s)


def length(epoch: Any) -> int | None:
    """How many batches an epoch of a loader (samples of a data set) has; None where that can't be said beforehand."""
    try:
        return len(epoch)
    except (TypeError, NotImplementedError):  # an IterableDataset, a sampler without a length
        return None
