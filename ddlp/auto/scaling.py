"""How many engines a pool should have, from what windows of batches have shown: `Scaler`. It is pure.

The number follows from rates first. n engines like the measured ones do what `ddlp.auto.decide.estimate` predicts, with
what taking their batches costs the host (Ocycle): batches a second are r_cpu (1 - Ocycle/Pcycle x r_off / r_cpu) + r_off, at
most one in each training step. Then windows verify it, as Cachew does (Graur et al., USENIX ATC 2022, section 4.3). What a
window contradicts is explained by a limit that all engines share, or by slower engines, whichever fits all windows better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ddlp.auto.decide import estimate, path_limit
from ddlp.auto.measured import Measured, OffloadPath

__all__ = ["FULL", "GAIN", "Scaler"]

GAIN = 0.03  # part of a batch's time: engines that all together bring less are given back
WAITS = 0.02  # part of a training step: if it waits less, it counts as not waiting
FULL = 3  # windows in a row in which training did not wait, before fewer engines are tried
GROWTH = 3  # times as many engines at once, at most: what they share may be too narrow for all that rates ask for
MOVED = 0.10  # a step or host that has changed by this part: nothing seen before counts any more
REMEMBERED = 6  # a mean is that of about so many windows
CONTRADICTS = 0.05  # part by which a batch may take longer than predicted: times vary, and few batches are ready in advance
LIMITED = 0.85  # if engines bring so much of what their rates promise, nothing that they share limits them
HELD_UP = 0.05  # engines that are slower by this part than fewer engines were hold each other up

Seconds = Callable[[int], float]


@dataclass
class _Mean:
    """A mean over windows, each with a weight."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        share = max(weight / (self.weight + weight), 1 / REMEMBERED)
        self.value, self.weight = self.value + share * (value - self.value), self.weight + weight

    def moved(self, value: float, least: float = 0.0) -> bool:
        return self.weight > 0 and abs(value - self.value) > max(MOVED * self.value, least)


