"""`ddlp bench overlap`: how close both prongs together come to r_cpu + r_csd.

The host is pinned to one core and an embedded engine to another, slowed down to a given part of the host's speed; the
accelerator sleeps. r_cpu and r_csd are measured as bare loops (`ddlp.bench.bare`), both busy at once, before and after each
contender: its bound is made of what both cores did around it, since a machine's speed drifts within minutes. A DataLoader on
the same host core has the engine's core kept busy beside it, as ours has; it makes a part of the batches only.

Delivered as uint8 with the channels last, as a batch file holds them, the engine's batches are used as they come. As float32
the host converts them, which takes h seconds a sample from its own preparing: then the bound is r_cpu * (1 - h * r_csd) +
r_csd. h is measured as a bare loop too (read, verify, convert).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Subset

from ddlp.bench import data
from ddlp.bench.bare import Bare, both_at_once, delivered_as
from ddlp.bench.common import Aim, BenchFailed, add_output, emit, pinned, ratios, rotated, say, spread, two_cpus
from ddlp.loader import DDLPLoader

PEERS = ("DataLoader, 0 workers", "DataLoader, 1 worker")
PEERS_PART = 8  # they make one batch in so many: a minute of each round else


@dataclass
class Line:
    """One contender. `rates`: samples a second in each round; `bounds`: the same of the bound around it."""

    name: str
    rates: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    csd_batches: list[int] = field(default_factory=list)

    @property
    def of_bound(self) -> list[float]:
        """Of each round."""
        return ratios(self.rates, self.bounds)


@dataclass
class Result:
    """What was measured. Rates in samples a second, of each time that the bare loops ran."""

    batches: int
    batch: int
    output: str
    slowdown: float
    accelerator_s: float = 0.0  # of one training step
    accelerator_bound: bool = False
    r_cpu: list[float] = field(default_factory=list)
    r_csd: list[float] = field(default_factory=list)
    h_s: list[float] = field(default_factory=list)  # of the host's core for one of the engine's samples; once a round
    lines: list[Line] = field(default_factory=list)

    def bound(self, r_cpu: float, r_csd: float) -> float:
        """Samples a second that both sides together can prepare, or the accelerator take."""
        left = 1 - self.h_s[-1] * r_csd if self.output == "float32" else 1.0
        prepared = r_cpu * left + r_csd
        return min(prepared, self.batch / self.accelerator_s) if self.accelerator_s else prepared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    data.add_data(parser)
    parser.add_argument("--mean-kb", type=float, default=data.MEANS_KB[0], help="mean file size (%(default)s)")
    parser.add_argument("--batches", type=int, default=300, help="batches of each epoch (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (%(default)s)")
    parser.add_argument("--csd", type=float, default=1 / 3, help="the engine's speed as a part of the host's (1/3)")
    parser.add_argument("--slowdown", type=float, help="slow the engine down by this factor instead")
    parser.add_argument(
        "--accelerator",
        type=float,
        default=0.5,
        help="time of a training step, as a part of the bound of preparing one batch; above 1 it is the bound (%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="each contender's turns (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=["cpu", "csd", "mte", "wrr", "ordered"], metavar="S")
    parser.add_argument("--output", default="float32", choices=["float32", "uint8"], help="what is delivered (%(default)s)")
    parser.add_argument("--host-cpu", type=int, help="the first usable one")
    parser.add_argument("--csd-cpu", type=int, help="the second usable one")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the bare loops, each time (%(default)s)")
    add_output(parser)


def report_parts(quick: bool) -> list[tuple[str, list[str]]]:
    """What `ddlp bench --all` runs of this bench."""
    short = ["--rounds", "1", "--batches", "100", "--seconds", "3"] if quick else []
    third, tenth = ["--csd", "0.3333"], ["--csd", "0.1"]
    ours = ["--strategies", "cpu", "mte", "wrr"]
    return [
        ("Overlap: engine at 1/3, uint8", ["--output", "uint8", *third, *ours, "ordered", *short]),
        ("Overlap: engine at 1/10, uint8", ["--output", "uint8", *tenth, *ours, *short]),
        (
            "Overlap: engine at 1/3, the accelerator is the bound, uint8",
            ["--output", "uint8", *third, *ours, "--accelerator", "1.25", *short],
        ),
        ("Overlap: engine at 1/3, float32", ["--output", "float32", *third, *ours, *short]),
        ("Overlap: engine at 1/10, float32", ["--output", "float32", *tenth, *ours, *short]),
    ]


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.batches < 20:
        raise BenchFailed(f"{options.batches} batches are too few to tell; take 100 or more.")
    if options.host_cpu is None or options.csd_cpu is None:
        options.host_cpu, options.csd_cpu = two_cpus()
    options.directory = data.ensure_data(options.data, "imagenet1", options.mean_kb)
    result = measure(options, say)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """All rounds; each begins with another contender."""
    cpus = (options.host_cpu, options.csd_cpu)
    bare = partial(both_at_once, options.directory, options.batch, cpus, output=options.output)
    slowdown = options.slowdown
    if slowdown is None:
        host, engine = bare(options.seconds, 1.0)
        slowdown = max(1.0, engine / (options.csd * host))
        say(f"bare loops, not slowed: host {host:.0f}, engine {engine:.0f} samples/s; engine slowed {slowdown:.2f} times")
    result = Result(options.batches, options.batch, options.output, slowdown, accelerator_bound=options.accelerator > 1)
    result.lines = [Line(name) for name in (*PEERS, *options.strategies)]

    def both() -> tuple[float, float]:
        rates = bare(options.seconds, slowdown)
        result.r_cpu.append(rates[0])
        result.r_csd.append(rates[1])
        return rates

    for k in range(options.rounds):
        result.h_s.append(1 / bare(options.seconds / 2, slowdown, host="fetch")[0])
        before = both()
        if not result.accelerator_s:
            result.accelerator_s = options.accelerator * options.batch / result.bound(*before)
        say(f"round {k + 1}/{options.rounds}: h {result.h_s[-1] * 1e6:.0f} us, step {result.accelerator_s * 1e3:.1f} ms")
        for line in rotated(result.lines, k):
            rate, csd = contender(line.name, options, slowdown, result.accelerator_s)
            after = both()
            r_cpu, r_csd = ((a + b) / 2 for a, b in zip(before, after, strict=True))
            before = after
            line.rates.append(rate)
            line.bounds.append(result.bound(r_cpu, r_csd))
            line.csd_batches.append(csd)
            say(
                f"  {line.name:22} {rate:7.1f} samples/s, {line.of_bound[-1]:5.3f} of {line.bounds[-1]:6.1f} "
                f"(r_cpu {r_cpu:.1f}, r_csd {r_csd:.1f}), {csd:3d} batches from the CSD"
            )
    return result


def contender(name: str, options: argparse.Namespace, slowdown: float, accelerator_s: float) -> tuple[float, int]:
    """Samples a second of an epoch after a short warm-up, and the batches that came from the engine."""
    batches = -(-options.batches // PEERS_PART) if name in PEERS else options.batches
    n = batches * options.batch
    images: Any = data.dataset(options.directory, "imagenet1")
    dataset = Subset(images, [k % len(images) for k in range(n)])
    if name in PEERS:
        other = Bare("engine", options.directory, options.batch, options.csd_cpu, 0, slowdown)
        try:
            with pinned(options.host_cpu):
                other.go()
                workers = PEERS.index(name)
                ahead: dict[str, Any] = (
                    {"prefetch_factor": 4} if workers else {}
                )  # not persistent: it holds the bare loop's pipe
                loader = DataLoader(
                    dataset, options.batch, shuffle=True, num_workers=workers, pin_memory=data.pin_memory(), **ahead
                )
                return n / epoch(loader, accelerator_s), 0
        finally:
            other.result()
    os.environ["DDLP_ENGINE_CPUS"], os.environ["DDLP_ENGINE_SLOWDOWN"] = str(options.csd_cpu), repr(slowdown)
    with pinned(options.host_cpu):
        output: dict[str, Any] = {"output": options.output, "memory_format": delivered_as(options.output)}
        loader = DDLPLoader(dataset, options.batch, shuffle=True, strategy=name, seed=0, **output)
        for k, _ in enumerate(loader):  # the engine up, the rates known: an epoch within a training, not its first
            if k == 20:
                break
        return n / epoch(loader, accelerator_s), loader.report().batches_csd


def epoch(loader: DataLoader, accelerator_s: float) -> float:
    """Seconds of an epoch with a sleeping accelerator."""
    began = time.monotonic()
    for _ in loader:
        time.sleep(accelerator_s)
    return time.monotonic() - began


def aims(result: Result) -> list[Aim]:
    """wrr and mte against the bound; against a prefetching DataLoader only where preparing limits both."""
    lines = {line.name: line for line in result.lines}
    found = [
        Aim(f"{name}, {result.output}: of the bound", least, statistics.median(lines[name].of_bound))
        for name, least in (("wrr", 0.97), ("mte", 0.95))
        if name in lines
    ]
    if "wrr" in lines and not result.accelerator_bound:
        best = [max(rates) for rates in zip(*(lines[name].rates for name in PEERS), strict=True)]
        gain = statistics.median(ratios(lines["wrr"].rates, best))
        expected = (statistics.median(result.r_cpu) + statistics.median(result.r_csd)) / statistics.median(best)
        found.append(Aim(f"wrr's gain over DataLoader, {gain:.2f}: of (r_cpu + r_csd) / r_DataLoader", 0.97, gain / expected))
    return found


def table(result: Result) -> str:
    """The figures for a person."""
    rows = [
        f"{result.batches} batches of {result.batch} as {result.output}; {len(result.h_s)} rounds, medians (least .. most)",
        f"bare loops, both at once: r_cpu {spread(result.r_cpu)}, r_csd {spread(result.r_csd)} samples/s, "
        f"h {spread([h * 1e6 for h in result.h_s])} us a sample",
        f"bound: {'r_cpu * (1 - h * r_csd) + r_csd' if result.output == 'float32' else 'r_cpu + r_csd'}, as they were before "
        f"and after each; a training step sleeps {1000 * result.accelerator_s:.1f} ms"
        + (f", so {result.batch / result.accelerator_s:.0f} samples/s at most" if result.accelerator_bound else ""),
        "",
        f"{'':22} {'samples/s':>24} {'bound':>24} {'of the bound':>24} {'from the CSD':>13}",
    ]
    for line in result.lines:
        rows.append(
            f"{line.name:22} {spread(line.rates):>24} {spread(line.bounds):>24} {spread(line.of_bound, '.3f'):>24} "
            f"{int(statistics.median(line.csd_batches)):13d}"
        )
    return "\n".join(rows)
