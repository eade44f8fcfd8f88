#!/usr/bin/env python3
"""What two further ways of a device's batches would bring: finished float32 numbers, or a prefix of the pipeline.

    .venv/bin/python -m scripts.way_candidates                    # random workloads, by `estimate`: no time is measured
    .venv/bin/python -m scripts.way_candidates --operators DIR    # processor time; sample images are made in DIR

Today a device makes all known operators, as uint8. As float32 its batches would have four times the bytes, and the host would
not finish them. With a prefix the host would run the last operators. The second command measures how much slower other kernels
than this processor's make crops, and how much slower they run the operators behind these: that is what a prefix lives on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ddlp.planning.decide import all_sets, estimate
from ddlp.planning.measured import Measured, OffloadPath

RATIOS = (0.2, 0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0)
OPERATORS = ("colorjitter", "autoaugment", "trivialaugment", "randaugment")  # behind imagenet1's crop and flip
KERNELS = ("", "sse2", "c", "off")  # this processor's; without AVX; plain C, as libjpeg's then; Pillow
_SAMPLES, _ROUNDS = 128, 3


class Ways(NamedTuple):
    """One workload, by today's ways, with a further way of each source, and with a worker on each of the host's processors."""

    today: Measured
    float32: Measured
    prefix: Measured
    workers: Measured


def workload(rng: random.Random, ratio: float, free: bool) -> Ways:
    """Draw a workload with 1 to 3 sources. Its figures follow from processor seconds, those of the host's own path being 1.

    Of these the last operators take 0.05 to 0.6, and finishing 0.01 to 0.06. To read and verify a batch of bytes takes 0.01 to
    0.06 from a spool, and 0.05 to 0.4 from a stream. Measured for ImageNet's crop: finishing 0.036, and 0.02 and 0.03 for two
    kinds of spool, 0.16 and 0.36 for two kinds of stream.

    Args:
        rng: draws it.
        ratio: how much slower a source runs the last operators than the host, divided by the same of all before.
        free: the host has processors that its workers leave free.
    """

    def between(low: float, high: float) -> float:  # log-uniform
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    busy = rng.randint(1, 16)
    processors = busy + 1 + (rng.randint(1, 8) if free else 0)
    finish, last = rng.uniform(0.01, 0.06), rng.uniform(0.05, 0.6)
    today, floats, prefixes = [], [], []
    for number in range(rng.randint(1, 3)):
        slower, workers = between(0.25, 30.0), rng.randint(1, 8)
        spool = rng.random() < 0.5
        reading = rng.uniform(0.01, 0.06) if spool else rng.uniform(0.05, 0.4)
        before, behind = slower * (1 - finish - last), slower * last * ratio
        wide = between(3.0, 100.0) if rng.random() < 0.75 else between(0.1, 3.0)
        room = rng.randint(20, 1000) if rng.random() < 0.75 else rng.randint(workers, 3 * workers)

        def path(
            seconds: float, taking: float, size: float = 1.0, *, number: int = number, workers: int = workers,
            spool: bool = spool, band: float = wide * workers / slower, room: int = room,
        ) -> OffloadPath:  # fmt: skip
            return OffloadPath(
                f"source {number}", "spool" if spool else "stream", "float32" if size > 1 else "uint8", workers=workers,
                alone_batches_per_s=workers / seconds, host_cpu_s_per_batch=taking, bytes_per_batch=size,
                bandwidth_bytes_per_s=band, spool_bytes=room + 0.5,
            )  # fmt: skip

        today.append(path(before + behind, reading + finish))
        floats.append(path(before + behind + slower * finish, 4 * reading, 4.0))
        prefixes.append(replace(path(before, reading + last + finish), part="prefix"))

    one = Measured(between(0.1, 2.0) / busy, busy, 1.0, processors, paths=(*today,))
    return Ways(
        one, replace(one, paths=(*today, *floats)), replace(one, paths=(*today, *prefixes)),
        replace(one, loader_batches_per_s=processors - 1),
    )  # fmt: skip


def best_s(measured: Measured) -> float:
    """Return the seconds of the fastest candidate."""
    return min(estimate(measured, paths).value("time") for paths in all_sets(measured.paths))


class Saved(NamedTuple):
    """The parts of a batch's time that a change saves, beside today's ways."""

    float32: float
    prefix: float
    workers: float


def saved(seed: int, count: int, ratio: float, free: bool) -> list[Saved]:
    """Return what each change saves in each of so many workloads. The arguments are those of `workload`."""
    found = []
    for number in range(count):
        today_s, *changed_s = map(best_s, workload(random.Random(f"{seed} {number}"), ratio, free))
        found.append(Saved(*(1 - one / today_s for one in changed_s)))
    return found


def table(seed: int, count: int) -> str:
    """Return how often each change saves more than 2 % of a batch's time, and how much at most, as a Markdown table."""
    lines = [
        "| change | processors free | operators behind slower by, times the others' | saves over 2 % | at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for free, ratio in [*((False, ratio) for ratio in RATIOS), (True, 1.0)]:
        found = saved(seed, count, ratio, free)
        for name in Saved._fields if free else ("float32", "prefix") if ratio == 1.0 else ("prefix",):
            parts = [getattr(one, name) for one in found]
            over = sum(one > 0.02 for one in parts) / count
            lines.append(f"| {name} | {'yes' if free else 'no'} | {ratio:g} | {over:.1%} | {max(parts):.1%} |")
    return "\n".join(lines)


def processor_us(directory: Path, variant: str) -> dict[str, list[float]]:
    """Return the processor time of a sample in each round, in us, by each pipeline. ``variant``: one of `KERNELS`."""
    import torch

    from benchmarks.bare import host_batch
    from benchmarks.data import loader
    from csd_engine.kernels import kernel
    from ddlp.translate.portable import portable

    torch.set_num_threads(1)
    if variant not in ("", "off"):
        found = kernel()
        if found is None or not found.choose(variant):
            return {}
    pipelines = ("imagenet1", *OPERATORS)
    makers = {one: host_batch(portable(loader(directory, one, 64), torch.uint8, torch.channels_last), 64) for one in pipelines}
    spent: dict[str, list[float]] = {one: [] for one in pipelines}
    for number in range(_ROUNDS + 1):
        for pipeline, make in makers.items():
            began = time.process_time()
            for batch in range(_SAMPLES // 64 if number else 1):
                make(batch)
            if number:  # the first one warms up
                spent[pipeline].append((time.process_time() - began) / _SAMPLES * 1e6)
    return spent


def operators_table(directory: Path) -> str:
    """Measure each kernel in a process of its own, and return the medians as a Markdown table.

    After each operator's time stands by how much more it is than this processor's own, divided by the same of crop and flip.
    """
    from ddlp.sampledata import make_imagefolder

    if not (directory / "dataset.json").exists():  # the file that is written last
        make_imagefolder(directory, 256, 110.0)
    lines = [f"| kernel | crop and flip | {' | '.join(OPERATORS)} |", "| --- " * (2 + len(OPERATORS)) + "|"]
    own: dict[str, list[float]] = {}
    for variant in KERNELS:
        print(f"kernel: {variant or 'as it is'}", file=sys.stderr, flush=True)
        environment = {**os.environ, "DDLP_KERNEL": "off" if variant == "off" else ""}
        if variant == "c":
            environment["JSIMD_FORCENONE"] = "1"
        command = [sys.executable, "-m", "scripts.way_candidates", "--operators", str(directory), "--one", variant]
        found = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        if found:
            own = own or found
            cells = [f"{median(found['imagenet1']):.0f} us"]
            for name in OPERATORS:
                cells.append(f"{median(_behind(found, name)):.0f} us, {_share(found, name) / _share(own, name):.2f}")
            lines.append(f"| {variant or 'as it is'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _behind(spent: dict[str, list[float]], name: str) -> list[float]:
    return [whole - crop for whole, crop in zip(spent[name], spent["imagenet1"], strict=True)]


def _share(spent: dict[str, list[float]], name: str) -> float:
    return median(behind / crop for behind, crop in zip(_behind(spent, name), spent["imagenet1"], strict=True))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random workloads (default 0)")
    parser.add_argument("--workloads", type=int, default=1000, help="number of workloads in each row (default 1000)")
    parser.add_argument("--operators", type=Path, metavar="DIR", help="measure operators instead; DIR for sample images")
    parser.add_argument("--one", choices=KERNELS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(processor_us(given.operators, given.one)))
    else:
        print(table(given.seed, given.workloads) if given.operators is None else operators_table(given.operators))


if __name__ == "__main__":
    main()
