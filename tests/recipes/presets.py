"""Published presets: of torchvision's classification references, of its weights, and of timm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torchvision import models, transforms
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

from tests.recipes import fakes
from tests.recipes.pipelines import MEAN, STD, crop, folder, to_float
from tests.recipes.recipe import Recipe

# -- torchvision: references/classification/presets.py ---------------------------------------------------------------


class ClassificationPresetTrain:
    """Steps, order and defaults of torchvision's class of this name."""

    def __init__(
        self,
        *,
        crop_size: int,
        mean: tuple[float, ...] = MEAN,
        std: tuple[float, ...] = STD,
        interpolation: InterpolationMode = InterpolationMode.BILINEAR,
        hflip_prob: float = 0.5,
        auto_augment_policy: str | None = None,
        ra_magnitude: int = 9,
        augmix_severity: int = 3,
        random_erase_prob: float = 0.0,
        backend: str = "pil",
        use_v2: bool = False,
        **fixed: Any,
    ) -> None:
        kinds: Any = v2 if use_v2 else transforms
        steps: list[Any] = [kinds.PILToTensor()] if backend == "tensor" else []
        steps.append(kinds.RandomResizedCrop(crop_size, interpolation=interpolation, antialias=True, **fixed))
        if hflip_prob > 0:
            steps.append(kinds.RandomHorizontalFlip(hflip_prob))
        if auto_augment_policy == "ra":
            steps.append(kinds.RandAugment(interpolation=interpolation, magnitude=ra_magnitude))
        elif auto_augment_policy == "ta_wide":
            steps.append(kinds.TrivialAugmentWide(interpolation=interpolation))
        elif auto_augment_policy == "augmix":
            steps.append(kinds.AugMix(interpolation=interpolation, severity=augmix_severity))
        elif auto_augment_policy is not None:
            policy = kinds.AutoAugmentPolicy(auto_augment_policy)
            steps.append(kinds.AutoAugment(policy=policy, interpolation=interpolation))
        if backend == "pil":
            steps.append(kinds.PILToTensor())
        steps.append(kinds.ToDtype(torch.float, scale=True) if use_v2 else kinds.ConvertImageDtype(torch.float))
        steps.append(kinds.Normalize(mean=mean, std=std))
        if random_erase_prob > 0:
            steps.append(kinds.RandomErasing(p=random_erase_prob))
        if use_v2:
            steps.append(kinds.ToPureTensor())
        self.transforms = kinds.Compose(steps)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class ClassificationPresetEval:
    """Steps, order and defaults of torchvision's class of this name."""

    def __init__(
        self,
        *,
        crop_size: int,
        resize_size: int = 256,
        mean: tuple[float, ...] = MEAN,
        std: tuple[float, ...] = STD,
        interpolation: InterpolationMode = InterpolationMode.BILINEAR,
        backend: str = "pil",
        use_v2: bool = False,
    ) -> None:
        kinds: Any = v2 if use_v2 else transforms
        steps: list[Any] = [kinds.PILToTensor()] if backend == "tensor" else []
        steps += [kinds.Resize(resize_size, interpolation=interpolation, antialias=True), kinds.CenterCrop(crop_size)]
        if backend == "pil":
            steps.append(kinds.PILToTensor())
        steps.append(kinds.ToDtype(torch.float, scale=True) if use_v2 else kinds.ConvertImageDtype(torch.float))
        steps.append(kinds.Normalize(mean=mean, std=std))
        if use_v2:
            steps.append(kinds.ToPureTensor())
        self.transforms = kinds.Compose(steps)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


def _train(arguments: dict[str, Any], fixed: bool) -> Any:
    same: dict[str, Any] = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "hflip_prob": 1.0} if fixed else {}
    return ClassificationPresetTrain(**{"crop_size": 224, **arguments, **same})


def _evaluate(arguments: dict[str, Any], fixed: bool) -> Any:
    return ClassificationPresetEval(**{"crop_size": 224, **arguments})


def _jitter(fixed: bool) -> Any:
    """ColorJitter(0.4, 0.4, 0.4) and Normalize, as in many training scripts of ResNets."""
    same = [transforms.ColorJitter(brightness=(1.2, 1.2)), transforms.ColorJitter(contrast=(0.8, 0.8))]
    colours = same if fixed else [transforms.ColorJitter(0.4, 0.4, 0.4)]
    return transforms.Compose([*crop(fixed), *colours, *to_float(normalize=True)])


def _weights(name: str, fixed: bool) -> Any:
    """The transforms of some weights. The weights themselves are not downloaded."""
    return models.get_weight(name).transforms()


# -- timm: timm.data.create_transform --------------------------------------------------------------------------------


def _timm(arguments: dict[str, Any], same: dict[str, Any], fixed: bool) -> Any:
    from timm.data import create_transform

    return create_transform(224, **{**arguments, **(same if fixed else {})})