@dataclass
class Scaler:
    """Takes the figures of windows, and says how many engines a pool should have.

    Each rank of a job has one. All are given the same windows, those of the slowest rank (`ddlp.auto.agreement`), and so
    come to the same number.

    Attributes:
        least: number of engines at least, 0 or more.
        most: number of engines at most.
        engines: how many there should be.
        why: the reason for the last change; empty: there was none.

    Raises ValueError if the numbers contradict each other.
    """

    least: int
    most: int
    engines: int = 0
    why: str = ""
    _step: _Mean = field(default_factory=_Mean)  # seconds of a training step
    _alone: _Mean = field(default_factory=_Mean)  # seconds a batch of the host alone
    _making: _Mean = field(default_factory=_Mean)  # processor seconds of the host to make a batch (Pcycle)
    _taking: _Mean = field(default_factory=_Mean)  # processor seconds of the host to take one (Ocycle)
    _rates: dict[int, _Mean] = field(default_factory=dict)  # batches a second of each engine, by how many there were
    _seen: dict[int, _Mean] = field(default_factory=dict)  # seconds a batch, by how many there were
    _full: int = 0  # windows in a row in which training did not wait
    _before: int | None = None  # the number before the last change, until a window has shown what came of it
    _high: int | None = None  # more engines have brought too little
    _low: int = 0  # with fewer engines batches took longer

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise ValueError(f"Scaler: least={self.least}, most={self.most}; give 0 <= least <= most, and most of at least 1")
        self.engines = max(self.least, min(self.engines, self.most))

    def window(self, engines: int, batch_s: float, measured: Measured) -> int:
        """Note a window, and return how many engines there should be.

        Args:
            engines: that took part from its beginning to its end. Nothing changes while that is another number than wanted.
            batch_s: seconds a full batch, waiting and training step.
            measured: the step, the host's rate alone, and a path for each engine, as this window has shown them.
        """
        alone = measured.host_batches_per_s
        if measured.step_s is None or alone is None or not batch_s:
            return self.engines
        if self._step.moved(measured.step_s, GAIN * batch_s) or self._alone.moved(1 / alone):
            self._forget()
        self._step.add(measured.step_s)
        self._alone.add(1 / alone)
        seen = self._seen.setdefault(engines, _Mean())
        seen.add(batch_s)
        if engines and measured.paths:
            rates = [path_limit(path)[0] for path in measured.paths]
            self._rates.setdefault(engines, _Mean()).add(sum(rates) / len(rates), sum(rates) * batch_s)
            taking = [path.host_cpu_s_per_batch for path in measured.paths if path.host_cpu_s_per_batch is not None]
            if taking and measured.host_cpu_s_per_batch is not None:
                self._taking.add(sum(taking) / len(taking))
                self._making.add(measured.host_cpu_s_per_batch)
        if engines != self.engines:
            return self.engines
        waits = seen.value > (1 + WAITS) * self._step.value
        self._full = self._full + 1 if batch_s <= (1 + WAITS) * self._step.value else 0
        if self._verified():
            self._adjust(waits, measured)
        return self.engines

    def give_back(self) -> bool:
        """Give back all engines that may be, as batches took longer with them. Returns whether that changes anything."""
        before = self.engines
        self._forget()
        self._change(self.least, "with engines batches took longer than without")
        return self.engines != before

    def _forget(self) -> None:
        self._step, self._alone, self._making, self._taking = _Mean(), _Mean(), _Mean(), _Mean()
        self._seen.clear()
        self._before, self._high, self._low = None, None, 0

    def _verified(self) -> bool:
        """Take the last change back if there are fewer engines and batches take longer. False: so it was.

        Whether more engines have brought enough, `_adjust` sees: if not, fewer are wanted.
        """
        before, now, self._before = self._before, self.engines, None
        if before is None or before < now or before not in self._seen:
            return True
        longer = self._seen[now].value / self._seen[before].value - 1
        if longer <= GAIN:
            return True
        self._low, self._high = before, None
        self._change(before, f"with {now} engines instead of {before} a batch took {longer:.0%} longer")
        return False

    def _adjust(self, waits: bool, measured: Measured) -> None:
        now, step_s = self.engines, self._step.value
        if not self._rates:
            if waits and not measured.paths and self._seen[now].value > (1 + GAIN) * step_s:
                self._change(max(1, now), "training waits for the host alone, and no engine has been measured")
            return
        high = self.most if self._high is None else min(self.most, self._high)
        numbers = range(max(self.least, min(self._low, high)), high + 1)
        seconds = dict(zip(numbers, map(self._fitted(measured), numbers), strict=True))
        wanted = next(count for count in numbers if seconds[count] <= (1 + GAIN) * min(seconds.values()))
        if wanted > now and waits:
            wanted = min(wanted, max(GROWTH, GROWTH * now))
            self._change(wanted, f"a batch takes {self._seen[now].value:.3g} s, with {wanted} engines {seconds[wanted]:.3g} s")
        elif wanted < now and waits:
            self._high = now - 1
            self._change(wanted, f"more than {wanted} engines bring less than {GAIN:.0%}")
        elif self._full >= FULL:
            fewer = next((count for count in numbers if seconds[count] <= (1 + WAITS) * step_s), now)
            if fewer < now:
                self._change(fewer, f"with {fewer} engines training waits less than {WAITS:.0%}")

    def _change(self, engines: int, why: str) -> None:
        if engines != self.engines:
            self._before, self.engines, self.why, self._full = self.engines, engines, why, 0

    # -- what so many engines would do -----------------------------------------------------------------------------

    def _fitted(self, measured: Measured) -> Seconds:
        """Return the seconds a batch with so many engines, by the model that fits best; where it does not fit, those seen."""
        rate = self._rate()
        path = OffloadPath("", rate)
        if measured.paths:
            path = replace(measured.paths[0], spool_bytes=None, bandwidth_bytes_per_s=None)
        now = replace(measured, step_s=self._step.value, host_batches_per_s=1 / self._alone.value)
        if self._taking.weight:
            path = replace(path, host_cpu_s_per_batch=self._taking.value)
            now = replace(now, host_cpu_s_per_batch=self._making.value)
        size = path.bytes_per_batch or 1.0

        def model(times: float = 1.0, together: float = math.inf, step_s: float = now.step_s or 0.0) -> Seconds:
            """Engines are so many times as fast, and all of them together make so many batches a second at most."""
            engine = replace(path, bytes_per_batch=size, batches_per_s=rate * times)
            limit = None if math.isinf(together) else together * size

            def seconds(count: int) -> float:
                paths = tuple(replace(engine, source=f"engine {number}") for number in range(count))
                return estimate(replace(now, step_s=step_s, transfer_bytes_per_s=limit, paths=paths), paths).value("time")

            return seconds

        plain, unhurried = model(), model(step_s=1e-9)  # the second one: if training took no time
        over = {count: mean.value / plain(count) for count, mean in self._seen.items() if count}
        worst = max(over, key=lambda count: over[count], default=0)
        best = plain
        if worst and over[worst] > 1 + CONTRADICTS:
            best = slower = _solved(model, worst, self._seen[worst].value)
            promised, brought = (1 / batch_s - 1 / self._alone.value for batch_s in (unhurried(worst), self._seen[worst].value))
            if worst > 1 and brought < LIMITED * promised:
                shared = _solved(lambda part: model(together=part * worst * rate), worst, self._seen[worst].value)
                best = min((shared, slower), key=lambda curve: self._misfit(curve, over))

        def seconds(count: int) -> float:
            seen = self._seen.get(count)
            return best(count) if seen is None or abs(seen.value / best(count) - 1) <= CONTRADICTS else seen.value

        return seconds

    def _misfit(self, seconds: Seconds, counts: Iterable[int]) -> float:
        return round(max(abs(math.log(self._seen[count].value / seconds(count))) for count in counts), 3)

    def _rate(self) -> float:
        """Return the batches a second of an engine that is not held up by others."""
        fastest = max(mean.value for mean in self._rates.values())
        free = [mean for mean in self._rates.values() if mean.value >= (1 - HELD_UP) * fastest]
        return sum(mean.value * mean.weight for mean in free) / sum(mean.weight for mean in free)


def _solved(model: Callable[[float], Seconds], count: int, seen_s: float) -> Seconds:
    """Return the model with which a batch takes as long as it was seen to. What it is given, 0 to 1, makes it faster."""
    low, high = 0.01, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if model(middle)(count) > seen_s else (low, middle)
    return model(high)
