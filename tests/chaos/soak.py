#!/usr/bin/env python3
"""Trains for very many batches through real engines, and says what grows meanwhile.

    python -m tests.chaos.soak                            # 100,000 batches; some minutes
    python -m tests.chaos.soak --batches 10000 --seed 3

Two engines run; one is reached through a relay. Each epoch trains under `csd` or `wrr`, and an evaluation follows it. In every
third epoch the network to the second engine is cut and restored, so that it leaves and joins. Every sample has to come exactly
once in each epoch.

After each epoch it measures private memory, descriptors and threads of this process and of the engines with their workers, and
the files and bytes in the spools. The table shows how much each grows in 100,000 batches: the slope of a least-squares line
through the epochs after the first fifth, with its 95 % confidence interval (twice the slope's standard error; the epochs'
errors are taken as independent). A measure grows if that interval lies above a small limit, and if its largest value in the
second half of these epochs is above that of the first.

Exit status 0: nothing grows. 1: something does, or a sample was lost or doubled.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import random
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from csd_engine.machine.computer import process_memory
from ddlp import DDLPLoader, ImageFiles
from tests.chaos.world import BATCH, IMAGES, Finding, World

PER = 100_000  # batches, for which slopes are given
REPEATS = 20  # of the images in an epoch
# These may grow by this much without a report: memory is never constant to the byte.
MOST = {"MB": 4.0, "descriptors": 0.5, "threads": 0.5, "files": 0.5}


@dataclass(frozen=True)
class Slope:
    """How much a measure grows in `PER` batches, and the half width of its 95 % confidence interval."""

    growth: float
    error: float

    @staticmethod
    def of(batches: Sequence[float], values: Sequence[float]) -> Slope:
        """Fit a line by least squares (Draper and Smith, Applied Regression Analysis, 1.4). At least three points."""
        n = len(batches)
        middle, mean = sum(batches) / n, sum(values) / n
        spread = sum((x - middle) ** 2 for x in batches)
        slope = sum((x - middle) * (y - mean) for x, y in zip(batches, values, strict=True)) / spread
        rest = sum((y - mean - slope * (x - middle)) ** 2 for x, y in zip(batches, values, strict=True))
        return Slope(slope * PER, 2 * PER * math.sqrt(rest / (n - 2) / spread))

    def exceeds(self, most: float) -> bool:
        """Whether it is sure to grow by more than that."""
        return self.growth - self.error > most


def measures(world: World) -> Iterator[tuple[str, str, float]]:
    """Yield (of what, unit, value), all as they are now."""
    engines = [(one.home.name, [one.process.process.pid, *one.workers()]) for one in world.engines if one.process is not None]
    for name, pids in [("host", [os.getpid()]), *engines]:
        yield name, "MB", process_memory(pids)[1] / 1e6
        yield name, "descriptors", sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        yield name, "threads", sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)
    for engine in world.engines:
        files = [path.stat().st_size for path in engine.spool.rglob("*") if path.is_file()]
        yield f"spool of {engine.home.name}", "files", len(files)
        yield f"spool of {engine.home.name}", "MB", sum(files) / 1e6


class Training:
    """Loaders that live for the whole run: two that train, on both engines, and one that evaluates, on the first."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._draw = world, random.Random(seed)
        paths = world.paths * REPEATS
        data = ImageFiles(paths, list(range(len(paths))), world.data.transform)
        devices = [engine.device for engine in world.named]
        self._loaders = [DDLPLoader(data, BATCH, shuffle=True, strategy=name, csd=devices) for name in ("csd", "wrr")]
        self._evaluation = DDLPLoader(world.data, BATCH, strategy="csd", csd=devices[0])

    def epoch(self, number: int) -> int:
        """Train on an epoch and evaluate; return the batches. Raises Finding if a sample is lost or doubled."""
        loader, relayed = self._draw.choice(self._loaders), self._world.named[1]
        cut = self._draw.randrange(10, len(loader) // 2) if number % 3 == 0 else None
        labels: list[int] = []
        for step, (_, targets) in enumerate(loader):
            labels += targets.tolist()
            if step == cut:
                relayed.network("cut")
            elif cut is not None and step == cut + 50:
                relayed.network("restore")
        self._check(number, labels, IMAGES * REPEATS)
        self._check(number, [label for _, targets in self._evaluation for label in targets.tolist()], IMAGES)
        return len(loader) + len(self._evaluation)

    def _check(self, number: int, labels: list[int], samples: int) -> None:
        if sorted(labels) != list(range(samples)):
            raise Finding(f"epoch {number}: {len(labels)} samples, {len(set(labels))} different ones, of {samples}")


def soak(world: World, batches: int, seed: int) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Train for so many batches; return (batches so far, value) of each measure after each epoch."""
    found = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    training, done, number, began = Training(world, seed), 0, 0, time.monotonic()
    while done < batches:
        done += training.epoch(number)
        number += 1
        gc.collect()
        time.sleep(0.1)  # the engines end what is left of the epoch
        for of, unit, value in measures(world):
            found[of, unit].append((done, value))
        if sys.stderr.isatty() or number % 20 == 0:
            print(f"soak: {done:,} of {batches:,} batches, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def told(found: dict[tuple[str, str], list[tuple[float, float]]]) -> bool:
    """Print the table; return whether nothing grows."""
    print(f"{'':16}{'':13}{'at first':>10}{'at last':>10}{f'growth in {PER:,} batches':>34}")
    grows = False
    for (of, unit), points in found.items():
        steady = points[len(points) // 5 :]
        slope = Slope.of(*zip(*steady, strict=True))
        # A restarted engine has fewer files. A value that goes up and down has a slope too, but no new maximum.
        half = len(steady) // 2
        higher = max(value for _, value in steady[half:]) > max(value for _, value in steady[:half])
        leaks = higher and slope.exceeds(MOST[unit])
        grows = grows or leaks
        mark = "  GROWS" if leaks else ""
        interval = f"{slope.growth:+.2f} ({slope.growth - slope.error:+.2f} .. {slope.growth + slope.error:+.2f})"
        print(f"{of:16}{unit:13}{steady[0][1]:10.1f}{steady[-1][1]:10.1f}{interval:>34}{mark}")
    return not grows


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=PER, help="batches to train on, evaluations included (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (%(default)s)")
    options = parser.parse_args(arguments)
    least = 10 * (IMAGES * REPEATS + IMAGES) // BATCH
    if options.batches < least:
        parser.error(f"--batches {options.batches}: a slope needs ten epochs, which have {least}")
    warnings.simplefilter("ignore")  # warnings about a device that leaves
    with tempfile.TemporaryDirectory(prefix="ddlp-soak-", dir="/tmp") as home:  # short: a socket's path has at most 107 bytes
        world = World(Path(home), options.seed, patience_s=90)
        try:
            world.add_engines()
            found = soak(world, options.batches, options.seed)
            world.close()
        except Finding as error:
            print(f"soak: FOUND: {error}")
            return 1
        except KeyboardInterrupt:
            print("soak: interrupted", file=sys.stderr)
            return 130
        finally:
            with contextlib.suppress(Finding):
                world.close()
    return 0 if told(found) else 1


if __name__ == "__main__":
    sys.exit(main())
