"""How many engines a pool has: ddlp's rule beside Cachew's and an 80 %-CPU rule, on random workloads with noisy batches.

    python -m benchmarks.papers.scaling --seed 0 --workloads 1000      # half an hour

Each rule starts with a cold pool and decides while an epoch is played by the loader's ledger and strategies, with engines that
take a while to start and finish what they have before they leave. No time is measured: the figures follow from the seed.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from benchmarks.papers.rules import CACHEW_PAPER, CachewScaling
from ddlp.auto.agreement import WindowFigures
from ddlp.auto.controller import PAUSE, WINDOW, Controller
from ddlp.auto.decide import Goal, estimate
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.auto.scaling import GAIN, Scaler
from ddlp.observe.play import play_epoch
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.simulate import Decides, Outcome, Simulation, World
from ddlp.schedule.strategies import Strategy
from ddlp.schedule.strategies.auto import Auto

__all__ = ["MOST", "RULES", "WINDOWS", "ByWindows", "Pool", "Scaled", "compare", "least_engines", "random_pool", "table"]

MOST = 16  # engines of a pool
WINDOWS = 6  # after so many windows a rule should be there
TARGET = 0.8  # of the engines' processors in use: Kubernetes' HorizontalPodAutoscaler in Cachew's comparison
TOLERANCE = 0.1  # from the target, in which that one changes nothing: its default
ROOM = 4  # batches in an engine's spool
NOISE = 0.05  # relative spread of a batch's time


def random_pool(rng: random.Random) -> tuple[Measured, int, float]:
    """Draw the true figures of a workload with a pool of 16 engines, the host's workers, and an engine's seconds to start.

    The host makes 0.1 to 1.5 batches in the time of a training step, an engine 0.04 to 1. Taking a batch costs 2 to 60 % of
    making it, one time in ten more than making it. One host in two has no processor free. One time in five all engines together
    are limited, by a disk or a network, to a rate that nobody knows.
    """

    def between(low: float, high: float) -> float:  # log-uniform
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    step_s = between(0.01, 1.0)
    host = between(0.1, 1.5) / step_s
    busy = rng.choice((1, 2, 4))
    processors = busy + 1 + (busy * rng.uniform(0.1, 2.0) if rng.random() < 0.5 else 0.0)
    p_cycle, rate, size = busy / host, between(0.04, 1.0) / step_s, 1e6
    taking = rng.uniform(0.02, 0.6) * (4.0 if rng.random() < 0.1 else 1.0)
    together = rate * rng.uniform(1.0, 6.0) if rng.random() < 0.2 else None
    path = OffloadPath(
        "", batches_per_s=rate, host_cpu_s_per_batch=taking * p_cycle, bytes_per_batch=size,
        spool_bytes=(ROOM + 0.5) * size,
    )  # fmt: skip
    paths = tuple(replace(path, source=f"engine {number}") for number in range(MOST))
    limit = None if together is None else together * size
    return Measured(step_s, host, p_cycle, processors, limit, paths=paths), busy, rng.uniform(2.0, 30.0) * step_s


def least_engines(truth: Measured) -> tuple[int, float]:
    """Return the least number of engines with which a batch takes at most 1.03 of the best time, and the seconds it takes."""
    times = [estimate(truth, truth.paths[:count]).value("time") for count in range(len(truth.paths) + 1)]
    count = next(count for count, seconds in enumerate(times) if seconds <= (1 + GAIN) * min(times))
    return count, times[count]


class Pool(Simulation):
    """An epoch whose devices are engines of a pool: they are there only while they are wanted, the first ones first.

    Attributes:
        engine_s: seconds of all engines, from the wish for one until it has left.
    """

    def __init__(
        self, ledger: Ledger, world: World, make: Callable[[Ledger, Rates], Strategy], *, starts_s: float = 0.0,
        stop_after: int | None = None, controller: Decides | None = None,
    ) -> None:  # fmt: skip
        self.engine_s, self._starts_s = 0.0, starts_s
        self._wanted: dict[str, float] = {}  # engines that are there or starting, and since when
        self._wants: frozenset[str] = frozenset()  # those that there should be
        super().__init__(ledger, world, make, stop_after=stop_after, controller=controller)

    def run(self) -> Outcome:
        """Play the epoch."""
        outcome = super().run()
        self.engine_s += sum(self.now - since for since in self._wanted.values())
        return outcome

    def want(self, engines: int) -> None:
        """Let so many engines be there. Further ones start; those too many retire."""
        pool = list(self.world.device_s)
        self._wants = frozenset(pool[:engines])
        for name in pool[:engines]:
            if name not in self._wanted:
                self._wanted[name] = self.now
                self._there.append(name)
                self._start(name)
        for name in sorted(self._wanted.keys() - self._wants):
            if self.ledger.devices[name].alive:
                self._retire(name, True)
            else:
                self._die(name)

    def _at_first(self) -> list[str]:
        return []

    def _start(self, name: str) -> None:
        since = self._wanted[name]

        def started() -> None:
            if self._wanted.get(name) == since:
                self._lives[name] += 1
                self._device_idle[name] = self._workers(name)
                self._join(name)

        self._dead.discard(name)
        self.ledger.expect(name, self.now)
        self._at(self._starts_s, started)

    def _drain(self) -> None:
        retired = [name for name, account in self.ledger.devices.items() if account.has_retired]
        super()._drain()
        for name in retired:
            if name in self._wants:
                self._start(name)  # it is wanted again

    def _die(self, name: str) -> None:
        super()._die(name)
        if name in self._wanted and name not in self._wants:
            self._there.remove(name)
            self.engine_s += self.now - self._wanted.pop(name)


@dataclass
class ByWindows:
    """Measures windows, and lets a rule say after each how many engines there should be.

    A window begins once all engines that are wanted are there, and a pause later.

    Attributes:
        rule: takes seconds a batch, batches ready in the mean, and the used part of the engines' time; returns a number.
        engines: how many there should be.
        counts: the numbers after each window.
    """

    rule: Callable[[float, float, float], int]
    engines: int = 1
    rates: Rates = field(default_factory=Rates)
    want: Callable[[int], None] = lambda engines: None
    counts: list[int] = field(default_factory=list)
    _ledger: Ledger | None = None
    _batches: int = -PAUSE
    _seconds: float = 0.0
    _ready: int = 0
    _busy_s: float = 0.0

    def asks(self, want: Callable[[int], None]) -> None:
        """Take what asks the pool for so many engines."""
        self.want = want

    def begin(self, ledger: Ledger) -> None:
        """Begin an epoch."""
        self._ledger = ledger

    def delivered(self, waited_s: float, step_s: float | None, part: float) -> str | None:
        """Note a batch."""
        assert self._ledger is not None
        there = sum(account.alive for account in self._ledger.devices.values())
        if there != self.engines:
            self._batches = -PAUSE
            return None
        self._batches += 1
        if self._batches <= 0:
            self._seconds, self._ready, self._busy_s = 0.0, 0, self._made_s()
            return None
        self._seconds += waited_s + (step_s or 0.0)
        self._ready += len(self._ledger.ready_host) + len(self._ledger.ready_csd) + len(self._ledger.in_spool)
        if self._batches == WINDOW:
            used = (self._made_s() - self._busy_s) / self._seconds / max(1, there)
            before, self.engines = self.engines, self.rule(self._seconds / WINDOW, self._ready / WINDOW, used)
            self.counts.append(self.engines)
            self._batches = 0 if self.engines == before else -PAUSE
            self._seconds, self._ready, self._busy_s = 0.0, 0, self._made_s()
            if self.engines != before:
                self.want(self.engines)
        return None

    def _made_s(self) -> float:
        return sum(rate.total_s for rate in self.rates.devices.values())


class _Ours(Controller):
    """ddlp's controller. It notes the number of engines after each window, as `ByWindows` does."""

    counts: list[int]

    def _scale(self, window: WindowFigures) -> None:
        super()._scale(window)
        self.counts.append(self.engines)


