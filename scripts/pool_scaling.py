#!/usr/bin/env python3
"""Pools of real engines with an operator that sleeps: what n of them bring, and whether `strategy="auto"` finds the best n.

    python -m scripts.pool_scaling --curve               # n = 1, 2, 4, 8 beside DataLoader and Ray Data; ten minutes
    python -m scripts.pool_scaling --auto --runs 10      # best n of 0, 1, 3, 6; half an hour

Sleeps stand for preparation and training, so that two cores hold several engines. They must be long beside what batches cost
the processor: on a slow machine give --times 4. The bound of the curve is min(1 / step, r_cpu (1 - o r_off) + r_off), with
r_cpu of the host alone, r_off of the engines, and o, the host's processor seconds to take a batch, as measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ddlp import CardPool, Goal
from scripts.pool_bed import Bed, loader_of

MOST = 8  # engines


@dataclass(frozen=True)
class Setup:
    """Seconds a batch of the host, of an engine and of training."""

    host_s: float
    engine_s: float
    step_s: float


BEST = {  # by the number of engines that is the least within 3 % of the best time
    0: Setup(0.012, 0.055, 0.02),
    1: Setup(0.025, 0.055, 0.02),
    3: Setup(0.1, 0.055, 0.02),
    6: Setup(0.1, 0.14, 0.02),
}
HEAVY = Setup(0.08, 0.08, 0.004)


def rate(batches: Iterable[Any], step_s: float, ready: Callable[[], bool], count: int) -> float:
    """Train; return the batches a second of ``count`` batches, from ten after ``ready`` is true on."""
    seen, left, began = 0, 10, 0.0
    for _ in batches:
        time.sleep(step_s)
        if left and ready():
            left -= 1
            began = time.monotonic()
        elif not left:
            seen += 1
            if seen == count:
                return count / (time.monotonic() - began)
    raise RuntimeError("the epoch was too short")


class _Sleeps(Dataset[torch.Tensor]):
    """Samples of a user's own data set, as heavy as the operator."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.zeros(3, 8, 8, dtype=torch.uint8)


def with_ddlp(cards: Path, engines: int, setup: Setup, count: int) -> tuple[float, float]:
    """Return the batches a second, and the host's processor seconds to take one."""
    pool: Any = CardPool(cards, max=MOST)
    if engines:
        pool.want(engines)
    loader = loader_of(pool if engines else None, 40 * count, 1, setup.host_s, strategy="wrr" if engines else "cpu")

    def ready() -> bool:
        return sum(one.alive and bool(one.rate) for one in loader.live().devices) >= engines

    per_s = rate(loader, setup.step_s, ready, count)
    taking = loader._life.rates.taking_cpu.values()
    return per_s, sum(one.seconds for one in taking) / max(1, len(taking))


def with_dataloader(workers: int, setup: Setup, count: int) -> float:
    """Return the batches a second of torch's DataLoader with so many workers."""
    data = _Sleeps(40 * count, setup.host_s)
    return rate(DataLoader(data, 1, num_workers=workers), setup.step_s, lambda: True, count)


