"""Small data sets for these tests, and user code that other processes can import."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchvision import transforms

from ddlp import ImageFiles

SAMPLES = 41

DETERMINISTIC = transforms.Compose(
    [
        transforms.Resize(20),
        transforms.CenterCrop(16),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)
RANDOM = transforms.Compose(
    [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


def write_images(root: Path, count: int = SAMPLES) -> list[str]:
    """JPEG files of different sizes in three class directories."""
    drawn = np.random.default_rng(3)
    paths = []
    for number in range(count):
        height, width = (int(k) for k in drawn.integers(24, 48, 2))
        coarse = drawn.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8)
        path = root / f"class{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize((width, height)).save(path, quality=85)
        paths.append(str(path))
    return paths


def numbered(paths: list[str], transform: Any = DETERMINISTIC, **options: Any) -> ImageFiles:
    """The files, each with its number as the target."""
    return ImageFiles(paths, list(range(len(paths))), transform, **options)


def by_target(batches: list[Any]) -> dict[int, torch.Tensor]:
    """Samples by target. Each target must come once."""
    found: dict[int, torch.Tensor] = {}
    for images, targets in batches:
        for image, target in zip(images, targets.tolist(), strict=True):
            assert target not in found
            found[target] = image
    return found


def check_samples(loader: Any, strategy: str, expected: dict[int, torch.Tensor]) -> None:
    """Check that each sample comes once, with the expected bits. With csd, every batch must come from the device."""
    found = by_target(list(loader))
    assert sorted(found) == list(range(SAMPLES))
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    if strategy == "csd":
        assert loader.report().batches_csd == len(loader) > 0


def order(batches: list[Any]) -> list[list[int]]:
    """The targets of each batch."""
    return [targets.tolist() for _, targets in batches]


class Draws(Dataset):
    """User code. A sample is a number from each of the three global generators; its target is its index."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64), index


class DrawsInBatches(Draws):
    """With ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        return [self[index] for index in indices]


class Seen(Draws):
    """A sample says whether get_worker_info().dataset is the data set that the worker runs."""

    def __getitem__(self, index: int) -> tuple[bool, str, int]:
        info = get_worker_info()
        return info.dataset is self, type(info.dataset).__name__, index


class Fails(Draws):
    """One sample raises."""

    def __init__(self, at: int, error: type[Exception] = KeyError) -> None:
        super().__init__()
        self.at, self.error = at, error

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise self.error(f"sample {index} is not well")
        return super().__getitem__(index)


class Stream(IterableDataset):
    """Numbers, shared among the workers."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.count, step))


class Told(Stream):
    """A stream with set_epoch, like Hugging Face's."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return (100 * self.epoch + number for number in super().__iter__())


class Invert:
    """A user's transform."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return 255 - torch.from_numpy(np.asarray(image.resize((8, 8))).copy())


def pairs(samples: list[Any]) -> dict[str, Any]:
    """A user's collate_fn."""
    return {"x": torch.stack([s[0] for s in samples]), "y": [s[1] for s in samples]}


class Counting:
    """A user's sampler that counts its draws."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.drawn = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        for k in range(self.count):
            self.drawn += 1
            yield (k * 7) % self.count


class BeginsAnew:
    """A user's sampler that is its own iterator: iter() restarts it. With a size it gives batches."""

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.begun = 0

    def __len__(self) -> int:
        return -(-SAMPLES // (self.size or 1))

    def __iter__(self) -> Any:
        self.begun += 1
        order = torch.randperm(SAMPLES)
        self.left = iter(order.tolist() if self.size is None else [batch.tolist() for batch in order.split(self.size)])
        return self

    def __next__(self) -> Any:
        return next(self.left)


class CountingBatches(Counting):
    """A user's batch sampler with batches of different sizes."""

    def __len__(self) -> int:
        return len([k for k in self._sizes()])

    def _sizes(self) -> list[int]:
        sizes, left, k = [], self.count, 0
        while left:
            sizes.append(min(left, k % 4 + 1))
            left -= sizes[-1]
            k += 1
        return sizes

    def __iter__(self) -> Any:
        at = 0
        for size in self._sizes():
            self.drawn += 1
            yield [(k * 7) % self.count for k in range(at, at + size)]
            at += size


class Listed:
    """A user's sampler, or batch sampler."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Any:
        return iter(self.items)
