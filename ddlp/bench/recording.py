"""`ddlp bench recording`: what recording a run costs (`record=`, docs/seeing.md).

The same epoch of ImageNet's first pipeline, recorded and not, by turns in one process; training does nothing, so that an epoch
is nothing but preparing. CPU time is of this process with all its threads, the recording's own among them, and of the engine.
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
from ddlp.loader import DDLPLoader
from ddlp.observe.run import read_run
from ddlp.strategies import STRATEGIES

BOUND = 0.01
"""Recording may cost this part of an epoch."""


@dataclass
class Line:
    """A strategy: seconds of each round's epoch, unrecorded and recorded."""

    strategy: str
    events: int = 0  # of a recorded epoch
    cpu_plain: list[float] = field(default_factory=list)
    cpu_recorded: list[float] = field(default_factory=list)
    wall_plain: list[float] = field(default_factory=list)
    wall_recorded: list[float] = field(default_factory=list)


@dataclass
class Result:
    """What was measured."""

    images: int
    batch: int
    workers: int
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--images", type=int, default=640, help="of an epoch (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images a batch (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="num_workers (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=["cpu", "wrr"], metavar="S", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="epochs of each kind (%(default)s)")
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
        with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as home:
            line = Line(strategy)
            common: dict[str, Any] = dict(num_workers=options.workers, strategy=strategy, seed=0)
            plain: DDLPLoader = DDLPLoader(images, options.batch, **common)
            recorded: DDLPLoader = DDLPLoader(images, options.batch, record=home, **common)
            turns = [(plain, line.cpu_plain, line.wall_plain), (recorded, line.cpu_recorded, line.wall_recorded)]
            for loader, _, _ in turns:
                epoch(loader)  # starts the engine, makes tables
            for number in range(options.rounds):
                for loader, cpu, wall in rotated(turns, number):
                    used = epoch(loader)
                    cpu.append(used[0])
                    wall.append(used[1])
                more = line.cpu_recorded[-1] / line.cpu_plain[-1] - 1
                say(f"  {strategy} round {number + 1}/{options.rounds}: recorded {more:+.2%} CPU time")
            line.events = len(read_run(Path(home))[-1].events)
        result.lines.append(line)
    return result


def epoch(loader: DDLPLoader) -> tuple[float, float]:
    """Go through the same epoch as ever; returns its CPU and wall seconds."""
    loader.set_epoch(0)
    others = [pid for pid in family(os.getpid()) if pid != os.getpid()]
    began, before, own = time.monotonic(), cpu_s(others), time.process_time()
    for _ in loader:
        pass
    return time.process_time() - own + cpu_s(others) - before, time.monotonic() - began


def aims(result: Result) -> list[Aim]:
    """Under the bound, by the median of the rounds."""
    return [
        Aim(
            f"{line.strategy}: CPU time unrecorded over recorded", 1 / (1 + BOUND),
            1 / statistics.median(ratios(line.cpu_recorded, line.cpu_plain)),
        )
        for line in result.lines
    ]  # fmt: skip


def table(result: Result) -> str:
    """The figures for a person."""
    rows = [
        "",
        f"{result.images} images in batches of {result.batch}, {result.workers} worker(s); medians of the rounds' ratios "
        "(least .. most)",
        f"{'':8} {'events':>7} {'unrecorded CPU s':>24} {'recorded more, CPU %':>28} {'wall %':>28}",
    ]
    for line in result.lines:
        cpu, wall = (
            [100 * (ratio - 1) for ratio in ratios(recorded, plain)]
            for recorded, plain in ((line.cpu_recorded, line.cpu_plain), (line.wall_recorded, line.wall_plain))
        )
        rows.append(
            f"{line.strategy:8} {line.events:7d} {spread(line.cpu_plain, '.3f'):>24} {spread(cpu, '+.2f'):>28} "
            f"{spread(wall, '+.2f'):>28}"
        )
    return "\n".join(rows)
