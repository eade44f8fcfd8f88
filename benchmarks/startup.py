"""Time from the loader's construction to its first batch, against DataLoader with the same workers.

One data set is small, the other has as many files as ImageNet: a list of (path, class) pairs in memory. Each path is a string
of its own, but the paths repeat those of few real files. Every turn is a fresh process, which imports everything before the
clock starts.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Aim, add_output, alternate, child, command, emit, say, spread, two_cpus
from benchmarks.data import MEANS_KB, add_data, ensure_data
from ddlp.process.cores import ran_on
from ddlp.tryout.rounds import ratios

PEER = "DataLoader"
STRATEGIES = {"DDLPLoader, cpu": "cpu", "DDLPLoader, wrr": "wrr"}
SIZES = {"small": 2_000, "ImageNet's size": 1_281_167}


@dataclass
class Line:
    """One contender: seconds to the first batch, and the megabytes (1e6 bytes) by which its process has grown by then."""

    data: str
    workers: int
    name: str
    seconds: list[float] = field(default_factory=list)
    grown_mb: list[float] = field(default_factory=list)


@dataclass
class Result:
    """All contenders."""

    batch: int
    lines: list[Line] = field(default_factory=list)

    def earlier(self, line: Line) -> list[float]:
        """Return DataLoader's time divided by this contender's, round by round."""
        peer = next(other for other in self.lines if (other.data, other.workers, other.name) == (line.data, line.workers, PEER))
        return ratios(peer.seconds, line.seconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_data(parser)
    parser.add_argument("--batch", type=int, default=64, help="batch size (%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="num_workers (0 1 2)")
    parser.add_argument("--sizes", choices=list(SIZES), nargs="+", default=list(SIZES), help="data sets (both)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    directory = ensure_data(options.data, "imagenet1", MEANS_KB[0])
    result = measure(options, directory)
    ours = [line for line in result.lines if line.name != PEER]
    aims = [
        Aim(f"{PEER} / {line.name}, {line.data} data set, {line.workers} workers", 1.0, statistics.median(result.earlier(line)))
        for line in ours
    ]
    emit(options, result, table(result), aims)
    return 0


def measure(options: argparse.Namespace, directory: Path) -> Result:
    """Measure all rounds. Contenders with the same data set and workers take turns."""
    cpus = two_cpus()
    result = Result(options.batch)

    def turn(line: Line) -> float:
        work = {
            "directory": str(directory), "files": SIZES[line.data], "batch": options.batch, "workers": line.workers,
            "strategy": STRATEGIES.get(line.name),
        }  # fmt: skip
        answer = child("benchmarks.startup", work, cpus)
        line.seconds.append(answer["seconds"])
        line.grown_mb.append(answer["grown_mb"])
        return 1000 * line.seconds[-1]

    for data in options.sizes:
        for workers in options.workers:
            lines = [Line(data, workers, name) for name in (PEER, *STRATEGIES)]
            result.lines += lines
            say(f"{data} data set, {workers} workers")
            alternate({line.name: partial(turn, line) for line in lines}, options.rounds, say, "ms")
    return result


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"first batch of {result.batch}, milliseconds from the constructor's call; medians (least .. most)",
        f"{'data set':17}{'workers':>7}  {'':18}{'first batch':>26}{'DataLoader / this':>26}{'process grows by':>18}",
    ]
    for line in result.lines:
        rows.append(
            f"{line.data:17}{line.workers:7}  {line.name:18}{spread([1000 * s for s in line.seconds]):>26}"
            f"{spread(result.earlier(line), '.2f'):>26}{statistics.median(line.grown_mb):15.0f} MB"
        )
    return "\n".join(rows)


def _images(directory: Path, files: int) -> Any:
    """Return an ImageFolder of so many files. Their paths repeat those of the real files."""
    from benchmarks.data import dataset

    images: Any = dataset(directory, "imagenet1")
    there = images.samples
    images.samples = images.imgs = [("".join((path[:1], path[1:])), label) for path, label in _around(there, files)]
    images.targets = [label for _, label in images.samples]
    return images


def _around(there: list[tuple[str, int]], files: int) -> Any:
    """Repeat the entries to so many, in ImageFolder's order: class by class."""
    each = -(-files // len(there))
    return [entry for entry in there for _ in range(each)][:files]


def turn(work: Mapping[str, Any]) -> dict[str, float]:
    """Measure one loader's first batch."""
    from torch.utils.data import DataLoader

    from ddlp.loader import DDLPLoader

    images = _images(Path(work["directory"]), work["files"])
    loader: Any = DataLoader if work["strategy"] is None else partial(DDLPLoader, strategy=work["strategy"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ran_on(os.sched_getaffinity(0)):
        began = time.perf_counter()
        batches = iter(loader(images, work["batch"], shuffle=True, num_workers=work["workers"]))
        next(batches)
        seconds = time.perf_counter() - began
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": seconds, "grown_mb": grown_kb * 1.024e-3}


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
