"""`python -m tests.way.scene HOME` loads in three ways, and writes to HOME/shares.json what runs for a batch in mid-epoch.

A window is open while training takes some batches; the next one opens at once. What is on a batch's way runs in nearly all
windows, and what comes by the clock, or at an epoch's begin and end, in few.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from ddlp import DDLPLoader
from tests.way import sitecustomize

BATCH, BATCHES = 24, 120
CROP = 96  # so that a batch has more than 512 KiB, as those of a training have: smaller files are not mapped
WARM_UP = 24  # batches before the first window: by then memory is used again, and user code is known


class Squares(Dataset):
    """User code that takes more than a millisecond for a batch, from where on its waiting for a processor is counted."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(1e-4)
        return torch.rand(3, 8, 8), index


class Way(NamedTuple):
    """A way that batches go: its loader, its windows, and when training asks for the next batch."""

    name: str
    loader: Callable[[ImageFolder], DDLPLoader]
    windows: int
    batches: int  # in each window: more than the host has in memory, so that one goes the whole way; of an engine's one
    ready: Callable[[Any], object] = lambda iterator: True


WAYS = (
    Way("cpu", lambda images: DDLPLoader(images, BATCH, shuffle=True, num_workers=2, strategy="cpu"), 6, 8),
    Way("usercode", lambda _: DDLPLoader(Squares(), BATCH, shuffle=True, num_workers=1), 6, 8),
    # Training takes a batch when one of the engine's is there: it comes before the host's, which fill their slots and rest.
    Way(
        "wrr", lambda images: DDLPLoader(images, BATCH, shuffle=True, num_workers=2, strategy="wrr"), 16, 2,
        lambda iterator: iterator.executor.ledger.ready_csd,
    ),
)  # fmt: skip


def image_folder(root: Path) -> ImageFolder:
    """Many files, which are links to eight."""
    drawn = np.random.default_rng(5)
    root.joinpath("class").mkdir(parents=True)
    paths = [root / "class" / f"{number:04d}.jpg" for number in range(BATCH * BATCHES)]
    for number, path in enumerate(paths):
        if number < 8:
            coarse = drawn.integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((400, 300)).save(path, quality=90)
        else:
            path.hardlink_to(paths[number % 8])
    steps = [transforms.RandomResizedCrop(CROP), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return ImageFolder(str(root), transforms.Compose([*steps, transforms.Normalize((0.5,) * 3, (0.25,) * 3)]))


def shares(way: Way, images: ImageFolder, home: Path) -> dict[str, dict[str, float]]:
    """Take batches of a way. Returns of each "file" and "type" that ran the part of the windows in which it did, 0 to 1."""
    (home / "window").write_bytes(b"\0")
    (home / "ran").write_bytes(b"")
    trace = sitecustomize.trace(home)
    loader = way.loader(images)
    iterator = iter(loader)

    def take(batches: int) -> None:
        for _ in range(batches):
            sys.settrace(None)  # what `ready` runs is not the batch's
            while not way.ready(iterator):
                time.sleep(0.001)
            sys.settrace(trace)
            next(iterator)

    with open(home / "window", "r+b") as window:
        take(WARM_UP)
        for number in range(way.windows):
            os.pwrite(window.fileno(), bytes([number + 1]), 0)
            take(way.batches)
        os.pwrite(window.fileno(), b"\0", 0)
    sys.settrace(None)
    counts: dict[str, Counter[str]] = {"file": Counter(), "type": Counter()}
    for _, kind, name in sorted({tuple(text.split()) for text in (home / "ran").read_text().splitlines()}):
        counts[kind][name] += 1
    return {kind: {name: count / way.windows for name, count in counted.items()} for kind, counted in counts.items()}


def main(home: Path) -> None:
    images = image_folder(home / "images")
    tracer = str(Path(sitecustomize.__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tracer, os.environ.get("PYTHONPATH")]))
    os.environ[sitecustomize.HOME] = str(home)
    os.environ["DDLP_ENGINE_SLOWDOWN"] = "2"  # training waits for it, so that it is at work in each window
    found = {way.name: shares(way, images, home) for way in WAYS}
    (home / "shares.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
