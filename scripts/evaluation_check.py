"""Evaluation beside training, after it, and the bound: max(pt + pe, gt + ge) for an epoch and its evaluation.

pt and pe are the times in which this host prepares the epoch's batches and those of the evaluation, measured without steps. gt
and ge are those of the accelerator, which sleeps. It does one thing at a time. In three loads the host is the limit, both are,
or the accelerator is. A turn is five epochs. The time from the first to the last call of `Evaluation.start` counts: an epoch
and an evaluation each. "One after the other" evaluates between the epochs, by the same loaders. "Without a pipeline" is what
i.data compares with: each batch is prepared when the step before is over, so it is pt + pe + gt + ge, added up.

    python -m scripts.evaluation_check                     # some minutes; pins itself to one core
    python -m scripts.evaluation_check --rounds 1 --loads both
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from ddlp import DDLPLoader, Evaluation
from ddlp.sampledata import make_imagefolder

LOADS = {"host": 0.4, "both": 1.0, "accelerator": 1.6}  # gt + ge as a part of pt + pe
FORWARD = 1 / 3  # of a training step: that much a step of evaluation takes
EPOCHS = 5
BATCH = 16
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE])
EVALUATE = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor(), NORMALIZE])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="(all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (%(default)s)")
    parser.add_argument("--images", type=int, default=2400, help="images of an epoch; an evaluation has a fourth (%(default)s)")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core to use (%(default)s)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    with tempfile.TemporaryDirectory() as home:
        make_imagefolder(Path(home), 400, mean_kb=110)
        for load in options.loads:
            Load(Path(home), options.images, LOADS[load]).compare(load, options.rounds)


class Accelerator:
    """Does one step at a time, for whoever asks."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def step(self, seconds: float) -> None:
        with self._busy:
            time.sleep(seconds)


class Load:
    """Loaders of a training and its evaluation, and how long a step takes.

    Attributes:
        part: gt + ge as a part of pt + pe.
        prepared_s: how long the host takes for the batches of an epoch and its evaluation, pt + pe.
        step_s: seconds of a training step.
        steps: so many of these an epoch and its evaluation take.
    """

    def __init__(self, home: Path, images: int, part: float) -> None:
        self.train, self.val = (
            DDLPLoader(data, BATCH, sampler=[k % len(data) for k in range(count)], num_workers=1, seed=1)
            for count, transform in ((images, TRAIN), (images // 4, EVALUATE))
            for data in [ImageFolder(str(home / "train"), transform)]
        )
        self.steps, self.part = len(self.train) + len(self.val) * FORWARD, part
        self.accelerator, self.prepared_s, self.step_s = Accelerator(), 0.0, 0.0

    def prepare(self) -> float:
        """Prepare all batches of both; returns the seconds."""
        began = time.monotonic()
        for loader in (self.train, self.val):
            for _ in loader:
                pass
        return time.monotonic() - began

    def run(self, loader: Any) -> None:
        for _ in loader:
            self.accelerator.step(self.step_s if loader is self.train else self.step_s * FORWARD)

    def beside(self) -> float:
        """The seconds of an epoch and its evaluation."""
        starts = []
        with Evaluation(nn.Linear(1, 1), self.val, lambda model, loader: self.run(loader)) as side:
            for epoch in range(EPOCHS):
                self.run(self.train)
                side.start(epoch)
                starts.append(time.monotonic())
            side.finish()
        return (starts[-1] - starts[0]) / (EPOCHS - 1)

    def in_turn(self) -> float:
        starts = []
        for _ in range(EPOCHS):
            self.run(self.train)
            starts.append(time.monotonic())
            self.run(self.val)
        return (starts[-1] - starts[0]) / (EPOCHS - 1)

    def compare(self, name: str, rounds: int) -> None:
        """Measure in turns, and print."""
        ways: dict[str, Callable[[], float]] = {"beside training": self.beside, "one after the other": self.in_turn}
        seconds: dict[str, list[float]] = {}
        bounds = []
        for number in range(rounds):
            before = self.prepare()
            if not number:
                self.step_s = self.part * before / self.steps
            found = {way: ways[way]() for way in sorted(ways, reverse=bool(number % 2))}
            self.prepared_s = statistics.mean([before, self.prepare()])
            found["without a pipeline"] = self.prepared_s + self.steps * self.step_s  # nothing at the same time
            bounds.append(max(self.prepared_s, self.steps * self.step_s))
            for way, one_s in found.items():
                seconds.setdefault(way, []).append(one_s)
            said = ", ".join(f"{way} {one_s:.2f}" for way, one_s in found.items())
            print(f"  {name}, round {number + 1}: bound {bounds[-1]:.2f} s, {said}", flush=True)
        for way, all_s in seconds.items():
            parts = [bound / one_s for bound, one_s in zip(bounds, all_s, strict=True)]
            less = statistics.median(1 - ours / one_s for ours, one_s in zip(seconds["beside training"], all_s, strict=True))
            print(f"{name}: {way}: {statistics.median(all_s):.2f} s, of the bound {statistics.median(parts):.3f} "
                  f"({min(parts):.3f} .. {max(parts):.3f})" + (f"; beside takes {less:.1%} less" if less else ""))  # fmt: skip


if __name__ == "__main__":
    main()