def _ours(truth: Measured) -> _Ours:
    controller = _Ours(Rates(), Goal(), truth.host_processors, scaler=Scaler(0, MOST))
    controller.counts = []
    return controller


def _cachew() -> ByWindows:
    scaling = CachewScaling(CACHEW_PAPER, MOST)

    def after(batch_s: float, ready: float, used: float) -> int:
        scaling.window(batch_s, ready)
        return scaling.workers

    return ByWindows(after)


def _by_cpu() -> ByWindows:
    def after(batch_s: float, ready: float, used: float) -> int:
        if abs(used / TARGET - 1) <= TOLERANCE:
            return watch.engines
        return max(1, min(MOST, math.ceil(watch.engines * used / TARGET)))

    watch = ByWindows(after)
    return watch


RULES: dict[str, Callable[[Measured], _Ours | ByWindows]] = {
    "ddlp": _ours,
    "Cachew": lambda truth: _cachew(),
    "80 % CPU (HPA)": lambda truth: _by_cpu(),
}


@dataclass(frozen=True)
class Scaled:
    """What one rule did with one workload. Times are training steps a batch.

    Attributes:
        rule: its name in `RULES`.
        engines: how many there should be, by the oracle.
        counts: how many the rule wanted after each window.
        time: of the whole epoch, from its beginning.
        engine_time: of all engines together, each from the wish for it until it has left.
        best_time: that of the oracle's number, from the beginning to the end.
        hidden: all engines together have a limit.
    """

    rule: str
    engines: int
    counts: tuple[int, ...]
    time: float
    engine_time: float
    best_time: float
    hidden: bool

    @property
    def off(self) -> int:
        """By how many engines it is off after `WINDOWS` windows."""
        return abs(self.counts[:WINDOWS][-1] - self.engines)


