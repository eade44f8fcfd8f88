"""The rows of the DDLP paper's Table VI in scaled time, through the real loader, ledger, engine and spool.

To prepare a batch, host and engine sleep as long as the row says (by an operator file); so does a training step. All else is
real. The limit is T* = max(1 / (1/p_cpu + 1/p_csd), t_train). The table also has the paper's own WRR, as printed and by its
event rules, and a loader that prefetches without a CSD: max(p_cpu, t_train).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import transforms

import benchmarks.standin
from benchmarks.common import Aim, add_output, child, command, emit, say
from benchmarks.overlap import epoch
from benchmarks.papers.events import paper_epoch
from benchmarks.papers.table6 import Cell, clean_cells
from ddlp.data.images import ImageArrays
from ddlp.loader import DDLPLoader
from ddlp.translate.user_operators import load_operators

_RULES_BATCHES = 5000  # batches of the simulated epoch by the paper's rules


@dataclass
class Line:
    """A cell of the table. Seconds a batch in the paper's time. ``of_limit``: T* divided by the time of each round."""

    cell: str
    processes: int
    limit_s: float
    printed_s: float  # the paper's WRR
    rules_s: float  # the same by its event rules
    prefetching_s: float
    seconds: list[float] = field(default_factory=list)
    of_limit: list[float] = field(default_factory=list)
    csd_batches: list[int] = field(default_factory=list)

    @property
    def rules_error(self) -> float:
        """The relative difference of the event rules' time from the printed one."""
        return self.rules_s / self.printed_s - 1

    @property
    def faster(self) -> float:
        """How many times as fast ours is as the paper's WRR by its rules."""
        return self.rules_s / statistics.median(self.seconds)


@dataclass
class Result:
    """What was measured; ``step_s`` is T* in real time."""

    strategy: str
    batches: int
    step_s: float
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--batches", type=int, default=300, help="batches of each epoch (%(default)s)")
    parser.add_argument("--step", type=float, default=0.1, metavar="S", help="seconds that T* is scaled to (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each row (%(default)s)")
    parser.add_argument("--jobs", type=int, default=4, help="rows that run at once; they mostly sleep (%(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N cells")
    parser.add_argument("--strategy", default="wrr", choices=["wrr", "ordered", "mte"])
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.batches < 10 or min(options.rounds, options.jobs) < 1 or options.step <= 0:
        wrong = "give 10 batches, 1 round and 1 job at least, and a step above 0"
        print(f"python -m benchmarks.papers.scaled: {wrong}", file=sys.stderr)
        return 2
    result = measure(options)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace) -> Result:
    """Measure all rows, turn by turn."""
    cells = list(clean_cells())[: options.rows]
    result = Result(options.strategy, options.batches, options.step)
    for cell in cells:
        rules_s = paper_epoch(_RULES_BATCHES, cell.cpu_s, cell.device_s, cell.read_and_train_s)[0] / _RULES_BATCHES
        name = f"{cell.model} {cell.pipeline}"
        result.lines.append(Line(name, cell.processes, cell.limit_s, cell.wrr_s, rules_s, cell.prefetching_s))
    cpus = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(options.jobs) as pool:
        for k in range(options.rounds):
            work = [
                {"cell": number, "scale": options.step / cell.limit_s, "batches": options.batches, "strategy": options.strategy}
                for number, cell in enumerate(cells)
            ]
            replayed = pool.map(lambda task: child("benchmarks.papers.scaled", task, cpus), work)
            for cell, line, answer in zip(cells, result.lines, replayed, strict=True):
                line.seconds.append(answer["seconds"] / options.batches / (options.step / cell.limit_s))
                line.of_limit.append(line.limit_s / line.seconds[-1])
                line.csd_batches.append(answer["csd"])
                say(
                    f"round {k + 1}: {line.cell} {cell.processes:2}: {line.of_limit[-1]:.3f} of the limit, "
                    f"{answer['csd']} from the CSD"
                )
    return result


def replay(cell: Cell, scale: float, batches: int, strategy: str) -> tuple[float, int]:
    """Run an epoch of a cell, with its times multiplied by ``scale``. Return its seconds, and the engine's batches."""
    first: list[DDLPLoader] = []  # all are kept: the engine would end with the last one
    while not first or not first[-1].report().batches_csd:  # until the engine is up, as it is within a training
        first.append(_loader(20, 0.05, 0.05, "wrr"))
        epoch(first[-1], 0.0)
    loader = _loader(batches, cell.host_s * scale, cell.device_s * scale, strategy)
    began, ended = epoch(loader, cell.train_s * scale)
    return ended - began, loader.report().batches_csd


def _loader(batches: int, host_s: float, device_s: float, strategy: str) -> DDLPLoader:
    """Return a loader with batches of one pixel that take so long to prepare."""
    operators = load_operators(Path(benchmarks.standin.__file__))
    prepare = operators.prepare(host=os.getpid(), host_s=host_s, device_s=device_s)
    images = np.zeros((batches, 1, 1, 3), np.uint8)
    dataset = ImageArrays(images, range(batches), transforms.Compose([prepare, transforms.ToTensor()]))
    return DDLPLoader(dataset, 1, strategy=strategy, seed=0)


def aims(result: Result) -> list[Aim]:
    """Return the aims: every row is at the limit; the event rules agree with the printed figures; ours is faster than they."""
    lines, none = result.lines, [line.faster for line in result.lines if line.processes == 0]
    return [
        Aim("of T*, the row that is farthest from it", 0.97, min(statistics.median(line.of_limit) for line in lines)),
        Aim("the paper's rules against its printed WRR, the worst row", 0.98, 1 - max(abs(line.rules_error) for line in lines)),
        Aim("times as fast as the paper's WRR, 0 extra processes, median", 1.18, statistics.median(none) if none else None),
    ]


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        "",
        f"Table VI, seconds a batch; ours: {result.strategy}, {result.batches} batches, T* scaled to "
        f"{1000 * result.step_s:.0f} ms; medians (least .. most)",
        "rules: the paper's WRR by its event rules, in simulated time; faster: those over ours, which were measured",
        f"{'':20} {'extra':>5} {'T*':>7} {'prefetching':>11} {'paper':>7} {'rules':>7} {'error':>7} {'ours':>7} "
        f"{'of T*':>22} {'faster':>7}",
    ]
    for line in result.lines:
        of = line.of_limit
        rows.append(
            f"{line.cell:20} {line.processes:5} {line.limit_s:7.3f} {line.prefetching_s:11.3f} {line.printed_s:7.3f} "
            f"{line.rules_s:7.3f} {100 * line.rules_error:+6.2f}% {statistics.median(line.seconds):7.3f} "
            f"{statistics.median(of):8.3f} ({min(of):.3f} .. {max(of):.3f}) {line.faster:6.2f}x"
        )
    for processes in (0, 16):
        lines = [line for line in result.lines if line.processes == processes]
        if lines:
            rows.append(
                f"{processes:2} extra processes: {statistics.median(line.faster for line in lines):.2f} times as fast as the "
                f"paper's WRR, {statistics.median(statistics.median(line.of_limit) for line in lines):.3f} of T* in the median"
            )
    rows.append(f"the paper's rules are within {100 * max(abs(line.rules_error) for line in result.lines):.2f} % of its WRR")
    return "\n".join(rows)


def turn(work: Mapping[str, Any]) -> dict[str, float]:
    """Replay a cell."""
    took_s, from_csd = replay(list(clean_cells())[work["cell"]], work["scale"], work["batches"], work["strategy"])
    return {"seconds": took_s, "csd": from_csd}


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
