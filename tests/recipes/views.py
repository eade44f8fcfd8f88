"""Several views of one sample: the transforms of self-supervised training, as classes that their authors wrote."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms

from tests.recipes import fakes
from tests.recipes.pipelines import MEAN, STD, crop, folder
from tests.recipes.recipe import Recipe


class Views:
    """A list with a view by each transform."""

    def __init__(self, *each: Callable[[Any], Any]) -> None:
        self.each = each

    def __call__(self, image: Any) -> list[Any]:
        return [one(image) for one in self.each]


class PillowBlur:
    """MoCo's and DINO's blur: Pillow's, with a drawn radius."""

    def __init__(self, low: float = 0.1, high: float = 2.0, p: float = 1.0) -> None:
        self.low, self.high, self.p = low, high, p

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.low, self.high)))


class Solarization:
    """DINO's solarization."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image) if random.random() < self.p else image


def _to_tensor() -> list[Any]:
    return [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]


def _always(fixed: bool, p: float) -> float:
    return 1.0 if fixed else p


def _colours(fixed: bool, strength: float, saturation: float | None = None) -> Any:
    """ColorJitter and grayscale. Fixed: one factor in each ColorJitter, since it also draws the order of its parts."""
    if fixed:
        jitters = [transforms.ColorJitter(brightness=(1.2, 1.2)), transforms.ColorJitter(hue=(0.1, 0.1))]
        return transforms.Compose([*jitters, transforms.RandomGrayscale(1.0)])
    jitter = transforms.ColorJitter(strength, strength, saturation or strength, strength / 4)
    return transforms.Compose([transforms.RandomApply([jitter], p=0.8), transforms.RandomGrayscale(p=0.2)])


def _blur(fixed: bool, p: float) -> Any:
    blur = transforms.GaussianBlur(23, (1.0, 1.0) if fixed else (0.1, 2.0))
    return transforms.RandomApply([blur], p=_always(fixed, p))


def simclr(fixed: bool) -> Any:
    """Two views: crop, flip, jitter, grayscale, blur."""
    view = transforms.Compose([*crop(fixed), _colours(fixed, 0.8), _blur(fixed, 0.5), *_to_tensor()])
    return Views(view, view)


def byol(fixed: bool) -> Any:
    """Two views by different transforms: one is always blurred, the other is sometimes blurred and solarized."""
    first = [_blur(fixed, 1.0)]
    second = [_blur(fixed, 0.1), transforms.RandomSolarize(128, p=_always(fixed, 0.2))]
    steps = [*crop(fixed, interpolation=Image.Resampling.BICUBIC), _colours(fixed, 0.4, 0.2)]
    return Views(*(transforms.Compose([*steps, *last, *_to_tensor()]) for last in (first, second)))


def moco(fixed: bool) -> Any:
    """MoCo v2: two views, with its own blur by Pillow."""
    blur = transforms.RandomApply([PillowBlur(1.0, 1.0) if fixed else PillowBlur()], p=_always(fixed, 0.5))
    colours, others = _colours(fixed, 0.4), [blur, transforms.RandomHorizontalFlip(_always(fixed, 0.5))]
    view = transforms.Compose([crop(fixed)[0], colours, *others, *_to_tensor()])
    return Views(view, view)


def dino(fixed: bool) -> Any:
    """Two views of 224 pixels and six of 96."""
    colours = _colours(fixed, 0.4, 0.2)

    def view(size: int, scale: tuple[float, float], *last: Any) -> Any:
        options = {} if fixed else {"scale": scale}
        steps = crop(fixed, size, interpolation=Image.Resampling.BICUBIC, **options)
        return transforms.Compose([*steps, colours, *last, *_to_tensor()])

    blurs = [PillowBlur(1.0, 1.0, 1.0) if fixed else PillowBlur(p=p) for p in (1.0, 0.1, 0.5)]
    first = view(224, (0.4, 1.0), blurs[0])
    second = view(224, (0.4, 1.0), blurs[1], Solarization(2.0 if fixed else 0.2))
    small = view(96, (0.05, 0.4), blurs[2])
    return Views(first, second, *[small] * 6)


RECIPES = [
    Recipe("SimCLR, two views", "Several views", fakes.imagefolder, folder, simclr, batch=8, blurs=True),
    Recipe("BYOL, two views", "Several views", fakes.imagefolder, folder, byol, batch=8, blurs=True),
    Recipe("MoCo v2, two views", "Several views", fakes.imagefolder, folder, moco, batch=8, way="prefix"),
    Recipe("DINO, multi-crop", "Several views", fakes.imagefolder, folder, dino, batch=8, way="prefix"),
]
