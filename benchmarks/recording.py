"""What recording a run costs (`record=`, docs/seeing.md).

The same epoch of ImageNet's first pipeline runs unrecorded, recorded, and unrecorded by another loader, by turns in one
process. Training does nothing, so an epoch only prepares. CPU time is that of this process, with all threads (also those that
record), and of the engine. Two unrecorded epochs differ too. On a computer that runs other programs they differ by more than
recording costs, so their difference shows how exact the first ratio is. The cost of an event is therefore measured in epochs of
one-pixel batches, by the same turns: there it is a large part of the time. *Recording's part* is this cost times the events of
a recorded epoch, divided by that epoch's CPU time.
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

from benchmarks.common import Aim, add_output, command, emit, say, spread
from benchmarks.data import add_data, dataset, ensure_data
from benchmarks.overhead import dataset as one_pixel
from ddlp.loader import DDLPLoader
from ddlp.observe.run import read_run
from ddlp.process.cores import cpu_s, family
from ddlp.schedule.strategies import STRATEGIES
from ddlp.tryout.rounds import ratios, rotated

BOUND = 0.01
"""Recording may cost this part of an epoch's CPU time."""
_TINY = 1000  # number of one-pixel batches in an epoch


@dataclass
class Line:
    """A strategy: seconds of an epoch in each round, unrecorded, recorded, and unrecorded again."""

    strategy: str
    events: int = 0  # number of events in a recorded epoch
    event_us: list[float] = field(default_factory=list)  # microseconds an event, in each round of one-pixel batches
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
    """Add the command's options."""
    parser.add_argument("--images", type=int, default=256, help="images of an epoch (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="num_workers (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=["cpu", "wrr"], metavar="S", help="strategies (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="epochs of each kind (%(default)s)")
    add_data(parser)
    add_output(parser)


def report_parts(quick: bool) -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    return [("Cost of recording", ["--images", "128", "--rounds", "1"] if quick else [])]


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    wrong = [name for name in options.strategies if name not in STRATEGIES]
    if wrong or options.rounds < 1:
        print(f"python -m benchmarks.recording: strategies are {', '.join(STRATEGIES)}; give 1 round at least", file=sys.stderr)
        return 2
    result = measure(options)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace) -> Result:
    """Measure all epochs, by turns."""
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
    """Run epochs unrecorded, recorded and unrecorded again. Return their times, and the number of events in a recorded one."""
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
    """Run an epoch, always the same one. Return its CPU and wall seconds."""
    loader.set_epoch(0)
    others = [pid for pid in family(os.getpid()) if pid != os.getpid()]
    began, before, own = time.monotonic(), cpu_s(others), time.process_time()
    for _ in loader:
        pass
    return time.process_time() - own + cpu_s(others) - before, time.monotonic() - began


def aims(result: Result) -> list[Aim]:
    """Return the aims: recording costs less than the bound."""
    return [
        Aim(f"{line.strategy}: {BOUND:.0%} over recording's part of the CPU time", 1.0, BOUND / max(line.part, 1e-9))
        for line in result.lines
    ]


def table(result: Result) -> str:
    """Return the figures as a table of text."""
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


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
