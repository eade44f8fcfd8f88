"""What the cache brings on one core: epochs without it, the one that fills it, later ones, and a new loader on what is kept.

    python -m scripts.cache_check prefix                   # evaluation: Resize and CenterCrop are kept; beside a bare loop
    python -m scripts.cache_check pixels                   # training: decoded images are kept for RandomResizedCrop
    python -m scripts.cache_check index                    # training: indexes of JPEG files are kept
    python -m scripts.cache_check pixels --clock cpu       # processor time, for a machine that others use too

The turns alternate, each with an empty cache, and medians are compared. The bare loop sends the very rows, mapped from one file
in a random order, through the same table into the memory of batches: no cache, no loader, no threads. "Array" is a loader on
these rows as `ddlp.ImageArrays`: the part of the difference that is the loader's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from csd_engine.kernels import kernel
from csd_engine.machine.sizes import size_text
from ddlp import Cache, DDLPLoader, ImageArrays
from ddlp.sampledata import make_imagefolder
from ddlp.sources.host.native import Rows
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.portable import portable

BATCH = 64
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRANSFORMS: dict[str, Callable[[int], Any]] = {
    "prefix": lambda size: T.Compose([T.Resize(size * 8 // 7), T.CenterCrop(size), T.ToTensor(), NORMALIZE]),
    "pixels": lambda size: T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE]),
}
TRANSFORMS["index"] = TRANSFORMS["pixels"]
AIMS = {
    "prefix": {"second epoch": 8.0, "filling epoch": 1.15, "of the bare loop": 0.8},
    "pixels": {"second epoch": 3.0, "filling epoch": 1.9},
    "index": {"second by first": 1.2, "filling epoch": 1.15},
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("point", choices=TRANSFORMS)
    parser.add_argument("--data", type=Path, help="a folder of class folders with images (made, of 110 kB each)")
    parser.add_argument("--images", type=int, default=800, help="of an epoch at most (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (%(default)s)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="(%(default)s)")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core to use (%(default)s)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        data = options.data
        if data is None:
            data = Path(home, "images")
            data.mkdir()
            make_imagefolder(data, options.images, mean_kb=110)
        clock = time.perf_counter if options.clock == "wall" else time.process_time
        _report(options.point, _rounds(options, data, Path(home), clock))


def _rounds(options: argparse.Namespace, data: Path, home: Path, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of each round, by what was measured."""
    transform = TRANSFORMS[options.point](options.size)
    dataset = ImageFolder(str(data), transform)
    dataset.samples = dataset.imgs = dataset.samples[:: max(1, len(dataset.samples) // options.images)][: options.images]
    dataset.targets = [target for _, target in dataset.samples]

    def loader(cache: Any) -> DDLPLoader:
        return DDLPLoader(dataset, BATCH, shuffle=True, num_workers=1, seed=1, cache=cache)

    def seconds(one: DDLPLoader) -> float:
        began = clock()
        for _ in one:
            pass
        return clock() - began

    def all_hits(one: DDLPLoader) -> bool:
        """Whether all samples used the cache. Progressive files have no index."""
        counts = one.report().cache
        return counts is not None and counts.misses <= (len(dataset) // 5 if options.point == "index" else 0)

    keeps = "indexes" if options.point == "index" else "pixels"

    plain = loader(False)
    seconds(plain)  # files into memory
    bare = array = None
    if options.point == "prefix":
        rows = _rows(plain, home / "rows.npy")
        bare = _bare(plain, rows)
        arrays = ImageArrays(rows, dataset.targets, T.Compose([T.ToTensor(), NORMALIZE]))
        array = DDLPLoader(arrays, BATCH, shuffle=True, num_workers=1, seed=1)
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=home) as directory:
            cached, turn = loader(Cache(directory, "100G", keeps)), {"plain": seconds(plain)}
            turn["filling"] = seconds(cached)
            turn["second"] = seconds(cached)
            assert all_hits(cached), cached.report()
            if bare is not None:
                began = clock()
                bare(number)
                turn["bare"] = clock() - began
            if array is not None:
                turn["array"] = seconds(array)
            turn["third"] = seconds(cached)
            written = sum(file.stat().st_size for file in Path(directory).rglob("*.safetensors"))
            again = loader(Cache(directory, "100G", keeps))
            turn["new loader"] = seconds(again)
            assert all_hits(again), again.report()
            cached.cache = again.cache = False  # gives up the shelf
            del cached, again
        for name, value in turn.items():
            found.setdefault(name, []).append(value)
        per_s = ", ".join(f"{name} {len(dataset) / value:,.0f}" for name, value in turn.items())
        print(f"round {number + 1}: {per_s} images/s; {size_text(written)} kept", flush=True)
    return found


def _rows(loader: DDLPLoader, file: Path) -> np.ndarray:
    """Write the samples as bytes into a file, uint8 (n, height, width, channels), and map it."""
    as_bytes = DDLPLoader(loader.dataset, BATCH, num_workers=1, output=torch.uint8, memory_format=torch.channels_last)
    np.save(file, np.concatenate([images.permute(0, 2, 3, 1).numpy() for images, _ in as_bytes]))
    return np.asarray(np.load(file, mmap_mode="r"))


def _bare(loader: DDLPLoader, rows: np.ndarray) -> Callable[[int], None]:
    """Return the bare loop over an epoch's rows."""
    found, fast, pool = portable(loader, None, None), kernel(), MemoryPool(2)
    if fast is None:
        raise SystemExit("the bare loop needs the kernel")

    def loop(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(rows))
        for part in np.split(order, range(BATCH, len(order), BATCH)):
            batch = Rows(found.epilogue, found.shape, 0, len(part), pool, finished=True)
            for k, source in enumerate(part.tolist()):
                place = batch.finished_place(slice(k, k + 1))
                assert place is not None
                assert place.table is not None
                fast.table(rows[source : source + 1], place.table, place.out, place.channels_last)
            batch.pixels()

    loop(0)
    return loop


def _report(point: str, found: dict[str, list[float]]) -> None:
    seconds = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        "second epoch": (seconds["plain"] / seconds["second"], "times as fast as without", min),
        "third epoch": (seconds["plain"] / seconds["third"], "times as fast as without", min),
        "new loader": (seconds["second"] / seconds["new loader"], "of the second epoch's rate, with all verified", min),
        "filling epoch": (seconds["filling"] / seconds["plain"], "times as long as without", max),
    }
    if point == "index":
        ratios["second by first"] = (seconds["filling"] / seconds["second"], "times as fast as the first, which fills it", min)
    if "bare" in seconds:
        ratios["of the bare loop"] = (seconds["bare"] / seconds["second"], "of the bare loop's rate, second epoch", min)
        ratios["of the array"] = (seconds["array"] / seconds["second"], "of the rate of a loader on the rows in an array", min)
    for name, (ratio, what, worse) in ratios.items():
        aim = AIMS[point].get(name)
        judged = "" if aim is None else f"  (aim {aim:g}: {'met' if worse(ratio, aim) == aim else 'missed'})"
        print(f"{name:18}{ratio:6.2f} {what}{judged}")


if __name__ == "__main__":
    main()
