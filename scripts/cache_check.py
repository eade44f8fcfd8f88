"""What the cache brings on one core: epochs without it, the one that fills it, later ones, and a new loader on what is kept.

    python -m scripts.cache_check prefix                   # evaluation: Resize and CenterCrop are kept; beside a bare loop
    python -m scripts.cache_check pixels                   # training: decoded images are kept for RandomResizedCrop
    python -m scripts.cache_check pixels --clock cpu       # processor time, for a machine that others use too
    python -m scripts.cache_check prefix --peer            # TurboLoader's TBL-RAW beside it; pip install turboloader
    python -m scripts.cache_check quota                    # hits with room for a quarter, and what an LRU cache would have

The turns alternate, each with an empty cache, and medians are compared. For "prefix" a round's later epochs, bare loops and
arrays are short, and the memory's speed changes from one to the next: they alternate several times, and their medians are the
round's. The bare loop sends the very rows, mapped from one file in a random order, through the same table into the memory of
batches: no cache, no loader, no threads. "Array" is a loader on these rows as `ddlp.ImageArrays`: the part of the difference
that is the loader's.

TBL-RAW decodes and resizes all images once, to one size, and later reads that. For "prefix" it has the crop's size; for
"pixels" 8/7 of it, from which it crops at random. So its pixels are others than torchvision's: it squashes, and crops from
fewer pixels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from benchmarks.contenders import write_tar
from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.cache.segments import ENTRY
from csd_engine.kernels import kernel
from csd_engine.machine.sizes import size_text
from ddlp import Cache, DDLPLoader, ImageArrays
from ddlp.sampledata import make_imagefolder
from ddlp.sources.host.native import Rows
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.portable import portable

BATCH = 64
SHORT_TURNS = 9  # of the bare loop, the array and the rows that are kept: each takes a fraction of a second
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRANSFORMS: dict[str, Callable[[int], Any]] = {
    "prefix": lambda size: T.Compose([T.Resize(size * 8 // 7), T.CenterCrop(size), T.ToTensor(), NORMALIZE]),
    "pixels": lambda size: T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE]),
}
AIMS = {
    "prefix": {"second epoch": 8.0, "filling epoch": 1.15, "of the bare loop": 0.8},
    "pixels": {"second epoch": 3.0, "filling epoch": 1.9},
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("point", choices=(*TRANSFORMS, "quota"))
    parser.add_argument("--data", type=Path, help="a folder of class folders with images (made, of 110 kB each)")
    parser.add_argument("--images", type=int, default=800, help="of an epoch at most (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (%(default)s)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="(%(default)s)")
    parser.add_argument("--peer", action="store_true", help='TurboLoader\'s TBL-RAW too, for "prefix" and "pixels"')
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core to use (%(default)s)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    torch.set_num_threads(1)
    if options.peer and options.point not in ("prefix", "pixels"):
        parser.error('--peer is for "prefix" and "pixels"')
    with tempfile.TemporaryDirectory() as home:
        data = options.data
        if data is None:
            data = Path(home, "images")
            data.mkdir()
            make_imagefolder(data, options.images, mean_kb=110)
            time.sleep(2.5)  # no file that was changed in the last two seconds is kept
        if options.point == "quota":
            return _quota(options, data, Path(home, "cache"))
        clock = time.perf_counter if options.clock == "wall" else time.process_time
        _report(options.point, _rounds(options, data, Path(home), clock))


def _dataset(options: argparse.Namespace, data: Path, point: str) -> ImageFolder:
    """Return the images, with the transform of a name of `TRANSFORMS`."""
    dataset = ImageFolder(str(data), TRANSFORMS[point](options.size))
    dataset.samples = dataset.imgs = dataset.samples[:: max(1, len(dataset.samples) // options.images)][: options.images]
    dataset.targets = [target for _, target in dataset.samples]
    return dataset


class _Noted(Sampler[int]):
    """A random order in each epoch, which it notes."""

    def __init__(self, samples: int) -> None:
        self._samples, self._rng = samples, np.random.default_rng(1)
        self.orders: list[list[int]] = []

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        self.orders.append(self._rng.permutation(self._samples).tolist())
        return iter(self.orders[-1])


def lru_hits(orders: list[list[int]], room: int) -> list[int]:
    """Return the hits in each epoch of a cache that drops what was not used for longest. ``room``: samples."""
    kept: OrderedDict[int, None] = OrderedDict()
    found = []
    for order in orders:
        hits = 0
        for sample in order:
            hits += sample in kept
            kept[sample] = None
            kept.move_to_end(sample)
            if len(kept) > room:
                kept.popitem(last=False)
        found.append(hits)
    return found


def _quota(options: argparse.Namespace, data: Path, directory: Path) -> None:
    """Tell the hits of each epoch, with room for a quarter of the rows."""
    dataset = _dataset(options, data, "prefix")
    room = len(dataset) // 4
    quota = DATA_OFFSET + 8 + room * (options.size * options.size * 3 + ENTRY.itemsize)
    order = _Noted(len(dataset))
    loader = DDLPLoader(dataset, BATCH, sampler=order, num_workers=1, cache=Cache(directory, quota))
    hits = []
    for _ in range(1 + options.rounds):
        for _batch in loader:
            pass
        counts = loader.report().cache
        hits.append(0 if counts is None else counts.hits)
    for name, found in (("ddlp", hits), ("LRU", lru_hits(order.orders[: len(hits)], room))):
        print(f"{name:5} hits in each epoch: {', '.join(f'{one / len(dataset):.1%}' for one in found)}")
    loader.cache = False  # gives up the shelf


def _tbl_raw(options: argparse.Namespace, dataset: ImageFolder, home: Path) -> Callable[[int], int]:
    """Write TBL-RAW's file; return what runs an epoch, given its number, and counts the samples."""
    try:
        import turboloader
    except ImportError:
        raise SystemExit("--peer needs TurboLoader: pip install turboloader") from None
    crops, archive, file = options.point == "pixels", home / "images.tar", str(home / "images.tbl")
    with archive.open("wb") as stream:
        write_tar(stream, [path for path, _ in dataset.samples])
    side = options.size * 8 // 7 if crops else options.size
    turboloader.preprocess_to_tbl(str(archive), file, side, num_workers=1)
    loader = turboloader.TblRawImageLoader(
        file, BATCH, image_size=options.size, train_aug=crops, hflip_prob=0.5 if crops else 0.0, prefetch_batches=0
    )

    def epoch(number: int) -> int:
        loader.set_epoch(number)
        return sum(len(images) for images, _ in loader)

    return epoch


