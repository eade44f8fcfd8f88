"""What a pool of n engines brings, against its bound and against DataLoader with n + 1 workers.

Preparation and training sleep, so that two cores hold several engines. The sleeps must be long beside what batches cost the
processor: on a slow machine give --times 4. The bound is min(1 / step, r_cpu (1 - o r_off) + r_off), with r_cpu of the host
alone, r_off of the engines, and o, the host's processor seconds to take a batch, as measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import benchmarks.standin
from benchmarks.common import Aim, BenchFailed, add_output, command, emit, say, spread
from ddlp import DDLPLoader, ImageArrays, LocalPool, load_operators
from ddlp.tryout.rounds import ratios, rotated

HOST_S = ENGINE_S = 0.08  # seconds of a batch
STEP_S = 0.004
_AIM = 0.95
_FIRST = 10  # batches before the clock starts, once all engines are at work


@dataclass
class Line:
    """A number of engines: batches a second of each round, and the bound from what taking a batch cost in that round."""

    engines: int
    bound: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    dataloader: list[float] = field(default_factory=list)

    @property
    def of_bound(self) -> list[float]:
        """Ours as a part of the bound, round by round."""
        return ratios(self.ours, self.bound)


@dataclass
class Result:
    """What was measured; seconds a batch of host, engine and training."""

    host_s: float
    engine_s: float
    step_s: float
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--engines", nargs="+", type=int, default=[1, 2, 4, 8], metavar="N", help="of the pool (%(default)s)")
    parser.add_argument("--batches", type=int, default=100, help="batches to measure, for each side (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (%(default)s)")
    parser.add_argument("--times", type=float, default=1.0, help="all sleeps are so many times as long (%(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if min(options.engines) < 1 or min(options.batches, options.rounds) < 1:
        raise BenchFailed(f"--engines {options.engines}: give numbers of 1 or more, and 1 batch and 1 round at least")
    result = measure(options)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace) -> Result:
    """Measure all rounds."""
    result = Result(options.times * HOST_S, options.times * ENGINE_S, options.times * STEP_S)
    result.lines = [Line(engines) for engines in options.engines]
    for number in range(options.rounds):
        alone, _ = with_ddlp(0, result, options.batches)
        for line in rotated(result.lines, number):
            count = options.batches * (1 + line.engines)
            ours, taking_s = with_ddlp(line.engines, result, count)
            offered = line.engines / result.engine_s
            line.ours.append(ours)
            line.bound.append(min(1 / result.step_s, alone * (1 - taking_s * offered) + offered))
            line.dataloader.append(with_dataloader(line.engines + 1, result, count))
            say(f"round {number + 1}: {line.engines} engines: {ours:.1f} batches/s, {line.of_bound[-1]:.3f} of the bound")
    return result


def rate(batches: Iterable[Any], step_s: float, ready: Callable[[], bool], count: int) -> float:
    """Train; return the batches a second of ``count`` batches, from ten after ``ready`` is true on."""
    counted, left, began = 0, _FIRST, 0.0
    for _ in batches:
        time.sleep(step_s)
        if left and ready():
            left -= 1
            began = time.monotonic()
        elif not left:
            counted += 1
            if counted == count:
                return count / (time.monotonic() - began)
    raise BenchFailed("the epoch was too short: the engines began too late. Give more --batches.")


def with_ddlp(engines: int, result: Result, count: int) -> tuple[float, float]:
    """Return the batches a second, and the host's processor seconds to take one."""
    operators = load_operators(Path(benchmarks.standin.__file__))
    prepare = operators.prepare(host=os.getpid(), host_s=result.host_s, device_s=result.engine_s)
    images = np.zeros((40 * count, 1, 1, 3), np.uint8)
    data = ImageArrays(images, range(len(images)), transforms.Compose([prepare, transforms.ToTensor()]))
    pool: dict[str, Any] = {"strategy": "wrr", "pool": LocalPool(engines)} if engines else {"strategy": "cpu"}
    loader = DDLPLoader(data, 1, shuffle=True, seed=0, **pool)

    def ready() -> bool:
        return sum(device.alive and bool(device.rate) for device in loader.live().devices) >= engines

    batches_per_s = rate(loader, result.step_s, ready, count)
    taking = loader._parts.life.rates.taking_cpu.values()
    return batches_per_s, sum(cost.seconds for cost in taking) / max(1, len(taking))


def with_dataloader(workers: int, result: Result, count: int) -> float:
    """Return the batches a second of torch's DataLoader with so many workers."""
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # it only counts cores, and these workers sleep
    loader = DataLoader(_Sleeps(40 * count, result.host_s), 1, num_workers=workers)
    return rate(loader, result.step_s, lambda: True, count)


class _Sleeps(Dataset[torch.Tensor]):
    """Samples of a user's own data set, as heavy as the operator."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.zeros(3, 1, 1)


def aims(result: Result) -> list[Aim]:
    """Return the aim: near the bound with any number of engines."""
    return [Aim("of the bound, the worst line", _AIM, min(statistics.median(line.of_bound) for line in result.lines))]


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"batches/s; a batch takes the host {1e3 * result.host_s:g} ms, an engine {1e3 * result.engine_s:g} ms, training "
        f"{1e3 * result.step_s:g} ms; medians (least .. most)",
        f"{'engines':>7}{'bound':>9}{'ddlp':>26}{'of the bound':>26}{'DataLoader, n + 1 workers':>28}",
    ]
    for line in result.lines:
        rows.append(
            f"{line.engines:7}{statistics.median(line.bound):9.1f}{spread(line.ours, '.1f'):>26}"
            f"{spread(line.of_bound, '.3f'):>26}{spread(line.dataloader, '.1f'):>28}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
