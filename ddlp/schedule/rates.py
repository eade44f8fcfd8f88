"""How fast each side is, from the batches so far. This module is pure: durations come in, rates go out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Rate:
    """Batches a second of one side, computed from the time that its workers were busy with each batch.

    A batch of fewer samples counts as its part of a full one. ``parallel`` workers are busy at the same time, so a side makes
    ``parallel / seconds`` batches a second. If ``ranks`` ranks of a run share a device, each counts on an equal part of that.
    The mean is exponentially weighted, so that it follows a side whose speed changes. The spread is that of all batches so far
    (the paper calibrates on 10 batches; ddlp calibrates until the error is within 5 %).
    """

    parallel: int = 1
    ranks: int = 1
    count: int = 0
    seconds: float = 0.0  # of one worker for a full batch
    total_s: float = field(default=0.0, repr=False)  # the sum over all batches, each as if it was full
    _mean: float = field(default=0.0, repr=False)
    _squares: float = field(default=0.0, repr=False)

    MEMORY = 16  # batches

    def add(self, busy_s: float, part: float = 1.0) -> None:
        """Add a batch: a worker took ``busy_s`` seconds for this part (0 to 1) of a full batch."""
        if part <= 0:
            return
        seconds, count = max(busy_s, 1e-9) / part, self.count + 1
        self.total_s += seconds
        delta = seconds - self._mean
        self._mean += delta / count
        self._squares += delta * (seconds - self._mean)
        self.seconds += (seconds - self.seconds) / min(count, self.MEMORY)
        self.count = count  # last: another thread may ask for `per_s` meanwhile

    def forget(self, seconds: float) -> None:
        """Take ``seconds`` as the time of each batch so far. Their number and ``total_s`` stay."""
        self.seconds, self._mean, self._squares = seconds, seconds, 0.0

    def mean_since(self, before: tuple[int, float]) -> float:
        """Return the mean seconds of the batches since ``before``, the ``count`` and ``total_s`` of then; 0: there is none."""
        count, total_s = before
        return (self.total_s - total_s) / (self.count - count) if self.count > count else 0.0

    @property
    def per_s(self) -> float | None:
        """This rank's share of the full batches a second, with all workers busy; None before the first batch."""
        return self.parallel / self.seconds / self.ranks if self.count else None

    def known(self, within: float = 0.05, at_most: int = 10) -> bool:
        """True once the mean's standard error is at most ``within`` of the mean, or after ``at_most`` batches."""
        return self.count >= at_most or (self.count >= 3 and self.error <= within)

    @property
    def spread(self) -> float:
        """The standard deviation of all batches' seconds, as a part of their mean; 0 before the second batch."""
        return math.sqrt(self._squares / (self.count - 1)) / self._mean if self.count >= 2 else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean of all batches, as a part of it; infinite before the second batch."""
        if self.count < 2:
            return math.inf
        return math.sqrt(self._squares / (self.count - 1) / self.count) / self._mean


@dataclass
class Rates:
    """The rates of all sides, in full batches. They are used by an epoch and by those after it."""

    host: Rate = field(default_factory=Rate)
    devices: dict[str, Rate] = field(default_factory=dict)
    links: dict[str, Rate] = field(default_factory=dict)  # fetches of the devices' batches into this process's memory
    host_cpu: Rate = field(default_factory=Rate)  # processor time of the host's own path
    taking_cpu: dict[str, Rate] = field(default_factory=dict)  # processor time of the host to take a device's batch
    resting: set[str] = field(default_factory=set)  # devices that `auto` gives no leases at the moment
    training: Rate = field(default_factory=Rate)  # the training thread's time between two batches, for whatever work
    full_batch: int = 0  # samples of a full batch: if sizes differ, those of the largest of the first ones; 0: not known yet
    sample_bytes: int = 0  # bytes of a sample in a device's batch; 0: not known

    STEPS = 3  # of training: from so many on it is known how long a usual one takes
    PAUSE = 4.0  # an evaluation or a checkpoint between two batches counts as at most so many usual steps

    def epoch_begins(self, workers: int, full_batch: int, sample_bytes: int) -> None:
        """Set what is known of an epoch before its first batch.

        Args:
            workers: the number of the host's workers.
            full_batch: samples of a full batch; 0: not known yet, so the number of an earlier epoch stays.
            sample_bytes: bytes of a sample as a device sends it.
        """
        self.host.parallel, self.sample_bytes = workers, sample_bytes
        self.full_batch = full_batch or self.full_batch

    def first_batches(self, largest: int) -> None:
        """Take ``largest``, the samples of the largest of the first batches, as a full batch if that is not known yet."""
        self.full_batch = self.full_batch or largest

    def joined(self, name: str, workers: int) -> None:
        """Note that a device is at work, with ``workers`` workers."""
        self.device(name).parallel = workers

    def rest(self, names: Iterable[str]) -> None:
        """Let devices rest: `auto` gives them no leases."""
        self.resting.update(names)

    def work(self, names: Iterable[str] | None = None) -> None:
        """Let devices work again. None: all of them."""
        self.resting.difference_update(set(self.resting) if names is None else names)

    def shared(self, name: str, ranks: int) -> None:
        """Note that ``ranks`` ranks of a run share a device."""
        self.device(name).ranks = ranks

    def device(self, name: str) -> Rate:
        """Return the rate of one device. It is made at the first call."""
        return self.devices.setdefault(name, Rate())

    def fetched(self, name: str, seconds: float, part: float, fetchers: int, cpu_s: float = 0.0) -> None:
        """Add a fetch of a device's batch: one of ``fetchers`` threads took ``seconds`` for this part of a full batch.

        ``cpu_s``: processor seconds for that batch, with all that makes it ready; 0: not known.
        """
        if cpu_s:
            self.taking_cpu.setdefault(name, Rate()).add(cpu_s, part)
        link = self.links.setdefault(name, Rate())
        link.parallel = fetchers
        link.add(seconds, part)

    def link_s(self, name: str) -> float:
        """Return the seconds that a full batch takes to come from a device; 0 while fewer than 3 have come."""
        link = self.links.get(name)
        return 0.0 if link is None or link.count < 3 else link.seconds

    def link_per_s(self, name: str) -> float:
        """Return the full batches a second that can come from a device; infinite while fewer than 3 have come."""
        seconds = self.link_s(name)
        return self.links[name].parallel / seconds if seconds else math.inf

    def trained(self, seconds: float, part: float = 1.0) -> None:
        """Add a step of training: it took ``seconds`` with this part of a full batch.

        The first steps of a run start the accelerator. If they took more than `PAUSE` times as long, they count as usual ones.
        """
        usual = self.training
        known = usual.count >= self.STEPS
        if not known and usual.count and part > 0 and seconds * self.PAUSE < usual.seconds * part:
            usual.forget(seconds / part)
        usual.add(min(seconds, self.PAUSE * usual.seconds * part) if known else seconds, part)

    def csd_per_s(self, names: Iterable[str]) -> float | None:
        """Return the batches a second that these devices together prepare; None before the first batch of any.

        The caller names the devices, since the rates outlive an epoch, and the rate of a lost device must not count.
        """
        return self._sum((name, math.inf) for name in names)

    def arriving_per_s(self, names: Iterable[str]) -> float | None:
        """Return the same of the batches that come from these devices: a slow network may bring fewer than they prepare."""
        return self._sum((name, self.link_per_s(name)) for name in names)

    def _sum(self, limits: Iterable[tuple[str, float]]) -> float | None:
        known = [min(per_s, most) for name, most in limits
                 if name in self.devices and (per_s := self.devices[name].per_s) is not None]  # fmt: skip
        return sum(known) if known else None