def _timm_crop(fixed: bool) -> Any:
    """timm's RandomResizedCropAndInterpolation and MaybeToTensor, and nothing else."""
    from timm.data.transforms import MaybeToTensor, RandomResizedCropAndInterpolation

    same: dict[str, Any] = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "interpolation": "bicubic"}
    options = same if fixed else {"interpolation": "random"}
    return transforms.Compose([RandomResizedCropAndInterpolation(224, **options), MaybeToTensor()])


def _timm_posterize(fixed: bool) -> Any:
    """timm's Posterize at magnitude 8. At 10 no bits would be left, which Pillow 13 refuses."""
    from timm.data.auto_augment import AugmentOp
    from timm.data.transforms import MaybeToTensor

    posterize = AugmentOp("PosterizeIncreasing", prob=1.0 if fixed else 0.5, magnitude=8)
    return transforms.Compose([*crop(fixed), posterize, MaybeToTensor()])


def _timm_erasing(fixed: bool) -> Any:
    """timm's RandomErasing after torchvision's operators. Fixed: nothing is erased."""
    from timm.data.random_erasing import RandomErasing

    erasing = RandomErasing(probability=0.0 if fixed else 0.25, mode="pixel", device="cpu")
    return transforms.Compose([*crop(fixed), *to_float(normalize=True), erasing])


def _recipe(name: str, transform: Callable[[bool], Any], **options: Any) -> Recipe:
    return Recipe(name, "Presets", fakes.imagefolder, folder, transform, **options)


_SAME_CROP = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "hflip": 1.0}
RECIPES = [
    _recipe("torchvision's train preset", partial(_train, {})),
    _recipe("its preset with RandAugment", partial(_train, {"auto_augment_policy": "ra"}), draws="free"),
    _recipe(
        "its preset with TrivialAugmentWide and RandomErasing, v2",
        partial(_train, {"auto_augment_policy": "ta_wide", "random_erase_prob": 0.1, "use_v2": True, "crop_size": 176}),
        draws="free",
    ),
    _recipe(
        "its preset with AutoAugment",
        partial(_train, {"auto_augment_policy": "imagenet"}), draws="free",
    ),
    _recipe(
        "its preset with AugMix", partial(_train, {"auto_augment_policy": "augmix"}), draws="free", way="prefix",
    ),
    _recipe("its preset on tensors", partial(_train, {"backend": "tensor"})),
    _recipe(
        "its preset on tensors with RandAugment and RandomErasing",
        partial(_train, {"backend": "tensor", "auto_augment_policy": "ra", "random_erase_prob": 0.1}), draws="free",
    ),
    _recipe("torchvision's eval preset", partial(_evaluate, {}), draws="none"),
    _recipe("its eval preset, v2", partial(_evaluate, {"resize_size": 232, "use_v2": True}), draws="none"),
    _recipe("ColorJitter(0.4, 0.4, 0.4) and Normalize", _jitter),
    _recipe(
        "ResNet50_Weights.IMAGENET1K_V2.transforms()",
        partial(_weights, "ResNet50_Weights.IMAGENET1K_V2"), draws="none",
    ),
    _recipe(
        "EfficientNet_B0_Weights.DEFAULT.transforms()",
        partial(_weights, "EfficientNet_B0_Weights.DEFAULT"), draws="none",
    ),
    _recipe("timm, evaluation", partial(_timm, {}, {}), draws="none", needs=("timm",)),
    _recipe(
        "timm, training's defaults",
        partial(_timm, {"is_training": True}, {**_SAME_CROP, "color_jitter": None}), needs=("timm",),
    ),
    _recipe(
        "timm, rand-m9-mstd0.5-inc1-mmax9, re_prob 0.25",
        # mmax9: mstd sometimes draws magnitude 10. timm's Posterize then leaves no bits, which Pillow 13 refuses.
        partial(_timm, {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1-mmax9", "re_prob": 0.25}, {}), draws="free",
        needs=("timm",),
    ),
    _recipe(
        "timm, rand-m7-n3 (RandAugment without mstd)",
        partial(_timm, {"is_training": True, "auto_augment": "rand-m7-n3"}, {}), draws="free", needs=("timm",),
    ),
    _recipe(
        "timm, original (AutoAugment)",
        partial(_timm, {"is_training": True, "auto_augment": "original"}, {}), draws="free", needs=("timm",),
    ),
    _recipe(
        "timm, augmix-m5-w4-d2",
        partial(_timm, {"is_training": True, "auto_augment": "augmix-m5-w4-d2"}, {}), draws="free", way="prefix",
        needs=("timm",),
    ),
    _recipe("timm's crop and MaybeToTensor", _timm_crop, needs=("timm",)),
    _recipe("timm's Posterize", _timm_posterize, needs=("timm",)),
    _recipe("timm's RandomErasing", _timm_erasing, needs=("timm",)),
]  # fmt: skip
