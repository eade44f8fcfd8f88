"""What `cache="auto"` and `strategy="auto"` decide side by side, beside all fixed set-ups, in simulated time.

The loader's own ledger, strategies, controller and rule of the cache play random workloads: some epochs of a host with one
worker, one to four sources, a training step, and something that can be kept of each sample. Fixed set-ups: with and without
sources, with and without a cache, and with a cache and sources that wait until it is full. Not played: several jobs, and what
taking a source's batches costs the host.

    python -m scripts.controller_play --workloads 300        # six minutes

A workload's best set-up is that of the least time of all epochs together. All follows from the seed.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from ddlp.planning.cache_point import OFF, SampleCost, best_point
from ddlp.planning.controller import Controller
from ddlp.planning.simulate import Simulation, World
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES
from scripts.markdown import markdown_table

BATCHES = 300  # of an epoch
PLAIN_S = 0.01  # a batch by the host, from its files
TAKING = 0.01  # of that, the processor time that taking a source's batch costs the host
NOISE = 0.05  # of each time
RIGHT = 1.03
POINTS = {"prefix": (1.1, 0.09), "pixels": (2.0, 0.23)}  # times as long as from files: kept, and later
FIXED = ("host alone", "with sources", "with cache", "with both", "cache first")
WAYS = (*FIXED, "auto")
EPOCHS = (3, 10, 30)


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
        point: a name of `POINTS`: what can be kept.
        fill, cached: times as long as from its files, a batch that is kept takes, and one that comes from the cache.
        room: the part of the batches that can be kept.
        step_s: of training.
        sources: seconds of a batch, of each.
        epochs: how many.
    """

    point: str
    fill: float
    cached: float
    room: float
    step_s: float
    sources: tuple[float, ...]
    epochs: int


def drawn(rng: random.Random) -> Workload:
    """Draw a workload."""

    def about(value: float, factor: float) -> float:  # log-uniform
        return value * math.exp(rng.uniform(-1, 1) * math.log(factor))

    point = rng.choice(tuple(POINTS))
    fill, cached = (about(times, 1.2) for times in POINTS[point])
    room = rng.uniform(0.1, 0.6) if point == "pixels" and rng.random() < 0.5 else 1.0
    step_s = 0.0 if rng.random() < 0.3 else about(0.4 * PLAIN_S, 6)
    sources = tuple(about(PLAIN_S, 5) for _ in range(rng.choice((1, 1, 2, 4))))
    return Workload(point, max(1.0, fill), min(1.0, cached), room, step_s, sources, rng.choice(EPOCHS))


@dataclass
class Played:
    """One workload with one set-up.

    Attributes:
        workload: what is trained.
        rng: of all times.
        keeps: whether a batch may be kept now.
        kept: what of the data set is.
    """

    workload: Workload
    rng: random.Random
    keeps: Callable[[], bool]
    controller: Controller | None = None
    kept: set[int] = field(default_factory=set)

    def epoch(self, strategy: str) -> float:
        """Play an epoch; return its seconds."""
        what, order = self.workload, list(range(BATCHES))
        self.rng.shuffle(order)

        def about(seconds: float) -> float:
            return seconds * max(0.05, self.rng.gauss(1.0, NOISE))

        def host_s(position: int) -> float:
            batch = order[position]
            if batch in self.kept:
                return about(PLAIN_S * what.cached)
            if len(self.kept) < what.room * BATCHES and self.keeps():
                self.kept.add(batch)
                return about(PLAIN_S * what.fill)
            return about(PLAIN_S)

        def source_s(seconds: float) -> Callable[[int], float]:
            return lambda position: about(seconds)

        world = World(
            host_s=host_s, train_s=lambda position: about(what.step_s), quota=8, fetch_s=lambda position: 1e-4,
            host_cpu_s=lambda position: self.host_s, taking_cpu_s=TAKING * PLAIN_S,
            device_s={f"source {number}": source_s(seconds) for number, seconds in enumerate(what.sources)},
        )  # fmt: skip
        ledger = Ledger(BATCHES, host_slots=4, fetch_slots=3)
        return Simulation(ledger, world, STRATEGIES[strategy].make, controller=self.controller).run().seconds

    @property
    def full(self) -> bool:
        """Whether the cache has all that it has room for."""
        return len(self.kept) >= int(self.workload.room * BATCHES)

    @property
    def host_s(self) -> float:
        """Seconds of a batch by the host now."""
        return PLAIN_S * (1 + len(self.kept) / BATCHES * (self.workload.cached - 1))


def seconds_of(workload: Workload, way: str, seed: int) -> float:
    """Return the seconds of all epochs of one set-up, a name of `WAYS`."""
    rng = random.Random(seed)
    if way == "auto":
        chosen = workload.point
        if chosen != "prefix":  # which is kept without a question
            cost = SampleCost(workload.fill * PLAIN_S, workload.cached * PLAIN_S, 1.0)
            chosen = best_point(PLAIN_S, {chosen: cost}, BATCHES, int(workload.room * BATCHES), workload.epochs)
        controller = Controller(Rates(), processors=2.0)
        played = Played(workload, rng, lambda: chosen != OFF and played.host_s > workload.step_s, controller)
        return sum(played.epoch("auto") for _ in range(workload.epochs))
    cache, sources = way in ("with cache", "with both", "cache first"), way in ("with sources", "with both")
    played = Played(workload, rng, lambda: cache)
    taken = 0.0
    for _ in range(workload.epochs):
        taken += played.epoch("wrr" if sources or (way == "cache first" and played.full) else "cpu")
    return taken


def part_of_best(times: dict[str, float], way: str = "auto") -> float:
    """Return a way's time as a part of the best fixed set-up's. ``times``: the seconds of each of `WAYS`."""
    return times[way] / min(times[one] for one in FIXED)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=300, help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="(default %(default)s)")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="the N workloads in which auto is worst as well")
    options = parser.parse_args()
    seeds, rows = random.Random(options.seed), []
    for _ in range(options.workloads):
        seed = seeds.getrandbits(40)
        workload = drawn(random.Random(seed))
        rows.append((workload, {way: seconds_of(workload, way, seed) for way in WAYS}))
    lines = []
    for epochs in (*EPOCHS, None):
        chosen = [times for workload, times in rows if epochs in (None, workload.epochs)]
        if not chosen:
            continue
        parts = {way: sorted(part_of_best(times, way) for times in chosen) for way in WAYS}
        figures = [f"{statistics.median(found):.2f}, {found[int(0.9 * len(found))]:.2f}" for found in parts.values()]
        right = sum(part <= RIGHT for part in parts["auto"]) / len(chosen)
        name = "all" if epochs is None else str(epochs)
        lines.append([name, str(len(chosen)), *figures, f"{parts['auto'][-1]:.2f}", f"{right:.0%}"])
    head = ["epochs", "workloads", *WAYS, "auto at worst", "within 3 %"]
    print("Times as a part of the best fixed set-up's: the median, and the ninth of ten.\n")
    print(markdown_table(head, lines))
    rows.sort(key=lambda row: -part_of_best(row[1]))
    for workload, times in rows[: options.show]:
        print(workload, {way: round(taken, 2) for way, taken in times.items()})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
