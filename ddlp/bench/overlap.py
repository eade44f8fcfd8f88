"""`ddlp bench overlap`: how close both prongs together come to r_cpu + r_csd.

The host is pinned to one core and an embedded engine to another, slowed down to a given part of the host's speed; the
accelerator sleeps. r_cpu and r_csd are measured as bare loops (`ddlp.bench.bare`), both busy at once; a DataLoader on the
same host core has the engine's core kept busy beside it, as ours has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

from ddlp.bench.bare import Bare, both_at_once
from ddlp.bench.data import ensure_data, imagenet1_transform
from ddlp.loader import DDLPLoader

PEERS = ("DataLoader, 0 workers", "DataLoader, 1 worker")


@dataclass
class Line:
    """One contender: seconds of each round, and of the bound of that round."""

    name: str
    seconds: list[float] = field(default_factory=list)
    of_bound: list[float] = field(default_factory=list)
    csd_batches: list[int] = field(default_factory=list)


@dataclass
class Result:
    """What was measured. Rates in samples a second."""

    batches: int
    batch: int
    accelerator_s: float
    slowdown: float
    r_cpu: list[float] = field(default_factory=list)
    r_csd: list[float] = field(default_factory=list)
    bound_s: list[float] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--data", type=Path, default=Path("data/bench"), help="JPEG data set, made if missing (%(default)s)")
    parser.add_argument("--mean-kb", type=float, default=46.0, help="mean file size of a set that is made (%(default)s)")
    parser.add_argument("--batches", type=int, default=200, help="batches of each epoch (%(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (%(default)s)")
    parser.add_argument("--csd", type=float, default=1 / 3, help="the engine's speed as a part of the host's (1/3)")
    parser.add_argument("--slowdown", type=float, help="slow the engine down by this factor instead")
    parser.add_argument(
        "--accelerator", type=float, default=0.5,
        help="time of a training step, as a part of the bound of preparing one batch; above 1 it is the bound (%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="each contender's turns (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=["cpu", "csd", "mte", "wrr", "ordered"], metavar="S")
    parser.add_argument("--output", default="float32", choices=["float32", "uint8"], help="what is delivered (%(default)s)")
    parser.add_argument("--host-cpu", type=int, default=0)
    parser.add_argument("--csd-cpu", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each bare loop (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if len(os.sched_getaffinity(0)) < 2:
        print("ddlp bench overlap: needs two CPUs, one for each side", file=sys.stderr)
        return 2
    if options.batches < 20:
        print(f"ddlp bench overlap: {options.batches} batches are too few to tell; take 200 or more", file=sys.stderr)
        return 2
    say = _say(options.json)
    ensure_data(options.data, options.mean_kb)
    result = measure(options, say)
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        print(table(result))
    return 0


def _say(quiet: bool) -> Callable[[str], None]:
    return lambda text: print(text, file=sys.stderr if quiet else sys.stdout, flush=True)


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """All rounds."""
    cpus = (options.host_cpu, options.csd_cpu)
    slowdown = options.slowdown
    if slowdown is None:
        host, engine = both_at_once(options.data, options.batch, cpus, options.seconds / 2, 1.0, options.output)
        slowdown = max(1.0, engine / (options.csd * host))
        say(f"bare loops, not slowed: host {host:.0f}, engine {engine:.0f} samples/s; engine slowed {slowdown:.2f} times")
    result = Result(options.batches, options.batch, 0.0, slowdown)
    names = [*(n for n in PEERS), *options.strategies]
    result.lines = [Line(name) for name in names]
    n = options.batches * options.batch
    for k in range(options.rounds):
        r_cpu, r_csd = both_at_once(options.data, options.batch, cpus, options.seconds, slowdown, options.output)
        bound = n / (r_cpu + r_csd)
        if k == 0:
            result.accelerator_s = options.accelerator * bound / options.batches
        bound = max(bound, options.batches * result.accelerator_s)
        result.r_cpu.append(r_cpu)
        result.r_csd.append(r_csd)
        result.bound_s.append(bound)
        say(f"round {k + 1}/{options.rounds}: r_cpu {r_cpu:.1f}, r_csd {r_csd:.1f} samples/s, bound {bound:.2f} s")
        for line in result.lines:
            seconds, csd = contender(line.name, options, slowdown, result.accelerator_s)
            line.seconds.append(seconds)
            line.of_bound.append(bound / seconds)
            line.csd_batches.append(csd)
            say(f"  {line.name:22} {seconds:7.2f} s   {bound / seconds:5.3f} of the bound   {csd:3d} batches from the CSD")
    return result


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """This process, and what it starts, on one CPU and one torch thread."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def contender(name: str, options: argparse.Namespace, slowdown: float, accelerator_s: float) -> tuple[float, int]:
    """Seconds of an epoch after a short warm-up, and the batches that came from the engine."""
    from torchvision.datasets import ImageFolder

    n = options.batches * options.batch
    images = ImageFolder(str(options.data / "train"), imagenet1_transform())
    dataset = Subset(images, [k % len(images) for k in range(n)])
    if name in PEERS:
        other = Bare("engine", options.data, options.batch, options.csd_cpu, 0, slowdown)
        try:
            with pinned(options.host_cpu):
                other.go()
                workers = PEERS.index(name)
                loader = DataLoader(dataset, options.batch, shuffle=True, num_workers=workers)
                return epoch(loader, accelerator_s), 0
        finally:
            other.result()
    os.environ["DDLP_ENGINE_CPUS"], os.environ["DDLP_ENGINE_SLOWDOWN"] = str(options.csd_cpu), repr(slowdown)
    with pinned(options.host_cpu):
        loader = DDLPLoader(dataset, options.batch, shuffle=True, strategy=name, seed=0, output=options.output)
        for k, _ in enumerate(loader):  # the engine up, the rates known: an epoch within a training, not its first
            if k == 20:
                break
        seconds = epoch(loader, accelerator_s)
        return seconds, loader.report().batches_csd


def epoch(loader: DataLoader, accelerator_s: float) -> float:
    """Seconds of an epoch with a sleeping accelerator."""
    began = time.monotonic()
    for _ in loader:
        time.sleep(accelerator_s)
    return time.monotonic() - began


def table(result: Result) -> str:
    """The figures for a person."""
    median = statistics.median
    samples = result.batches * result.batch
    rows = [
        "",
        f"{result.batches} batches of {result.batch}; medians of {len(result.bound_s)} rounds, (least .. most)",
        f"bare loops, both at once: r_cpu {_spread(result.r_cpu, '.0f')}, r_csd {_spread(result.r_csd, '.0f')} samples/s",
        f"bound max(n / (r_cpu + r_csd), n * t_accelerator): {_spread(result.bound_s, '.2f')} s, "
        f"a training step sleeps {1000 * result.accelerator_s:.1f} ms",
        "",
        f"{'':22} {'seconds':>22} {'samples/s':>10} {'of the bound':>24} {'from the CSD':>13}",
    ]
    for line in result.lines:
        rows.append(
            f"{line.name:22} {_spread(line.seconds, '.2f'):>22} {samples / median(line.seconds):10.0f} "
            f"{_spread(line.of_bound, '.3f'):>24} {int(median(line.csd_batches)):13d}"
        )
    return "\n".join(rows)


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} .. {max(values):{form}})"
