"""`num_workers="auto"` beside each fixed number of workers: how near it comes to the best of them.

Four pipelines: user code that waits, user code that computes, user code with a slow training step, and JPEG files through
ddlp's own code. The training step sleeps. Each loader trains two epochs, and the second one counts, start included: auto has
measured in the first. All take turns, and the median of the rounds is told.

    python -m scripts.workers_check                # ten minutes
    python -m scripts.workers_check --rounds 1 --kinds waits
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from csd_engine.machine.computer import processors
from ddlp import DDLPLoader
from ddlp.sampledata import make_imagefolder

NUMBERS: tuple[int | str, ...] = (0, 1, 2, 3, 4, "auto")
IMAGES = 600  # different ones; an epoch has them several times


class Samples(Dataset[Any]):
    """User code that waits for so many seconds, or computes for so long."""

    def __init__(self, samples: int, waits_s: float, computes_s: float) -> None:
        self.samples, self.waits_s, self.computes_s = samples, waits_s, computes_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.waits_s)
        until = time.thread_time() + self.computes_s
        while time.thread_time() < until:
            pass
        return torch.full((64,), index)


@dataclass(frozen=True)
class Kind:
    """A pipeline: what makes its data set and sampler, the samples of a batch, and the seconds of a training step."""

    dataset: Callable[[], tuple[Any, Any]]
    batch: int
    step_s: float


def jpegs(home: Path) -> tuple[Any, Any]:
    """Files of ImageNet's dimensions, made once, with ImageNet's usual transform."""
    make_imagefolder(home, IMAGES, 46.0, val_images=1)
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    dataset = ImageFolder(str(home / "train"), transform)
    return dataset, RandomSampler(dataset, replacement=True, num_samples=3 * IMAGES)


def kinds(home: Path) -> dict[str, Kind]:
    """The pipelines by their names."""
    return {
        "waits": Kind(lambda: (Samples(800, 0.005, 0.0), None), 8, 0.004),
        "computes": Kind(lambda: (Samples(800, 0.0, 0.005), None), 8, 0.004),
        "slow step": Kind(lambda: (Samples(480, 0.0, 0.001), None), 8, 0.03),
        "native": Kind(lambda: jpegs(home), 24, 0.004),
    }


def measured(kind: Kind, number: int | str) -> tuple[float, int]:
    """Return the seconds of a loader's second epoch, and how many workers it had."""
    dataset, sampler = kind.dataset()
    with tempfile.TemporaryDirectory() as cache:  # nothing is known of an earlier run
        os.environ["XDG_CACHE_HOME"] = cache
        loader = DDLPLoader(dataset, kind.batch, sampler=sampler, num_workers=number, seed=0)
        for _ in range(2):
            began = time.monotonic()
            for _ in loader:
                time.sleep(kind.step_s)
            seconds = time.monotonic() - began
    return seconds, loader.num_workers


def main() -> None:
    """Measure, and print a table for Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=list(kinds(Path())), default=list(kinds(Path())))
    parser.add_argument("--data", type=Path, default=Path("data/bench/workers"), help="directory of the JPEG files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[int | str, list[float]]] = {name: {number: [] for number in NUMBERS} for name in options.kinds}
    chosen: dict[str, list[int]] = {name: [] for name in options.kinds}
    for _ in range(options.rounds):
        for name in options.kinds:
            for number in NUMBERS:
                seconds, workers = measured(kinds(options.data)[name], number)
                found[name][number].append(seconds)
                if number == "auto":
                    chosen[name].append(workers)
    print(f"{processors():.3g} processors; seconds of the second epoch, median of {options.rounds}\n")
    print("| pipeline |", " | ".join(map(str, NUMBERS)), "| workers of auto | auto, times the best |")
    print("| --- |", " | ".join("---" for _ in NUMBERS), "| --- | --- |")
    for name, times in found.items():
        medians = {number: statistics.median(seconds) for number, seconds in times.items()}
        best = min(seconds for number, seconds in medians.items() if number != "auto")
        row = " | ".join(f"{medians[number]:.2f}" for number in NUMBERS)
        print(f"| {name} | {row} | {', '.join(map(str, chosen[name]))} | {medians['auto'] / best:.2f} |")


if __name__ == "__main__":
    main()
