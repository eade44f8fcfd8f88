"""Loaders drawn from a seed: data set, subsets, transform, targets, sampler, collate, workers, strategy, cache, own steps."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddlp import Cache, DDLPLoader, ImageArrays, ImageFiles
from ddlp.errors import Untranslatable
from ddlp.transforms import Views
from tests.ddlp.dropin.small_sets import Listed

Named = collections.namedtuple("Named", "x y")
SIZED = (v1.Resize(20), v1.CenterCrop(16))


def rotated(image: Image.Image) -> Image.Image:
    return image.rotate(7)


def pair(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return image, image[:, ::2]


def stacked(crops: Any) -> torch.Tensor:
    return torch.stack([v1.functional.to_tensor(crop) for crop in crops])


def picky(image: torch.Tensor) -> torch.Tensor:
    """Raise for some images."""
    if int(image.sum() * 100) % 7 == 0:
        raise ValueError("the user's step does not like it")
    return image


TRANSFORMS: dict[str, Any] = {
    "known": v1.Compose([*SIZED, v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2))]),
    "v2": v2.Compose([v2.Resize((18, 20)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    "grey": v1.Compose([v1.Grayscale(), *SIZED, v1.ToTensor()]),
    "bytes": v1.Compose([*SIZED, v1.PILToTensor()]),
    "padded": v1.Compose([v1.Pad((3, 5), padding_mode="reflect"), *SIZED, v1.ToTensor(), v1.ConvertImageDtype(torch.float16)]),
    "five crops": v1.Compose([v1.Resize(24), v1.FiveCrop(16), v1.Lambda(stacked)]),
    "views": Views(v1.Compose([*SIZED, v1.ToTensor()]), v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])),
    "own steps, PIL": v1.Compose([*SIZED, v1.Lambda(rotated), v1.ToTensor()]),
    "own steps, tensors": v1.Compose([*SIZED, v1.ToTensor(), v1.Lambda(pair)]),
    "own steps that raise": v1.Compose([*SIZED, v1.ToTensor(), v1.Lambda(picky)]),
    "user code": v1.Compose([v1.Lambda(rotated), *SIZED, v1.ToTensor()]),
}
TARGETS: dict[str, Callable[[int], Any] | None] = {
    "plain": None,
    "str": str,
    "tuple": lambda k: (k, str(k), float(k)),
    "named tuple": lambda k: Named(k, (str(k), b"y")),
    "dict": lambda k: {"a": k, "b": torch.full((2,), k), "c": np.float32(k)},
    "None": lambda k: None,
}


ORDERS = ("sequential", "shuffle", "generator", "replacement", "subset", "weighted", "own", "batches", "torch's batches")


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def as_dict(samples: list[Any]) -> dict[str, Any]:
    return {"first": samples[0][0], "targets": [target for _, target in samples]}


class Own(Dataset):
    """A data set of the user's, with image files."""

    def __init__(self, paths: list[str], transform: Any, target: Any) -> None:
        self.paths, self.transform, self.target = paths, transform, target

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            made = self.transform(image.convert("RGB"))
        return made, index if self.target is None else self.target(index)


class OwnInBatches(Own):
    """With ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@dataclass
class Combination:
    """One loader, as a function of its class.

    Attributes:
        text: the combination in words.
        arguments: makes DataLoader's arguments anew, since samplers and generators have states.
        own: ddlp's own arguments.
        ordered: batches come in the sampler's order.
        steps: of each epoch at most.
    """

    text: str
    dataset: Any
    arguments: Callable[[], dict[str, Any]]
    own: dict[str, Any]
    ordered: bool
    steps: tuple[int, ...]

    def loader(self, kind: type[DataLoader]) -> DataLoader:
        """Return DataLoader's, or ddlp's with its own arguments as well. What no device can make is the host's."""
        if not issubclass(kind, DDLPLoader):
            return kind(self.dataset, **self.arguments())
        try:
            return kind(self.dataset, **self.arguments(), **self.own)
        except Untranslatable:
            return kind(self.dataset, **self.arguments(), **(self.own | {"strategy": "cpu"}))


