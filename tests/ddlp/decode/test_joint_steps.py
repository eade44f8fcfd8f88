"""Transforms of image and target together, as reference scripts for segmentation and detection write them, on postponed images.

Whole seeded epochs in torch's own workers are the same. An image is decoded at the tensor, unless a step needs its pixels.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from ddlp import decode
from ddlp.decode.image import PostponedImage
from tests.jpegkinds import encode_kind, picture

Target = Any
Step = Callable[[Any, Target], tuple[Any, Target]]
LATE: list[bool] = []  # of the images of this process that became tensors: whether they were not decoded before


def as_tensor(image: Any, target: Target) -> tuple[Any, Target]:
    LATE.append(type(image) is PostponedImage)
    if isinstance(target, Image.Image):
        target = torch.from_numpy(np.array(target, dtype=np.int64))
    return F.convert_image_dtype(F.pil_to_tensor(image), torch.float), target


def to_size(image: Any, target: Target, size: list[int]) -> tuple[Any, Target]:
    before = image.size
    image = F.resize(image, size)
    if isinstance(target, Image.Image):
        return image, F.resize(target, size, interpolation=F.InterpolationMode.NEAREST)
    target["boxes"] *= torch.tensor(image.size).repeat(2) / torch.tensor(before).repeat(2)
    target["masks"] = F.resize(target["masks"], [image.height, image.width], interpolation=F.InterpolationMode.NEAREST)
    return image, target


def short_side(image: Any, target: Target) -> tuple[Any, Target]:
    return to_size(image, target, [random.randint(60, 120)])


def scale(image: Any, target: Target) -> tuple[Any, Target]:
    factor = float(0.4 + torch.rand(1) * 1.4)
    return to_size(image, target, [int(image.height * factor), int(image.width * factor)])


def mirror(image: Any, target: Target) -> tuple[Any, Target]:
    if torch.rand(1) >= 0.5:
        return image, target
    image = F.hflip(image)
    if isinstance(target, Image.Image):
        return image, F.hflip(target)
    target["boxes"][:, [0, 2]] = image.width - target["boxes"][:, [2, 0]]
    target["masks"] = target["masks"].flip(-1)
    return image, target


def window(image: Any, target: Target, size: int = 90) -> tuple[Any, Target]:
    """A part of this size. What a smaller image lacks is filled."""
    width, height = min(size, image.width), min(size, image.height)
    left, top = (int(float(torch.rand(1)) * room) for room in (image.width - width, image.height - height))
    missing = [0, 0, size - width, size - height]
    image = F.crop(image, top, left, height, width)
    image = F.pad(image, missing, (123, 117, 104)) if any(missing) else image
    if isinstance(target, Image.Image):
        return image, F.pad(F.crop(target, top, left, height, width), missing, 255)
    target["boxes"] -= torch.tensor([left, top, left, top])
    target["masks"] = F.pad(F.crop(target["masks"], top, left, height, width), missing)
    return image, target


def around_a_box(image: Any, target: Target) -> tuple[Any, Target]:
    """A part with the middle of a box in it, found by trials."""
    for _ in range(20):
        width, height = (int(length * (0.3 + 0.7 * float(torch.rand(1)))) for length in image.size)
        left, top = (int(float(torch.rand(1)) * room) for room in (image.width - width, image.height - height))
        middle = target["boxes"].view(-1, 2, 2).mean(1) - torch.tensor([left, top])
        if bool(((middle > 0) & (middle < torch.tensor([width, height]))).all(1).any()):
            target["masks"] = F.crop(target["masks"], top, left, height, width)
            return F.crop(image, top, left, height, width), target
    return image, target


CHAINS: dict[str, tuple[tuple[Step, ...], float]] = {  # of each, the least part of its images that is decoded at the tensor
    "segmentation": ((short_side, mirror, window, as_tensor), 0.1),
    "flip": ((mirror, as_tensor), 1.0),
    "large scale jitter": ((scale, window, mirror, as_tensor), 0.1),
    "SSDLite": ((around_a_box, mirror, as_tensor), 1.0),
    "v2": ((v2.ScaleJitter((90, 90)), mirror, window, as_tensor), 0.1),
}


class Photographs(Dataset):
    """Images and their targets: a mask in a file, or boxes with masks."""

    def __init__(self, folder: Path, steps: tuple[Step, ...], segmentation: bool) -> None:
        self.paths, self.steps, self.segmentation = sorted(folder.glob("*.jpg")), steps, segmentation

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Target]:
        image = Image.open(self.paths[index]).convert("RGB")
        width, height = image.size
        target: Target = Image.open(self.paths[index].with_suffix(".png"))
        if not self.segmentation:
            boxes = torch.tensor([[0.1, 0.2, 0.5, 0.6], [0.4, 0.3, 0.9, 0.8]]) * torch.tensor([width, height] * 2)
            target = {"boxes": boxes, "masks": torch.from_numpy(np.array(target)[None] == torch.tensor([[[1]], [[2]]]).numpy())}
        for step in self.steps:
            image, target = step(image, target)
        return image, target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for number, kind in enumerate(["420", "444", "grey", "420 restart", "444 progressive"] * 2):
        size = 100 + 9 * number, 140 - 3 * number
        (folder / f"{number:02}.jpg").write_bytes(encode_kind(kind, picture(number, size)))
        values = np.random.default_rng(number).integers(0, 3, size[::-1], dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{number:02}.png")
    return folder


def epochs(folder: Path, name: str, workers: int) -> list[Any]:
    """Two seeded epochs, and the random numbers after them."""
    random.seed(4)
    torch.manual_seed(5)
    context = "fork" if workers else None
    data = Photographs(folder, CHAINS[name][0], name == "segmentation")
    loader = DataLoader(data, 4, shuffle=True, num_workers=workers, collate_fn=list, multiprocessing_context=context)
    found = [sample for _ in range(2) for batch in loader for sample in batch]
    return [*found, random.random(), torch.rand(3)]


@pytest.mark.parametrize(("name", "workers"), [*((name, 0) for name in CHAINS), ("segmentation", 2), ("large scale jitter", 2)])
def test_seeded_epochs_are_the_scripts_own(name, workers, folder, installed):
    LATE.clear()
    ours = epochs(folder, name, workers)
    if workers == 0:
        assert len(LATE) == 20 and sum(LATE) >= CHAINS[name][1] * len(LATE)
    decode.uninstall()
    theirs = epochs(folder, name, workers)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
