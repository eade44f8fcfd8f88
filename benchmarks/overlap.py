"""How close host and engine together come to r_cpu + r_csd.

The host is pinned to one core and an embedded engine to another. The engine is slowed down to a given part of the host's speed;
the accelerator only sleeps. r_cpu and r_csd are the rates of bare loops (`benchmarks.bare`), which run at the same time, before
and after each contender. A core's speed drifts within seconds, so a metronome (`benchmarks.metronome`) measures it all the
time. The bound of a contender is the median rate of the bare loops, scaled to the speeds that the cores had in its turn. When a
DataLoader runs on the host's core, a bare loop keeps the engine's core busy, as our engine does. A DataLoader makes only a part
of the batches.

As uint8 with the channels last, the format of a batch file, the engine's batches need no conversion. For float32 the host
converts them. That takes h seconds a sample, in which the host prepares nothing: the bound is then r_cpu * (1 - h * r_csd) +
r_csd. h is the time of a bare loop too (map, verify, convert).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from benchmarks import data
from benchmarks.bare import Bare, Timed, both_at_once, delivered_as
from benchmarks.common import Aim, BenchFailed, add_output, command, emit, say, spread, two_cpus
from benchmarks.metronome import Metronome
from ddlp import decode
from ddlp.loader import DDLPLoader
from ddlp.process.cores import pinned
from ddlp.schedule.strategies import STRATEGIES
from ddlp.tryout.rounds import ratios, rotated

Speeds = tuple[float, float]  # of the host's and of the engine's core, the metronome's samples a second
PEERS = ("DataLoader, 0 workers", "DataLoader, 1 worker")
PEERS_PART = 8  # the peers make one batch in so many: all of them would take a minute of each round


@dataclass
class Line:
    """One contender. `rates`: samples a second in each round. `speeds`: the cores' speeds in the same turns."""

    name: str
    rates: list[float] = field(default_factory=list)
    speeds: list[Speeds] = field(default_factory=list)
    csd_batches: list[int] = field(default_factory=list)


