"""Operators of torchvision, each after ImageNet's crop and flip, in v1 and in v2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torchvision import transforms
from torchvision.transforms import v2

from tests.recipes import fakes
from tests.recipes.pipelines import crop, folder, to_float
from tests.recipes.recipe import Draws, Recipe


def _jitter(kinds: Any, fixed: bool) -> list[Any]:
    """ColorJitter, which also draws the order of its four parts. Fixed: four operators with one part each."""
    if not fixed:
        return [kinds.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    parts = {"brightness": (1.3, 1.3), "contrast": (0.7, 0.7), "saturation": (1.4, 1.4), "hue": (0.07, 0.07)}
    return [kinds.ColorJitter(**{name: value}) for name, value in parts.items()]


def _one(name: str, free: dict[str, Any], same: dict[str, Any]) -> tuple[str, Callable[[Any, bool], list[Any]]]:
    return name, lambda kinds, fixed: [getattr(kinds, name)(**(same if fixed else free))]


_HALF, _ALWAYS = {"p": 0.5}, {"p": 1.0}
#: Name of the operator -> function that makes it from torchvision.transforms or its v2, with free or fixed draws.
OPERATORS: dict[str, Callable[[Any, bool], list[Any]]] = dict([
    ("ColorJitter", _jitter),
    _one("RandomGrayscale", {"p": 0.2}, _ALWAYS),
    _one("GaussianBlur", {"kernel_size": 9, "sigma": (0.1, 2.0)}, {"kernel_size": 9, "sigma": (1.1, 1.1)}),
    _one("RandomRotation", {"degrees": 15}, {"degrees": (11, 11)}),
    _one(
        "RandomAffine", {"degrees": 10, "translate": (0.1, 0.1), "scale": (0.9, 1.1), "shear": 5},
        {"degrees": (7, 7), "scale": (1.1, 1.1), "shear": (4, 4, 3, 3)},
    ),
    _one("RandomPerspective", {"distortion_scale": 0.5, "p": 0.5}, {}),  # an argument fixes its draws only if it moves nothing
    _one("RandomPosterize", {"bits": 4, "p": 0.5}, {"bits": 4, "p": 1.0}),
    _one("RandomSolarize", {"threshold": 128, "p": 0.5}, {"threshold": 128, "p": 1.0}),
    _one("RandomEqualize", _HALF, _ALWAYS),
    _one("RandomAutocontrast", _HALF, _ALWAYS),
    _one("RandomInvert", _HALF, _ALWAYS),
    _one("RandomAdjustSharpness", {"sharpness_factor": 2, "p": 0.5}, {"sharpness_factor": 2, "p": 1.0}),
])  # fmt: skip
#: Policies. Their choices can't be fixed.
POLICIES = ("AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix")
_DRAWS: dict[str, Draws] = {"RandomPerspective": "free"}
VERSIONS = {"v1": transforms, "v2": v2}


def _behind_crop(make: Callable[[Any, bool], list[Any]], kinds: Any, fixed: bool) -> Any:
    return kinds.Compose([*crop(fixed, kinds=kinds), *make(kinds, fixed), *to_float(kinds)])


def _policy(name: str, kinds: Any, fixed: bool) -> Any:
    return kinds.Compose([*crop(fixed, kinds=kinds), getattr(kinds, name)(), *to_float(kinds)])


def _crops(name: str, kinds: Any, fixed: bool) -> Any:
    """As in torchvision's documentation: one tensor of all crops. v2's Lambda would get each crop alone."""
    one = kinds.Compose(to_float(kinds))

    def stacked(crops: Sequence[Any]) -> torch.Tensor:
        return torch.stack([one(part) for part in crops])

    last = kinds.Lambda(stacked) if kinds is transforms else stacked
    return kinds.Compose([kinds.Resize(256), getattr(kinds, name)(224), last])


def _image_first(fixed: bool) -> Any:
    """v2 on uint8 tensors: torchvision's documentation advises it for speed."""
    return v2.Compose([v2.ToImage(), *crop(fixed, kinds=v2, antialias=True), v2.ToDtype(torch.float32, scale=True)])


def _image_first_eval(fixed: bool) -> Any:
    return v2.Compose(
        [v2.ToImage(), v2.Resize(256, antialias=True), v2.CenterCrop(224), v2.ToDtype(torch.float32, scale=True)]
    )


def _recipe(name: str, transform: Callable[[bool], Any], **options: Any) -> Recipe:
    return Recipe(name, "Operators", fakes.imagefolder, folder, transform, **options)


RECIPES = [
    *(
        _recipe(
            f"{name} {version}", partial(_behind_crop, make, kinds), draws=_DRAWS.get(name, "fixed"),
            blurs=name == "GaussianBlur",
        )
        for name, make in OPERATORS.items()
        for version, kinds in VERSIONS.items()
    ),
    *(
        _recipe(f"{name} {version}", partial(_crops, name, kinds), draws="none", way="prefix", batch=8)
        for name in ("FiveCrop", "TenCrop")
        for version, kinds in VERSIONS.items()
    ),
    *(
        _recipe(
            f"{name} {version}", partial(_policy, name, kinds), draws="free", way="prefix" if name == "AugMix" else "whole"
        )
        for name in POLICIES
        for version, kinds in VERSIONS.items()
    ),
    _recipe("v2, ToImage first", _image_first),
    _recipe("v2, ToImage first, evaluation", _image_first_eval, draws="none"),
]
