"""Whether `ddlp.Cache(epochs=)` keeps what takes the least time: twelve set-ups, each with all that could be kept tried out.

    python -m scripts.cache_decisions                        # about ten minutes, on one core
    python -m scripts.cache_decisions --only "objects, crops, room for a fifth" --images 64
    python -m scripts.cache_decisions --epochs 2

The set-ups: files on this computer, or objects of a local server with latency and a limited rate (`--latency`, `--rate`);
an evaluation's Resize and CenterCrop, RandomResizedCrop, or that with ColorJitter and a blur; room for all decoded pixels, or
for a fifth. Of each, epochs without a cache, with pixels and files are measured by turns. The time of `--epochs`
epochs is that of the first, which fills the cache, and of the others at the mean of the second and third. A choice is right if
it takes at most 3 % longer than the best one. Status 1: more than one choice is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from csd_engine.cache.files import FILES
from ddlp import Cache, DDLPLoader, ImageObjects
from ddlp.sampledata import make_imagefolder
from scripts.objects_check import BUCKET, NORMALIZE, served

BATCH = 32
RIGHT = 1.03
PIXEL_BYTES = 560_000  # of a photograph of 110 kB, decoded
END = (T.ToTensor(), NORMALIZE)
CROPS = (T.RandomResizedCrop(224), T.RandomHorizontalFlip())
STORAGES = ("files", "objects")
WORKS: dict[str, T.Compose] = {
    "evaluation": T.Compose([T.Resize(256), T.CenterCrop(224), *END]),
    "crops": T.Compose([*CROPS, *END]),
    "heavy": T.Compose([*CROPS, T.ColorJitter(0.4, 0.4, 0.4), T.GaussianBlur(5), *END]),
}
ROOMS = {"room for all": 1.5, "room for a fifth": 0.2}
KEEPS = ("off", "pixels", "files")


@dataclass(frozen=True)
class SetUp:
    """What is prepared, from where, and which part of the decoded pixels has room."""

    storage: str
    work: str
    room: str

    def __str__(self) -> str:
        return f"{self.storage}, {self.work}, {self.room}"


SETUPS = {str(one): one for one in itertools.starmap(SetUp, itertools.product(STORAGES, WORKS, ROOMS))}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SETUPS, default=list(SETUPS), metavar="SETUP", help="%(choices)s")
    parser.add_argument("--images", type=int, default=320, help="of an epoch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="that will be trained (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each way (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.02, help="of the server, seconds (%(default)s)")
    parser.add_argument("--rate", type=float, default=300.0, help="objects a second that it gives (%(default)s)")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core to use (%(default)s)")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as home, _files(Path(home), options) as sources:
        os.sched_setaffinity(0, {options.cpu})
        torch.set_num_threads(1)
        for number, name in enumerate(options.only, 1):
            print(f"{number} of {len(options.only)}: {name}", file=sys.stderr, flush=True)
            wrong += not _check(SETUPS[name], sources, options)
    print(f"{len(options.only) - wrong} of {len(options.only)} choices are right")
    return int(wrong > 1)


@contextlib.contextmanager
def _files(home: Path, options: argparse.Namespace) -> Iterator[dict[str, Callable[[Any], Any]]]:
    """Make the images, and serve them. Yields what makes a data set of a transform, by the storage's name."""
    make_imagefolder(home, options.images, mean_kb=110)
    root = home / "train"
    with served(root, options.latency, options.rate, 0.0) as url:
        config = {"endpoint": url.removesuffix(f"/{BUCKET}/"), "access_key_id": "none", "secret_access_key": "none"}
        yield {
            "files": lambda transform: ImageFolder(str(root), transform),
            "objects": lambda transform: ImageObjects(f"s3://{BUCKET}/", transform, config=config),
        }


def _check(setup: SetUp, sources: dict[str, Callable[[Any], Any]], options: argparse.Namespace) -> bool:
    """Measure a set-up and print its line. Return whether the choice is right."""
    dataset = sources[setup.storage](WORKS[setup.work])
    size = int(ROOMS[setup.room] * PIXEL_BYTES * len(dataset))
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for keeps in KEEPS:
            taken = _all_epochs(dataset, keeps, size, options.epochs)
            if taken is not None:
                found.setdefault(keeps, []).append(taken)
    seconds = {keeps: statistics.median(each) for keeps, each in found.items()}
    chosen, best = _chosen(dataset, size, options.epochs), min(seconds, key=seconds.__getitem__)
    right = seconds[chosen] <= RIGHT * seconds[best]
    told = ", ".join(f"{keeps} {value:.2f}" for keeps, value in seconds.items())
    print(
        f"{setup}: {told} s for {options.epochs} epochs; it chose {chosen}, {'right' if right else f'WRONG: {best} is best'}",
        flush=True,
    )
    return right


def _loader(dataset: Any, cache: Any) -> DDLPLoader:
    return DDLPLoader(dataset, BATCH, shuffle=True, num_workers=1, seed=1, cache=cache)


def _all_epochs(dataset: Any, keeps: str, size: int, epochs: int) -> float | None:
    """Return the seconds of all epochs, by the first three; None: nothing can be kept so."""
    with tempfile.TemporaryDirectory() as directory:
        loader = _loader(dataset, False if keeps == "off" else Cache(directory, size, keeps))
        times = []
        for _ in range(min(3, max(2, epochs))):
            began = time.perf_counter()
            for _batch in loader:
                pass
            times.append(time.perf_counter() - began)
            if keeps != "off" and loader.report().cache is None:
                return None
        loader.cache = False  # gives up the shelf
    return times[0] + (epochs - 1) * statistics.mean(times[1:])


def _chosen(dataset: Any, size: int, epochs: int) -> str:
    """Return what the loader keeps when it is told the number of epochs."""
    with tempfile.TemporaryDirectory() as directory:
        loader = _loader(dataset, Cache(directory, size, epochs=epochs))
        for _batch in loader:
            pass
        report = loader.report()
        loader.cache = False
    if report.cache is None:
        return "off"
    return "files" if FILES in str(report) else "pixels"


if __name__ == "__main__":
    sys.exit(main())