def with_ray(tasks: int, setup: Setup, count: int) -> float | None:
    """Return the batches a second of Ray Data with so many tasks at once. None: Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        return None
    import numpy as np
    import ray

    def prepare(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(setup.host_s)
        return {"image": np.zeros((1, 3, 8, 8), np.uint8)}

    ray.init(num_cpus=MOST + 4, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = 20 * count
        data = ray.data.range(rows, override_num_blocks=rows).map_batches(prepare, batch_size=1, concurrency=tasks)
        return rate(data.iter_torch_batches(batch_size=1, prefetch_batches=4), setup.step_s, lambda: True, count)
    finally:
        ray.shutdown()


def curve(counts: Iterable[int], setup: Setup, batches: int, home: Path, peers: bool) -> Iterator[str]:
    """Yield the rows of the table of n engines."""
    yield "| engines | bound, batches/s | ddlp | part of the bound | DataLoader, n + 1 workers | Ray Data, n + 1 tasks |"
    yield "| --- | --- | --- | --- | --- | --- |"
    with Bed(home, MOST, setup.engine_s) as bed:
        alone, _ = with_ddlp(bed.cards, 0, setup, batches)
        for engines in counts:
            count = batches * (1 + engines)
            per_s, taking_s = with_ddlp(bed.cards, engines, setup, count)
            off = engines / setup.engine_s
            bound = min(1 / setup.step_s, alone * (1 - taking_s * off) + off)
            torchs = with_dataloader(engines + 1, setup, count) if peers else None
            rays = with_ray(engines + 1, setup, count) if peers else None
            beside = " | ".join("-" if one is None else f"{one:.1f}" for one in (torchs, rays))
            yield f"| {engines} | {bound:.1f} | {per_s:.1f} | {per_s / bound:.3f} | {beside} |"


def found(cards: Path, setup: Setup, batches: int) -> tuple[int, list[str]]:
    """Return the number of engines to which auto comes within so many batches, and its reasons."""
    pool = CardPool(cards, min=0, max=MOST)
    loader = loader_of(pool, 2 * batches, 1, setup.host_s, strategy="auto", goal=Goal(remember=False))
    for number, _ in enumerate(loader):
        time.sleep(setup.step_s)
        if number == batches:
            break
    assert loader._controller is not None
    return loader._controller.engines, [one.reason for one in loader.report().changes if one.device == "pool"]


def autos(best: Iterable[int], runs: int, times: float, batches: int, home: Path) -> Iterator[str]:
    """Yield a line for each best number of engines."""
    for number in best:
        one = BEST[number]
        setup = Setup(times * one.host_s, times * one.engine_s, times * one.step_s)
        came: list[int] = []
        for run in range(runs):
            (home / f"{number}.{run}").mkdir()
            with Bed(home / f"{number}.{run}", MOST, setup.engine_s) as bed:
                engines, reasons = found(bed.cards, setup, batches)
            came.append(engines)
            yield f"  best {number}, run {run + 1}: {engines} ({'; '.join(reasons) or 'no change'})"
        within = sum(abs(engines - number) <= 1 for engines in came)
        yield f"best {number}: auto came to {came}: within one in {within} of {runs} runs"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve", action="store_true", help="what n engines bring")
    parser.add_argument("--auto", action="store_true", help="to which n auto comes")
    parser.add_argument("--engines", nargs="+", type=int, default=[1, 2, 4, 8], help="of the curve (default: 1 2 4 8)")
    parser.add_argument("--best", nargs="+", type=int, choices=BEST, default=list(BEST), help="of --auto (default: all)")
    parser.add_argument("--runs", type=int, default=10, help="of --auto, for each best number (default %(default)s)")
    parser.add_argument("--batches", type=int, default=1500, help="of a run of --auto (default %(default)s)")
    parser.add_argument("--times", type=float, default=1.0, help="all sleeps are so many times as long (default %(default)s)")
    parser.add_argument("--measured", type=int, default=100, help="batches of the curve, for each side (default %(default)s)")
    parser.add_argument("--alone", action="store_true", help="the curve without DataLoader and Ray Data")
    given = parser.parse_args()
    if not (given.curve or given.auto):
        parser.error("give --curve or --auto")
    with contextlib.ExitStack() as at_end:
        home = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        if given.curve:
            setup = Setup(*(given.times * seconds for seconds in (HEAVY.host_s, HEAVY.engine_s, HEAVY.step_s)))
            (home / "curve").mkdir()
            for line in curve(given.engines, setup, given.measured, home / "curve", not given.alone):
                print(line, flush=True)
        if given.auto:
            for line in autos(given.best, given.runs, given.times, given.batches, home):
                print(line, flush=True)


if __name__ == "__main__":
    main()
