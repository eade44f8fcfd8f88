"""How fast each side is, as seen so far. Pure: durations come in, rates go out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Rate:
    """Batches a second of one side, from the time its workers were busy with each batch.

    A batch of fewer samples counts as its part of a full one. ``parallel`` workers are busy at the same time, so
    a side makes ``parallel / seconds`` batches a second; of a device that ``ranks`` ranks of a run share, each reckons with an
    equal part of that. Exponentially weighted, so that it follows a side whose
    speed changes; the spread is of the batches seen (the paper calibrates on 10, we until 5 % are reached).
    """

    parallel: int = 1
    ranks: int = 1
    count: int = 0
    seconds: float = 0.0  # a full batch, one worker
    _mean: float = field(default=0.0, repr=False)
    _squares: float = field(default=0.0, repr=False)

    MEMORY = 16  # batches

    def add(self, busy_s: float, part: float = 1.0) -> None:
        """A worker took ``busy_s`` seconds for this part (0 to 1) of a full batch."""
        if part <= 0:
            return
        seconds = max(busy_s, 1e-9) / part
        self.count += 1
        delta = seconds - self._mean
        self._mean += delta / self.count
        self._squares += delta * (seconds - self._mean)
        self.seconds += (seconds - self.seconds) / min(self.count, self.MEMORY)

    @property
    def per_s(self) -> float | None:
        """Full batches a second with all workers busy, as far as they are this rank's; None before the first."""
        return self.parallel / self.seconds / self.ranks if self.count else None

    def known(self, within: float = 0.05, at_most: int = 10) -> bool:
        """True once the mean's standard error is below ``within`` of it, or after ``at_most`` batches."""
        if self.count >= at_most:
            return True
        if self.count < 3:
            return False
        error = math.sqrt(self._squares / (self.count - 1) / self.count)
        return error <= within * self._mean


@dataclass
class Rates:
    """The rates of all sides of an epoch, and of those after it, in full batches."""

    host: Rate = field(default_factory=Rate)
    devices: dict[str, Rate] = field(default_factory=dict)
    training: Rate = field(default_factory=Rate)  # the training thread's time between two batches, whatever it does then
    full_batch: int = 0  # samples of a full batch, the largest of the first ones where each has its own; 0: not known yet

    PAUSE = 4.0  # times the usual step: an evaluation or a checkpoint between two batches counts as so much at most

    def device(self, name: str) -> Rate:
        """The rate of one device, made when first asked for."""
        return self.devices.setdefault(name, Rate())

    def trained(self, seconds: float, part: float = 1.0) -> None:
        """The training thread was away for so long with this part of a full batch."""
        usual = self.training
        self.training.add(min(seconds, self.PAUSE * usual.seconds * part) if usual.count >= 3 else seconds, part)

    def csd_per_s(self, names: Iterable[str]) -> float | None:
        """These devices together, batches a second; None before the first batch of any.

        They are named, since the rates outlive an epoch, and what was known of a device that is lost since must not count.
        """
        known = [per_s for name in names if name in self.devices and (per_s := self.devices[name].per_s) is not None]
        return sum(known) if known else None
