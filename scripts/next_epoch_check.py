"""How long training waits for the first batch of the next epoch, beside a batch in the middle of an epoch.

An accelerator that sleeps takes a step `--step` times as long as the host takes for a batch. A wait is the time from the end of
a step to the next batch; the first one's includes iter(). "Without": each epoch makes all its batches itself. The host's time
is that without a cache.

    python -m scripts.next_epoch_check                     # a minute; pins itself to one core
    python -m scripts.next_epoch_check --strategy auto     # with an engine on this machine, on the same core
    python -m scripts.next_epoch_check --cache pixels --step 2.5   # the first epoch of each run fills a cache
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from ddlp import Cache, DDLPLoader
from ddlp.sampledata import make_imagefolder

BATCH = 32
EDGE = 5  # batches at either end that are not in the middle; an epoch must have more than twice as many
TRAIN = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()])
EVALUATE = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, nargs="+", default=[1.3, 0.8], help="in the host's times for a batch (1.3 0.8)")
    parser.add_argument("--epochs", type=int, default=5, help="of which the first is not measured (%(default)s)")
    parser.add_argument("--images", type=int, default=640, help="images of an epoch (%(default)s)")
    parser.add_argument("--evaluate", action="store_true", help="evaluate a fourth as many images after each epoch")
    parser.add_argument("--strategy", default="cpu", help="of the training (%(default)s)")
    parser.add_argument("--cache", choices=("pixels",), help="what ddlp.Cache keeps; nothing without it")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core to use (%(default)s)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    with tempfile.TemporaryDirectory() as home:
        make_imagefolder(Path(home), options.images, mean_kb=110)
        alone = Run(Path(home), 0.0, False, "cpu", None)
        alone.epoch()
        batch_s = alone.epoch() / len(alone.train)
        del alone
        print(f"the host takes {1000 * batch_s:.0f} ms for a batch of {BATCH}", flush=True)
        for step in options.step:
            for early in (False, True):
                os.environ["DDLP_EARLY_BATCHES"] = "on" if early else "off"
                run = Run(Path(home), step * batch_s, options.evaluate, options.strategy, options.cache)
                for _ in range(options.epochs):
                    run.epoch()
                waits = run.first_s[1:], run.iter_s[1:], run.middle_s
                first, began, middle = (1000 * statistics.median(times) for times in waits)
                print(
                    f"step {step:.1f}, {'with' if early else 'without':8} first batch {first:6.1f} ms (iter() {began:5.1f}), "
                    f"in the middle {middle:6.2f} ms; from epoch 2 on "
                    f"{', '.join(f'{1000 * first_s:.1f}' for first_s in run.first_s[1:])} ms, early batches {run.early[1:]}",
                    flush=True,
                )


class Run:
    """Loaders of a training and an evaluation, and how long training has waited so far."""

    def __init__(self, home: Path, step_s: float, evaluates: bool, strategy: str, keeps: str | None) -> None:
        data, test = ImageFolder(str(home / "train"), TRAIN), ImageFolder(str(home / "val"), EVALUATE)
        cache = keeps is not None and Cache(tempfile.mkdtemp(dir=home), "100G", keeps=keeps)
        self.train = DDLPLoader(data, BATCH, shuffle=True, num_workers=1, strategy=strategy, cache=cache)
        pixels = cache and Cache(cache.directory, cache.bytes)
        self._test = DDLPLoader(test, BATCH, num_workers=1, cache=pixels) if evaluates else None
        self._step_s = step_s
        self.first_s: list[float] = []
        self.iter_s: list[float] = []
        self.middle_s: list[float] = []
        self.early: list[int] = []

    def epoch(self) -> float:
        """Train for an epoch. Returns its seconds."""
        asked = began = time.monotonic()
        batches = iter(self.train)
        self.iter_s.append(time.monotonic() - began)
        for k, _ in enumerate(batches):
            waited_s = time.monotonic() - asked
            if k == 0:
                self.first_s.append(waited_s)
            elif EDGE <= k < len(self.train) - EDGE:
                self.middle_s.append(waited_s)
            time.sleep(self._step_s)
            asked = time.monotonic()
        ended = time.monotonic()
        self.early.append(self.train.report().early)
        for _ in self._test or ():
            time.sleep(self._step_s / 3)
        return ended - began


if __name__ == "__main__":
    main()
