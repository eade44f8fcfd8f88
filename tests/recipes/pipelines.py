"""Transforms and data sets that most recipes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def folder(root: Path, transform: Any) -> ImageFolder:
    """Open the image folder that `fakes.imagefolder` writes."""
    return ImageFolder(str(root / "train"), transform)


def crop(fixed: bool, size: int = 224, kinds: Any = transforms, **options: Any) -> list[Any]:
    """RandomResizedCrop and RandomHorizontalFlip. Fixed: the square in the middle, always flipped."""
    if fixed:
        options |= {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    return [kinds.RandomResizedCrop(size, **options), kinds.RandomHorizontalFlip(1.0 if fixed else 0.5)]


def to_float(kinds: Any = transforms, normalize: bool = False) -> list[Any]:
    """The image as float32 from 0 to 1, and normalized if asked for."""
    first = [transforms.ToTensor()] if kinds is transforms else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return [*first, kinds.Normalize(MEAN, STD)] if normalize else first


def train(fixed: bool) -> Any:
    """ImageNet's usual training transform."""
    return transforms.Compose([*crop(fixed), *to_float(normalize=True)])


def evaluate(fixed: bool) -> Any:
    """ImageNet's usual evaluation transform, which draws nothing."""
    return transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *to_float(normalize=True)])
