"""What JPEG indexes bring: epochs of RandomResizedCrop without, the first one by indexes, which makes them, and a later one.

Each round has these three epochs over the same files, with the same crops, on one core and in an order that turns. Samples are
float32, as the host delivers them; files are in the system's cache. Times are processor seconds of this process. The coded bits
decoded and the bytes read in the later epoch are parts of those in the first one, which decodes all. Medians of the rounds.

    python -m scripts.index_check                     # a minute or two; makes its own files of 110 kB
    python -m scripts.index_check --data DIR --size 176 --rounds 9
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from csd_engine.cache.indexes import IndexesInMemory
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.read_time import READING
from ddlp.sampledata import make_imagefolder
from ddlp.sources.host.native import Rows
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.portable import Portable, portable

BATCH = 64
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
AIMS = {
    "images/s": (1.2, "at least"),
    "coded bits": (0.65, "at most"),
    "bytes": (0.85, "at most"),
    "first epoch": (1.15, "at most"),
}


class Epoch(NamedTuple):
    """What an epoch took: processor seconds, bytes read of files, coded bits decoded."""

    seconds: float
    bytes: int
    coded_bits: int


def run(found: Portable, sources: np.ndarray, number: int, indexes: IndexesInMemory | None) -> Epoch:
    """Make an epoch's batches."""
    maker = BatchMaker(found.dataset.reader(), found.pipeline, found.shape, 0, indexes)
    rows = Rows(found.epilogue, found.shape, 0, BATCH, MemoryPool(1), finished=True)
    before, began = (READING.bytes, READING.coded_bits), time.process_time()
    for some in np.split(sources, len(sources) // BATCH):
        at = 0
        with maker.start(some, np.zeros_like(some), 0, number, known=True) as batch:
            while at < BATCH:
                at = batch.make(at, rows)
    return Epoch(time.process_time() - began, READING.bytes - before[0], READING.coded_bits - before[1])


def rounds(found: Portable, sources: np.ndarray, count: int) -> dict[str, list[float]]:
    """Measure, print each round, and return the ratios of all rounds."""
    ratios: dict[str, list[float]] = {name: [] for name in AIMS}
    run(found, sources[:BATCH], 0, IndexesInMemory(1 << 30))
    for number in range(count):
        indexes, epochs = IndexesInMemory(1 << 30), {}
        for name in ("plain", "first", "later") if number % 2 else ("first", "later", "plain"):
            epochs[name] = run(found, sources, number, None if name == "plain" else indexes)
        plain, first, later = epochs["plain"], epochs["first"], epochs["later"]
        for name, ratio in zip(
            AIMS,
            (
                plain.seconds / later.seconds,
                later.coded_bits / first.coded_bits,
                later.bytes / first.bytes,
                first.seconds / plain.seconds,
            ),
            strict=True,
        ):
            ratios[name].append(ratio)
        rates = ", ".join(f"{name} {len(sources) / one.seconds:.0f}" for name, one in sorted(epochs.items()))
        print(f"  round {number + 1}: images a processor second: {rates}; plain decodes "
              f"{plain.coded_bits / first.coded_bits:.2f} of the coded bits; indexes take "
              f"{indexes.bytes / first.bytes:.2%} of the files", flush=True)  # fmt: skip
    return ratios


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory with train/CLASS/*.jpg (makes files of 110 kB)")
    parser.add_argument("--size", type=int, default=224, help="of the samples (%(default)s)")
    parser.add_argument("--images", type=int, default=640, help="of an epoch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(%(default)s)")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core to use (%(default)s)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        data = options.data or Path(home)
        if not options.data:
            make_imagefolder(data, options.images, mean_kb=110)
        transform = T.Compose([T.RandomResizedCrop(options.size), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE])
        images = ImageFolder(str(data / "train"), transform)
        found = portable(DataLoader(images, BATCH), torch.float32, torch.contiguous_format)
        count = min(options.images, len(images)) // BATCH * BATCH
        ratios = rounds(found, np.random.default_rng(0).permutation(len(images))[:count], options.rounds)
    for name, some in ratios.items():
        aim, side = AIMS[name]
        said = {"images/s": "later epoch, images/s against plain", "first epoch": "first epoch, time against plain"}
        print(f"{said.get(name, f'later epoch, {name} against the first')}: {statistics.median(some):.3f} "
              f"({min(some):.3f} .. {max(some):.3f}), aim {side} {aim}")  # fmt: skip


if __name__ == "__main__":
    main()