def combination(seed: int, paths: list[str], damaged: str, spool: str, cache: str) -> Combination:
    """Draw a combination. ``paths``: image files; ``damaged``: one that can't be decoded."""
    draw = random.Random(seed)
    names = {"transform": draw.choice(list(TRANSFORMS)), "target": draw.choice(list(TARGETS))}
    files = draw.sample(paths, draw.randint(5, len(paths)))
    # One kind of error at a time: which of two comes first in a batch is not held.
    wrong = "" if names["transform"] == "own steps that raise" else draw.choice(["", "", "", "", "file", "index"])
    if wrong == "file":
        files[draw.randrange(len(files))] = damaged
    kind = draw.choice(["files", "files", "files", "arrays", "own", "own in batches"])
    made = [_dataset(kind, part, TRANSFORMS[names["transform"]], TARGETS[names["target"]]) for part in (files, files[::2])]
    subset = draw.choice(["whole", "whole", "subset", "subset of a subset", "concatenated", "concatenated subsets"])
    dataset = _of_subsets(subset, made, draw)
    length = len(dataset)
    order = draw.choice(ORDERS)
    size = draw.choice([1, 2, 3, 4, length + 1, None])
    bad = draw.choice([length, None, "1", slice(0, 1)]) if wrong == "index" else 0
    items = [draw.randrange(-length, length) for _ in range(draw.randint(1, 2 * length))]
    drop_last, own_seed = draw.random() < 0.3, draw.randrange(1000)
    collate = draw.choice([None, None, None, as_list, as_dict])
    workers = draw.choice([0, 0, 0, 1, 2])
    more: dict[str, Any] = {"num_workers": workers}
    if workers:
        more["persistent_workers"] = draw.random() < 0.4
        more["prefetch_factor"] = draw.choice([None, 1, 3])
    if collate is not None and not (size is None and "batches" not in order):
        more["collate_fn"] = collate

    def arguments() -> dict[str, Any]:
        given = _order(order, size, drop_last, dataset, own_seed, [*items[:2], bad, *items[2:]])
        return {**more, **given}

    strategy = draw.choice([None, "cpu", "ordered", "wrr", "csd"])
    own: dict[str, Any] = {"strategy": strategy, "spool": spool}
    if draw.random() < 0.3:
        own["cache"] = Cache(cache, "100M")
    own["own_steps"] = draw.choice(["processes", "processes", "threads", "off"])
    steps = draw.choice([(200, 200), (200, 200), (2, 200), (200, 1)])
    about = dict(names, kind=kind, subset=subset, order=order, size=size, bad=bad, drop_last=drop_last, **more, **own)
    about |= {"files": len(files), "damaged": damaged in files, "steps": steps}
    return Combination(str(about), dataset, arguments, own, strategy in (None, "cpu", "ordered"), steps)


def _dataset(kind: str, files: list[str], transform: Any, target: Any) -> Any:
    if kind == "files":
        return ImageFiles(files, list(range(len(files))), transform, target_transform=target)
    if kind == "arrays":
        pixels = np.random.default_rng(len(files)).integers(0, 256, (len(files), 22, 26, 3), dtype=np.uint8)
        return ImageArrays(pixels, list(range(len(files))), transform, target_transform=target)
    return (Own if kind == "own" else OwnInBatches)(files, transform, target)


def _of_subsets(how: str, made: list[Any], draw: random.Random) -> Any:
    def some(dataset: Any) -> Any:
        return Subset(dataset, [draw.randrange(len(dataset)) for _ in range(draw.randint(2, len(dataset)))])

    first, second = made
    return {
        "whole": lambda: first,
        "subset": lambda: some(first),
        "subset of a subset": lambda: some(some(first)),
        "concatenated": lambda: ConcatDataset([first, second]),
        "concatenated subsets": lambda: ConcatDataset([some(first), second, some(second)]),
    }[how]()


def _order(how: str, size: int | None, drop_last: bool, dataset: Any, seed: int, items: list[Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    sized = {"batch_size": size, **({"drop_last": drop_last} if size is not None else {})}
    numbers = [item for item in items if isinstance(item, int)]
    samplers: dict[str, Callable[[], dict[str, Any]]] = {
        "sequential": lambda: sized,
        "shuffle": lambda: {"shuffle": True, **sized},
        "generator": lambda: {"shuffle": True, "generator": generator, **sized},
        "replacement": lambda: {"sampler": RandomSampler(dataset, True, len(items), generator), **sized},
        "subset": lambda: {"sampler": SubsetRandomSampler(items), "generator": generator, **sized},
        "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * len(dataset), len(items)), **sized},
        "own": lambda: {"sampler": Listed(items), **sized},
        "batches": lambda: {"batch_sampler": Listed([items[k : k + 3] for k in range(0, len(items), 3)])},
        "torch's batches": lambda: {"batch_sampler": BatchSampler(SubsetRandomSampler(numbers), 3, drop_last)},
    }
    return samplers[how]()
