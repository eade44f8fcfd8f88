"""`ddlp bench recording`: what recording a run costs (`record=`, docs/seeing.md).

The same epoch of ImageNet's first pipeline, unrecorded, recorded, and unrecorded by another loader, by turns in one process;
training does nothing, so that an epoch is nothing but preparing. CPU time is of this process with all its threads, the
recording's own among them, and of the engine. By how much two unrecorded epochs differ is what the first ratio can't tell; on a
computer that does other things as well that is more than recording costs. So the cost of an event is
measured where it is most of what there is: by the same turns, in epochs of one-pixel batches. What a recorded epoch's events
cost by that, over the epoch's CPU time, is *recording's part*.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.data import Subset

from ddlp.bench.common import Aim, add_output, cpu_s, emit, family, ratios, rotated, say, spread
from ddlp.bench.data import add_data, dataset, ensure_data
from ddlp.bench.overhead import dataset as one_pixel
from ddlp.loader import DDLPLoader
from ddlp.observe.run import read_run
from ddlp.schedule.strategies import STRATEGIES

BOUND = 0.01
"""Recording may cost this part of an epoch."""
_TINY = 1000  # one-pixel batches of an epoch


@dataclass
class Line:
    """A strategy: seconds of each round's epoch, unrecorded, recorded, and unrecorded again."""

    strategy: str
    events: int = 0  # of a recorded epoch
    event_us: list[float] = field(default_factory=list)  # of each round of one-pixel batches
    cpu_plain: list[float] = field(default_factory=list)
    cpu_recorded: list[float] = field(default_factory=list)
    cpu_again: list[float] = field(default_factory=list)
    wall_plain: list[float] = field(default_factory=list)
    wall_recorded: list[float] = field(default_factory=list)

    @property
    def part(self) -> float:
        """Recording's part of the epoch's CPU time."""
        return statistics.median(self.event_us) * 1e-6 * self.events / statistics.median(self.cpu_plain)


@dataclass
class Result:
    """What was measured."""

    images: int
    batch: int
    workers: int
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--images", type=int, default=256, help="of an epoch (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images a batch (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="num_workers (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=["cpu", "wrr"], metavar="S", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="epochs of each kind (%(default)s)")
    add_data(parser)
    add_output(parser)


def report_parts(quick: bool) -> list[tuple[str, list[str]]]:
    """What `ddlp bench --all` runs of this bench."""
    return [("Cost of recording", ["--images", "128", "--rounds", "1"] if quick else [])]


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    wrong = [name for name in options.strategies if name not in STRATEGIES]
    if wrong or options.rounds < 1:
        print(f"ddlp bench recording: strategies are {', '.join(STRATEGIES)}; 1 round at least", file=sys.stderr)
        return 2
    result = measure(options)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace) -> Result:
    """All epochs, by turns."""
    whole: Any = dataset(ensure_data(options.data), "imagenet1")
    images = Subset(whole, range(min(options.images, len(whole))))
    result = Result(len(images), options.batch, options.workers)
    for strategy in options.strategies:
        line = Line(strategy)
        common: dict[str, Any] = dict(num_workers=options.workers, strategy=strategy, seed=0)
        (plain, recorded, again), line.events = by_turns(images, options.batch, options.rounds, common)
        line.cpu_plain, line.wall_plain = map(list, zip(*plain, strict=True))
        line.cpu_recorded, line.wall_recorded = map(list, zip(*recorded, strict=True))
        line.cpu_again = [cpu for cpu, _ in again]
        (plain, recorded, again), events = by_turns(one_pixel(_TINY), 1, options.rounds, common)
        unrecorded = [(one + other) / 2 for (one, _), (other, _) in zip(plain, again, strict=True)]
        line.event_us = [1e6 * (more - less) / events for less, (more, _) in zip(unrecorded, recorded, strict=True)]
        result.lines.append(line)
    return result


_Used = list[tuple[float, float]]  # CPU and wall seconds of each round's epoch


def by_turns(images: Any, batch: int, rounds: int, common: dict[str, Any]) -> tuple[list[_Used], int]:
    """Epochs unrecorded, recorded and unrecorded again, and how many events a recorded one has."""
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as home:
        kinds: tuple[dict[str, Any], ...] = ({}, {"record": home}, {})
        turns: list[tuple[DDLPLoader, _Used]] = [(DDLPLoader(images, batch, **common, **kind), []) for kind in kinds]
        for loader, _ in turns:
            epoch(loader)  # starts the engine, makes tables
        for number in range(rounds):
            for loader, used in rotated(turns, number):
                used.append(epoch(loader))
            (_, less), (_, more), _ = turns
            ratio = more[-1][0] / less[-1][0] - 1
            say(f"  {common['strategy']}, batches of {batch}, round {number + 1}/{rounds}: recorded {ratio:+.2%} CPU time")
        return [used for _, used in turns], len(read_run(Path(home))[-1].events)


def epoch(loader: DDLPLoader) -> tuple[float, float]:
    """Go through the same epoch as ever; returns its CPU and wall seconds."""
    loader.set_epoch(0)
    others = [pid for pid in family(os.getpid()) if pid != os.getpid()]
    began, before, own = time.monotonic(), cpu_s(others), time.process_time()
    for _ in loader:
        pass
    return time.process_time() - own + cpu_s(others) - before, time.monotonic() - began


def aims(result: Result) -> list[Aim]:
    """Under the bound."""
    return [
        Aim(f"{line.strategy}: {BOUND:.0%} over recording's part of the CPU time", 1.0, BOUND / max(line.part, 1e-9))
        for line in result.lines
    ]


def table(result: Result) -> str:
    """The figures for a person."""
    rows = [
        "",
        f"{result.images} images in batches of {result.batch}, {result.workers} worker(s); medians of the rounds' ratios "
        "(least .. most)",
        f"{'':5} {'unrecorded CPU s':>20} {'recorded more, CPU %':>22} {'again more, CPU %':>22} {'recorded, wall %':>24} "
        f"{'events':>6} {'us an event':>20} recording's part",
    ]
    for line in result.lines:
        more = [
            spread([100 * (ratio - 1) for ratio in ratios(these, those)], "+.1f")
            for these, those in (
                (line.cpu_recorded, line.cpu_plain), (line.cpu_again, line.cpu_plain), (line.wall_recorded, line.wall_plain)
            )
        ]  # fmt: skip
        rows.append(
            f"{line.strategy:5} {spread(line.cpu_plain, '.2f'):>20} {more[0]:>22} {more[1]:>22} {more[2]:>24} "
            f"{line.events:6d} {spread(line.event_us, '.1f'):>20} {line.part:16.3%}"
        )
    return "\n".join(rows)