def _rounds(options: argparse.Namespace, data: Path, home: Path, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of each round, by what was measured."""
    dataset = _dataset(options, data, options.point)

    def loader(cache: Any) -> DDLPLoader:
        return DDLPLoader(dataset, BATCH, shuffle=True, num_workers=1, seed=1, cache=cache)

    def seconds(one: DDLPLoader) -> float:
        began = clock()
        for _ in one:
            pass
        return clock() - began

    def all_hits(one: DDLPLoader) -> bool:
        """Whether all samples used the cache."""
        counts = one.report().cache
        return counts is not None and not counts.misses

    plain = loader(False)
    seconds(plain)  # files into memory
    bare = array = None
    if options.point == "prefix":
        rows = _rows(plain, home / "rows.npy")
        bare = _bare(plain, rows)
        arrays = ImageArrays(rows, dataset.targets, T.Compose([T.ToTensor(), NORMALIZE]))
        array = DDLPLoader(arrays, BATCH, shuffle=True, num_workers=1, seed=1)
    peer = _tbl_raw(options, dataset, home) if options.peer else None
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=home) as directory:
            cached, turn = loader(Cache(directory, "100G", "pixels")), {"plain": seconds(plain)}
            turn["filling"] = seconds(cached)
            turn["second"] = seconds(cached)
            assert all_hits(cached), cached.report()
            if peer is not None:
                began = clock()
                assert peer(number) == len(dataset)
                turn["TBL-RAW"] = clock() - began
            later: dict[str, list[float]] = defaultdict(list)
            for seed in range(1 if bare is None else SHORT_TURNS):
                if bare is not None and array is not None:
                    began = clock()
                    bare(seed)
                    later["bare"].append(clock() - began)
                    later["array"].append(seconds(array))
                later["later"].append(seconds(cached))
            turn.update((name, statistics.median(values)) for name, values in later.items())
            written = sum(file.stat().st_size for file in Path(directory).rglob("*.safetensors"))
            again = loader(Cache(directory, "100G", "pixels"))
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
        "later epoch": (seconds["plain"] / seconds["later"], "times as fast as without", min),
        "new loader": (seconds["second"] / seconds["new loader"], "of the second epoch's rate, with all verified", min),
        "filling epoch": (seconds["filling"] / seconds["plain"], "times as long as without", max),
    }
    if "bare" in seconds:
        ratios["of the bare loop"] = (seconds["bare"] / seconds["later"], "of the bare loop's rate, later epochs", min)
        ratios["of the array"] = (seconds["array"] / seconds["later"], "of the rate of a loader on the rows in an array", min)
    if "TBL-RAW" in seconds:
        ratios["TBL-RAW"] = (seconds["TBL-RAW"] / seconds["later"], "of TBL-RAW's rate, which makes other pixels", min)
    for name, (ratio, what, worse) in ratios.items():
        aim = AIMS[point].get(name)
        judged = "" if aim is None else f"  (aim {aim:g}: {'met' if worse(ratio, aim) == aim else 'missed'})"
        print(f"{name:18}{ratio:6.2f} {what}{judged}")


if __name__ == "__main__":
    main()