@dataclass
class Result:
    """What was measured. Rates are in samples a second."""

    batches: int
    batch: int
    output: str
    slowdown: float
    pipeline: str = "imagenet1"
    accelerator_s: float = 0.0  # of one training step
    accelerator_bound: bool = False
    r_cpu: list[float] = field(default_factory=list)
    r_csd: list[float] = field(default_factory=list)
    speeds: list[Speeds] = field(default_factory=list)  # while r_cpu and r_csd were measured
    h_s: list[float] = field(default_factory=list)  # seconds of the host's core for a sample of the engine's, in each round
    h_speeds: list[Speeds] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def bare(self, speeds: Speeds) -> tuple[float, float]:
        """Return r_cpu and r_csd on cores of these speeds."""
        host, engine = speeds
        r_cpu = statistics.median(rate / speed for rate, (speed, _) in zip(self.r_cpu, self.speeds, strict=True))
        r_csd = statistics.median(rate / speed for rate, (_, speed) in zip(self.r_csd, self.speeds, strict=True))
        return host * r_cpu, engine * r_csd

    def bound(self, speeds: Speeds) -> float:
        """Return the samples a second that both sides can prepare on cores of these speeds; no more than training can take."""
        r_cpu, r_csd = self.bare(speeds)
        if self.output == "float32":
            h_s = statistics.median(h_s * speed for h_s, (speed, _) in zip(self.h_s, self.h_speeds, strict=True)) / speeds[0]
            r_cpu *= 1 - h_s * r_csd
        prepared = r_cpu + r_csd
        return min(prepared, self.batch / self.accelerator_s) if self.accelerator_s else prepared

    def bounds(self, line: Line) -> list[float]:
        """Return a contender's bound in each round."""
        return [self.bound(speeds) for speeds in line.speeds]

    def of_bound(self, line: Line) -> list[float]:
        """Return a contender's rate divided by its bound, round by round."""
        return ratios(line.rates, self.bounds(line))

    def gain(self, line: Line) -> list[float]:
        """Return a contender's rate divided by the best DataLoader's on cores of the same speed, round by round."""
        peers = [peer for peer in self.lines if peer.name in PEERS]
        best = max(
            statistics.median(rate / host for rate, (host, _) in zip(peer.rates, peer.speeds, strict=True)) for peer in peers
        )
        return [rate / (best * host) for rate, (host, _) in zip(line.rates, line.speeds, strict=True)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data.add_data(parser)
    parser.add_argument("--mean-kb", type=float, default=data.MEANS_KB[0], help="mean file size in kB (%(default)s)")
    parser.add_argument(
        "--pipeline", default="imagenet1", choices=["imagenet1", *data.OF_BATCHES], help="one of %(choices)s (%(default)s)"
    )
    parser.add_argument("--batches", type=int, default=300, help="batches of each epoch (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (%(default)s)")
    parser.add_argument("--csd", type=float, default=1 / 3, help="the engine's speed as a part of the host's (1/3)")
    parser.add_argument(
        "--accelerator",
        type=float,
        default=0.5,
        help="time of a training step, as a part of the least time to prepare a batch; above 1, training is the bound "
        "(%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), metavar="S")
    parser.add_argument("--output", default="float32", choices=["float32", "uint8"], help="dtype of the images (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each run of the bare loops (%(default)s)")
    add_output(parser)


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    # A slow engine makes few batches, and it may stop up to one batch before the epoch's end: so its epochs are longer.
    third, tenth = ["--csd", "0.3333"], ["--csd", "0.1", "--batches", "600"]
    ours = ["--strategies", "cpu", "mte", "wrr"]
    few = ["--rounds", "2", "--batches", "150"]
    return [
        ("Overlap: engine at 1/3, uint8", ["--output", "uint8", *third, *ours, "ordered"]),
        ("Overlap: engine at 1/10, uint8", ["--output", "uint8", *tenth, *ours]),
        (
            "Overlap: engine at 1/3, the accelerator is the bound, uint8",
            ["--output", "uint8", *third, *ours, "--accelerator", "1.5"],
        ),
        ("Overlap: engine at 1/3, float32", ["--output", "float32", *third, *ours]),
        ("Overlap: engine at 1/10, float32", ["--output", "float32", *tenth, *ours]),
        ("Overlap: RandAugment, engine at 1/3, float32", ["--pipeline", "randaugment", *third, *ours, *few]),
    ]


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.batches < 20:
        raise BenchFailed(f"{options.batches} batches are too few to show anything; take 100 or more.")
    options.host_cpu, options.csd_cpu = two_cpus()
    options.directory = data.ensure_data(options.data, mean_kb=options.mean_kb)
    result = measure(options, say)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """Measure all rounds. Each begins with another contender."""
    with ExitStack() as stack:
        cpus = (options.host_cpu, options.csd_cpu)
        metronome = stack.enter_context(Metronome(options.directory, cpus))

        def speeds(time: Timed) -> Speeds:
            by_cpu = metronome.speeds(time.began, time.ended)
            return by_cpu[cpus[0]], by_cpu[cpus[1]]

        slowdown = _slowdown(options, speeds, say)
        result = Result(options.batches, options.batch, options.output, slowdown, accelerator_bound=options.accelerator > 1)
        result.pipeline = options.pipeline
        result.lines = [Line(name) for name in (*PEERS, *options.strategies)]
        host, fetch = (stack.enter_context(_bare(side, options, 1.0)) for side in ("host", "fetch"))
        engine = stack.enter_context(_bare("engine", options, slowdown))

        def both() -> None:
            on_host, by_engine = both_at_once((host, engine), options.seconds)
            result.r_cpu.append(on_host.rate)
            result.r_csd.append(by_engine.rate)
            result.speeds.append(speeds(on_host))

        for k in range(options.rounds):
            fetched, _ = both_at_once((fetch, engine), options.seconds / 2)
            result.h_s.append(1 / fetched.rate)
            result.h_speeds.append(speeds(fetched))
            both()
            if not result.accelerator_s:
                result.accelerator_s = options.accelerator * options.batch / result.bound(result.speeds[-1])
            say(f"round {k + 1}/{options.rounds}: h {result.h_s[-1] * 1e6:.0f} us, step {result.accelerator_s * 1e3:.1f} ms")
            for line in rotated(result.lines, k):
                timed, csd = contender(line.name, options, engine, slowdown, result.accelerator_s)
                line.speeds.append(speeds(timed))
                line.rates.append(timed.rate)
                line.csd_batches.append(csd)
                both()
                say(
                    f"  {line.name:22} {timed.rate:7.1f} samples/s, {result.of_bound(line)[-1]:5.3f} of "
                    f"{result.bounds(line)[-1]:6.1f}, {csd:3d} batches from the CSD"
                )
    return result


def _slowdown(options: argparse.Namespace, speeds: Callable[[Timed], Speeds], say: Callable[[str], None]) -> float:
    """Return the factor by which the engine must be slowed, to have the wanted part of the host's speed on equal cores."""
    with _bare("host", options, 1.0) as host_loop, _bare("engine", options, 1.0) as engine_loop:
        host, engine = both_at_once((host_loop, engine_loop), options.seconds)
    on_host, by_engine = speeds(host)
    slowdown = max(1.0, (engine.rate / by_engine) / (options.csd * host.rate / on_host))
    text = f"host {host.rate:.0f}, engine {engine.rate:.0f} samples/s on cores of speeds {on_host:.0f} and {by_engine:.0f}"
    say(f"bare loops, not slowed: {text}; engine slowed {slowdown:.2f} times")
    return slowdown


def _bare(side: str, options: argparse.Namespace, slowdown: float) -> Bare:
    cpu = options.csd_cpu if side == "engine" else options.host_cpu
    return Bare(side, options.directory, options.batch, cpu, options.output, slowdown, options.pipeline)


def contender(name: str, options: argparse.Namespace, engine: Bare, slowdown: float, accelerator_s: float) -> tuple[Timed, int]:
    """Run an epoch. Return its rate, and the number of batches that came from the engine.

    For our loader it is the second epoch: in the first the engine starts, and its rates and the memory for its files are found.

    ``engine``: a bare loop that keeps the engine's core busy beside a DataLoader.
    """
    batches = -(-options.batches // PEERS_PART) if name in PEERS else options.batches
    n = batches * options.batch
    images: Any = data.dataset(options.directory, options.pipeline)
    dataset = Subset(images, [k % len(images) for k in range(n)])
    if name in PEERS:
        engine.go()
        try:
            with pinned(options.host_cpu, engine=(options.csd_cpu,)):
                workers = PEERS.index(name)
                ahead: dict[str, Any] = {"prefetch_factor": 4} if workers else {}
                loader = DataLoader(
                    dataset, options.batch, shuffle=True, num_workers=workers, pin_memory=torch.cuda.is_available(),
                    worker_init_fn=decode.not_here, **ahead,
                )  # fmt: skip
                return Timed.of(n, *epoch(loader, accelerator_s)), 0
        finally:
            engine.result()
    os.environ["DDLP_ENGINE_CPUS"], os.environ["DDLP_ENGINE_SLOWDOWN"] = str(options.csd_cpu), repr(slowdown)
    with pinned(options.host_cpu, engine=(options.csd_cpu,)):
        output: dict[str, Any] = {"output": options.output, "memory_format": delivered_as(options.output)}
        loader = DDLPLoader(dataset, options.batch, shuffle=True, strategy=name, seed=0, **output)
        epoch(loader, accelerator_s)
        return Timed.of(n, *epoch(loader, accelerator_s)), loader.report().batches_csd


def epoch(loader: DataLoader, accelerator_s: float) -> tuple[float, float]:
    """Run an epoch in which each training step sleeps. Return when it began and ended (time.monotonic)."""
    began = time.monotonic()
    for _ in loader:
        time.sleep(accelerator_s)
    return began, time.monotonic()


def aims(result: Result) -> list[Aim]:
    """Return the aims: wrr and mte against the bound; if preparing is the limit, wrr also against the best DataLoader."""
    lines = {line.name: line for line in result.lines}
    of = "" if result.pipeline == "imagenet1" else f"{result.pipeline}: "
    aims = [
        Aim(f"{of}{name}, {result.output}: of the bound", least, statistics.median(result.of_bound(lines[name])))
        for name, least in (("wrr", 0.97), ("mte", 0.95))
        if name in lines
    ]
    if "wrr" in lines and not result.accelerator_bound:
        wrr = lines["wrr"]
        gain = statistics.median(result.gain(wrr))
        # The part of the largest possible gain. DataLoader's rate is in both gains, so it cancels out.
        of_it = statistics.median(ratios(wrr.rates, [sum(result.bare(speeds)) for speeds in wrr.speeds]))
        aims.append(Aim(f"{of}wrr's gain over DataLoader, {gain:.2f}: of (r_cpu + r_csd) / r_DataLoader", 0.97, of_it))
    return aims


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"{result.pipeline}: {result.batches} batches of {result.batch} as {result.output}; "
        f"{len(result.h_s)} rounds, medians (least .. most)",
        f"bare loops, both at once: r_cpu {spread(result.r_cpu)}, r_csd {spread(result.r_csd)} samples/s, "
        f"h {spread([h * 1e6 for h in result.h_s])} us a sample",
        f"bound: {'r_cpu * (1 - h * r_csd) + r_csd' if result.output == 'float32' else 'r_cpu + r_csd'} on cores as fast as "
        f"each had them; a training step sleeps {1000 * result.accelerator_s:.1f} ms"
        + (f", so {result.batch / result.accelerator_s:.0f} samples/s at most" if result.accelerator_bound else ""),
        f"the cores' speeds meanwhile (one sample, over and over): host's {spread([s for s, _ in result.speeds])}, engine's "
        f"{spread([s for _, s in result.speeds])} samples/s",
        "",
        f"{'':22} {'samples/s':>24} {'bound':>24} {'of the bound':>24} {'from the CSD':>13}",
    ]
    for line in result.lines:
        rows.append(
            f"{line.name:22} {spread(line.rates):>24} {spread(result.bounds(line)):>24} "
            f"{spread(result.of_bound(line), '.3f'):>24} "
            f"{int(statistics.median(line.csd_batches)):13d}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