def compare(
    rng: random.Random, count: int, *, batches: int = 1000, rules: Collection[str] = RULES
) -> Iterator[Scaled]:
    """Draw so many workloads. Yield for each what every rule does in the first batches of an epoch."""
    for seed in [rng.getrandbits(64) for _ in range(count)]:
        truth, workers, starts_s = random_pool(random.Random(seed))
        assert truth.step_s is not None
        engines, best_s = least_engines(truth)
        for name in rules:
            own, rule = random.Random(seed), RULES[name](truth)

            def about(seconds: float, own: random.Random = own) -> float:
                return seconds * max(0.01, own.gauss(1.0, NOISE))

            pools: list[Pool] = []

            def cold(
                ledger: Ledger, world: World, make: Callable[[Ledger, Rates], Strategy], rule: _Ours | ByWindows = rule,
                starts_s: float = starts_s, pools: list[Pool] = pools,
            ) -> Simulation:  # fmt: skip
                world.progress = ()  # it is quicker so
                pools.append(Pool(ledger, world, make, starts_s=starts_s, stop_after=batches, controller=rule))
                rule.asks(pools[0].want)
                pools[0].want(rule.engines)
                return pools[0]

            played = play_epoch(
                truth, truth.paths, Auto, batches=2 * batches, workers=workers, about=about, room=ROOM, known=False,
                simulation_of=cold,
            )  # fmt: skip
            unit_s = batches * truth.step_s
            yield Scaled(
                name, engines, tuple(rule.counts), played.seconds / unit_s, pools[0].engine_s / unit_s, best_s / truth.step_s,
                truth.transfer_bytes_per_s is not None,
            )  # fmt: skip


def table(rows: Sequence[Scaled]) -> str:
    """Return `compare`'s rows as a Markdown table, a line for each rule. Times of all workloads count alike, in steps."""
    lines = [
        f"| rule | exact after {WINDOWS} windows | within one | at worst off by | engine time, times the oracle's "
        "| time, times the best | engine time, times ddlp's |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ours = [row.engine_time for row in rows if row.rule == "ddlp"]
    for rule in dict.fromkeys(row.rule for row in rows):
        its = [row for row in rows if row.rule == rule]
        engine_time = fmean(row.engine_time for row in its)
        beside = f"{engine_time / fmean(ours):.2f}" if ours else "-"
        lines.append(
            f"| {rule} | {fmean(row.off == 0 for row in its):.1%} | {fmean(row.off <= 1 for row in its):.1%} "
            f"| {max(row.off for row in its)} | {engine_time / fmean(row.engines * row.best_time for row in its):.2f} "
            f"| {fmean(row.time / row.best_time for row in its):.3f} | {beside} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random workloads (default 0)")
    parser.add_argument("--workloads", type=int, default=1000, help="number of workloads (default 1000)")
    parser.add_argument("--batches", type=int, default=1000, help="batches of an epoch (default 1000)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="rules to try (default: all)")
    given = parser.parse_args()
    rows = list(compare(random.Random(given.seed), given.workloads, batches=given.batches, rules=given.rules))
    print(f"{given.workloads} workloads\n\n{table(rows)}")
    for hidden, what in ((False, "nothing limits all engines together"), (True, "all engines together have a limit")):
        some = [row for row in rows if row.hidden == hidden]
        print(f"\n{what}: {sum(row.rule == some[0].rule for row in some)} workloads\n\n{table(some)}")


if __name__ == "__main__":
    main()
