"""`ddlp bench torchvision`: each row of `ddlp parity` beside torchvision's (or timm's) own call with the same numbers.

A row's operator gets parameters over their whole range: both ends first, then uniform numbers between them, the intervals of
random ones fixed by (x, x). v1's operator and v2's take turns. What no interval fixes, such as the place of a crop, is drawn
once: torchvision gets the numbers that ddlp draws. ddlp makes the images as host and engine make those of a batch; torchvision
runs the very object that ddlp translates, on the PIL image.

A value that differs is ddlp's fault unless it is shown whose it is: torchvision is run again with correctly rounded sines in
the place of the C library's ("C library"), or with a perspective that is solved exactly ("LAPACK"), and must then make ddlp's
image; or a blur's exact value lies within a thousandth of the boundary of rounding ("float32 sums").
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.util
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import PIL.Image
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import InterpolationMode, autoaugment, functional, transforms, v2
from torchvision.transforms.v2 import _augment, _auto_augment, _color, _container, _misc, _transform
from torchvision.transforms.v2 import _geometry as geometry
from torchvision.transforms.v2.functional import _geometry as matrices

from csd_engine import angles
from csd_engine.kernels.windows import PADDING_MODES
from csd_engine.keyed import Keyed
from csd_engine.parity import Case, run_cases, versions
from csd_engine.transforms import policies
from csd_engine.transforms.resample import FILTERS
from csd_engine.transforms.timm_policies import NAMES as TIMM_OPERATORS
from csd_engine.transforms.warp_steps import WARP_FILTERS
from csd_engine.transforms.warps import perspective_coefficients
from ddlp.bench.common import Aim, BenchFailed, Say, add_output, emit, on_all_cores, say
from ddlp.deploy.parity import all_cases, file_sources, operator_rows, pixel_sources
from ddlp.transforms import Views
from ddlp.translate.transforms import translate, translate_steps

__all__ = ["Compared", "ROWS", "compare_row", "rows_without_a_call"]

Make = Callable[[Any, "Span"], Any]  # of a module, v1 or v2, and parameters
Rows = dict[str, tuple[str, Make]]
DRAWS = 40
_BY_C_LIBRARY = 3_000_000  # values of which one may differ because of the C library
_FROM_A_JPEG = ", from a JPEG"


class Span:
    """The parameters of one trial of a row: both ends of each range in the first two trials, then anything between."""

    def __init__(self, name: str, trial: int) -> None:
        self.trial = trial
        self._random = random.Random(f"{name} {trial}")

    def number(self, low: float, high: float) -> float:
        """A number from an interval."""
        return (low, high)[self.trial] if self.trial < 2 else self._random.uniform(low, high)

    def fixed(self, low: float, high: float) -> tuple[float, float]:
        """An interval of one number."""
        x = self.number(low, high)
        return x, x

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return (low, high)[self.trial] if self.trial < 2 else self._random.randint(low, high)

    def odd(self, high: int) -> int:
        """An odd number from 1 to high."""
        return 2 * self.whole(0, (high - 1) // 2) + 1

    def pair(self, low: int, high: int) -> tuple[int, int]:
        """Two whole numbers."""
        return self.whole(low, high), self.whole(low, high)

    def center(self) -> tuple[float, float] | None:
        """A point in the smallest image, or None: the middle."""
        return None if self.trial % 2 else (self._random.uniform(0, 37), self._random.uniform(0, 29))

    def colour(self) -> int:
        """A fill."""
        return self._random.randrange(256)


def _warp(span: Span, name: str) -> dict[str, Any]:
    return {"interpolation": InterpolationMode(name), "fill": span.colour()}


def _joined(rows: Callable[[Any], Rows], several: Iterable[Any]) -> Rows:
    return {name: row for one in several for name, row in rows(one).items()}


def _resampling_rows(name: str) -> Rows:
    how = {"interpolation": InterpolationMode(name)}
    return {
        f"Resize {name}": ("1 to 300 pixels a side", lambda m, s: m.Resize(s.pair(1, 300), **how)),
        f"RandomResizedCrop {name}": ("scale 0.01 to 1, ratio 0.2 to 5", lambda m, s: m.RandomResizedCrop(
            (96, 128), s.fixed(0.01, 1), s.fixed(0.2, 5), **how)),
    }  # fmt: skip


def _padding_rows(mode: str) -> Rows:
    return {
        f"RandomCrop, padding {mode}": ("padding 5 to 28", lambda m, s: m.RandomCrop(
            (33, 41), [*s.pair(5, 28), *s.pair(5, 28)], False, s.colour(), mode)),
        f"Pad {mode}": ("0 to 28", lambda m, s: m.Pad([*s.pair(0, 28), *s.pair(0, 28)], s.colour(), mode)),
    }  # fmt: skip


def _shorter_side(m: Any, s: Span) -> Any:
    side = s.whole(2, 200)
    return m.Resize(side, max_size=side + s.whole(1, 100))


def _size_rows() -> Rows:
    return {
        **_joined(_resampling_rows, FILTERS),
        **_joined(_padding_rows, PADDING_MODES),
        "Resize shorter side": ("2 to 200", lambda m, s: m.Resize(s.whole(2, 200))),
        "Resize shorter side, at most": ("2 to 200, at most 1 to 100 more", _shorter_side),
        "Resize longer side": ("9 to 300", lambda m, s: v2.Resize(None, max_size=s.whole(9, 300))),
        "CenterCrop": ("1 to 29 pixels a side", lambda m, s: m.CenterCrop(s.pair(1, 29))),
        "CenterCrop of a smaller image": ("252 to 400", lambda m, s: m.CenterCrop(s.pair(252, 400))),
        "FiveCrop": ("1 to 29", lambda m, s: m.FiveCrop(s.pair(1, 29))),
        "TenCrop": ("1 to 29", lambda m, s: m.TenCrop(s.pair(1, 29))),
        "TenCrop, upside down": ("1 to 29", lambda m, s: m.TenCrop(s.pair(1, 29), vertical_flip=True)),
        "RandomCrop, padded if needed": ("1 to 300 pixels a side", lambda m, s: m.RandomCrop(
            s.pair(1, 300), pad_if_needed=True, fill=s.colour())),
        "ScaleJitter, cropped or padded": ("0.1 to 2", lambda m, s: v2.ScaleJitter((96, 128), s.fixed(0.1, 2))),
        "RandomShortestSize, the same": ("16 to 200", lambda m, s: v2.RandomShortestSize([s.whole(16, 200)], s.whole(90, 250))),
        "Pad by negative borders": ("-10 to 10", lambda m, s: m.Pad([*s.pair(-10, 10), *s.pair(-10, 10)], s.colour())),
    }  # fmt: skip


def _flips(m: Any) -> list[Any]:
    return [m.RandomHorizontalFlip(1.0), m.RandomVerticalFlip(1.0), m.RandomGrayscale(1.0)]


def _flip_rows() -> Rows:
    return {
        "RandomHorizontalFlip": ("p 0 to 1", lambda m, s: m.RandomHorizontalFlip(s.number(0, 1))),
        "RandomVerticalFlip": ("p 0 to 1", lambda m, s: m.RandomVerticalFlip(s.number(0, 1))),
        "Grayscale, 1 channel": ("", lambda m, s: m.Grayscale(1)),
        "Grayscale, 3 channels": ("", lambda m, s: m.Grayscale(3)),
        "RandomGrayscale": ("p 0 to 1", lambda m, s: m.RandomGrayscale(s.number(0, 1))),
        "RandomErasing (boxes)": ("scale 0.01 to 0.9, ratio 0.2 to 5", lambda m, s: m.RandomErasing(
            1.0, s.fixed(0.01, 0.9), s.fixed(0.2, 5))),
        "RandomApply": ("p 0 to 1", lambda m, s: m.RandomApply(_flips(m), s.number(0, 1))),
        "RandomChoice": ("each of three", lambda m, s: m.RandomChoice(_flips(m), [float(k == s.trial % 3) for k in range(3)])),
        "RandomOrder": ("", lambda m, s: m.RandomOrder(_flips(m))),
        "Views (the first)": ("", lambda m, s: Views(*_flips(m)[:2])),
    }  # fmt: skip


def _factor_rows(name: str) -> Rows:
    return {f"ColorJitter {name} (Random)": ("0 to 3", lambda m, s: m.ColorJitter(**{name: s.fixed(0, 3)}))}


def _colour_rows() -> Rows:
    return {
        **_joined(_factor_rows, ("brightness", "contrast", "saturation")),
        "ColorJitter hue (Random)": ("-0.5 to 0.5", lambda m, s: m.ColorJitter(hue=s.fixed(-0.5, 0.5))),
        "Sharpness, sharper": ("1 to 10", lambda m, s: m.RandomAdjustSharpness(s.number(1, 10), 1.0)),
        "Sharpness, blurred": ("0 to 1", lambda m, s: m.RandomAdjustSharpness(s.number(0, 1), 1.0)),
        "Posterize": ("1 to 8 bits", lambda m, s: m.RandomPosterize(s.whole(1, 8), 1.0)),
        "Solarize": ("0 to 256", lambda m, s: m.RandomSolarize(s.number(0, 256), 1.0)),
        "Invert": ("", lambda m, s: m.RandomInvert(1.0)),
        "AutoContrast": ("", lambda m, s: m.RandomAutocontrast(1.0)),
        "Equalize": ("", lambda m, s: m.RandomEqualize(1.0)),
        "GaussianBlur (Random)": ("1 to 23 taps, sigma 0.1 to 5", lambda m, s: m.GaussianBlur(
            (s.odd(23), s.odd(23)), s.fixed(0.1, 5))),
    }  # fmt: skip


def _warp_rows(name: str) -> Rows:
    affine = "-180 to 180 degrees, translate 0 to 1, scale 0.1 to 5, shear -80 to 80"
    return {
        f"RandomRotation {name}": ("-360 to 360 degrees", lambda m, s: m.RandomRotation(
            s.fixed(-360, 360), center=s.center(), **_warp(s, name))),
        f"RandomAffine {name}": (affine, lambda m, s: m.RandomAffine(
            s.fixed(-180, 180), (s.number(0, 1), s.number(0, 1)), s.fixed(0.1, 5), (*s.fixed(-80, 80), *s.fixed(-80, 80)),
            center=s.center(), **_warp(s, name))),
        f"RandomPerspective {name}": ("0 to 1", lambda m, s: m.RandomPerspective(s.number(0, 1), 1.0, **_warp(s, name))),
    }  # fmt: skip


def _policy_rows(version: str) -> Rows:
    of = {"v1": v1, "v2": v2}[version]

    def auto(policy: autoaugment.AutoAugmentPolicy) -> Rows:
        name = f"AutoAugment {policy.value} {version} (Random)"
        return {name: ("all pairs", lambda m, s: of.AutoAugment(policy, **_warp(s, "bilinear")))}

    return {
        f"RandAugment {version} (Random)": ("levels 0 to 30", lambda m, s: of.RandAugment(
            3, s.whole(0, 30), **_warp(s, "bilinear"))),
        f"TrivialAugmentWide {version} (Random)": ("all levels", lambda m, s: of.TrivialAugmentWide(**_warp(s, "bilinear"))),
        **_joined(auto, autoaugment.AutoAugmentPolicy),
    }  # fmt: skip


def _timm_rows() -> Rows:
    """Of timm's own; none if it is not installed."""
    if importlib.util.find_spec("timm") is None:
        return {}
    from timm.data import auto_augment, random_erasing
    from timm.data import transforms as sizes

    hparams = {
        "img_mean": (120, 120, 120), "translate_const": 60, "translate_pct": 0.45,
        "interpolation": (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC),
    }  # fmt: skip
    weights = np.array([1.0 + k % 3 for k in range(len(TIMM_OPERATORS))])

    def op(name: str, magnitude: float, std: float = 0.0) -> Any:
        return auto_augment.AugmentOp(name, 1.0, magnitude, {**hparams, "magnitude_std": std})

    def ops(magnitude: float, std: float) -> list[Any]:
        return [op(name, magnitude, std) for name in TIMM_OPERATORS]

    def operator(name: str) -> Rows:
        always = name.startswith(("Posterize", "AutoContrast", "Equalize", "Invert"))
        row = f"timm's {name}{'' if always else ' (Random)'}"
        return {row: ("magnitude 0 to 10", lambda m, s: op(name, s.number(0, 10)))}

    def borders(mode: str) -> Rows:
        sides = "20 to 50 pixels a side"
        return {
            f"timm's CenterCropOrPad {mode}": (sides, lambda m, s: sizes.CenterCropOrPad(s.pair(20, 50), s.colour(), mode)),
            f"timm's RandomCropOrPad {mode}": (sides, lambda m, s: sizes.RandomCropOrPad(s.pair(20, 50), s.colour(), mode)),
        }

    def erasing(s: Span, mode: str) -> Any:
        area, ratio = s.fixed(0.01, 0.9), s.fixed(0.2, 5)
        return random_erasing.RandomErasing(1.0, *area, *ratio, mode=mode, min_count=1, max_count=3, device="cpu")

    return {
        **_joined(operator, TIMM_OPERATORS),
        **_joined(borders, ("constant", "reflect")),
        "timm's RandAugment (Random)": ("magnitude 0 to 10, noise 1.5", lambda m, s: auto_augment.RandAugment(
            ops(s.number(0, 10), 1.5), 4)),
        "timm's RandAugment, weighted (Random)": ("magnitude 0 to 10", lambda m, s: auto_augment.RandAugment(
            ops(s.number(0, 10), math.inf), 4, weights / weights.sum())),
        "timm's ResizeKeepRatio (Random)": ("scale 0.5 to 2, aspect 0.5 to 2", lambda m, s: sizes.ResizeKeepRatio(
            (64, 80), s.number(0, 1), "bicubic", 1.0, s.fixed(0.5, 2), True, 1.0, s.fixed(0.5, 2))),
        "timm's RandomErasing (boxes)": ("area 0.01 to 0.9, aspect 0.2 to 5", lambda m, s: erasing(s, "const")),
        "timm's RandomErasing, noise (boxes)": ("area 0.01 to 0.9, aspect 0.2 to 5", lambda m, s: erasing(s, "pixel")),
    }  # fmt: skip


ROWS: Rows = {
    **_size_rows(), **_flip_rows(), **_colour_rows(), **_joined(_warp_rows, WARP_FILTERS),
    "RandomRotation, expanded": ("-360 to 360 degrees", lambda m, s: m.RandomRotation(
        s.fixed(-360, 360), expand=True, **_warp(s, "bilinear"))),
    **_joined(_policy_rows, ("v1", "v2")), **_timm_rows(),
}  # fmt: skip
"""What torchvision and timm run beside a row of `ddlp.deploy.parity.operator_rows`: its parameters in words, and an object."""


def rows_without_a_call() -> list[str]:
    """The rows of `ddlp parity` that have none here: timm's where it is not installed, and those of ddlp alone."""
    return [name for name in operator_rows() if name not in ROWS]


# -- the same numbers for torchvision --------------------------------------------------------------------------------------


class _Empty:
    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    def uniform_(self, low: Any, high: Any) -> torch.Tensor:
        """What torch draws from an interval of one number, or ddlp's number in torch's type."""
        number = self._keyed.uniform(float(low), float(high))
        return torch.empty(1).uniform_(float(low), float(high)) if low == high else torch.tensor([number])


class _Torch:
    """The module torch, which draws from a sample's stream."""

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *_: Any) -> _Empty:
        return _Empty(self._keyed)

    def rand(self, *_: Any) -> torch.Tensor:
        return torch.tensor([self._keyed.uniform()])

    def randint(self, low: int, high: int | None = None, size: Any = None) -> torch.Tensor:
        first, end = (0, low) if not isinstance(high, int) else (low, high)
        return torch.tensor([first + self._keyed.below(end - first)])

    def randperm(self, n: int) -> torch.Tensor:
        return torch.tensor(self._keyed.permutation(n))


class _Random:
    """The module random for timm, likewise. `random` is called for a sign; for a chance that is certain in `sizes`."""

    def __init__(self, keyed: Keyed, sizes: bool) -> None:
        self._keyed, self._sizes = keyed, sizes
        self.uniform = keyed.uniform

    def random(self) -> float:
        return self._keyed.uniform() if self._sizes else 0.9 if self._keyed.below(2) == 0 else 0.1

    def gauss(self, mean: float, std: float) -> float:
        return mean + std * self._keyed.normal()

    def choice(self, several: Sequence[Any]) -> Any:
        return several[self._keyed.below(len(several))]

    def randint(self, low: int, high: int) -> int:
        return low + self._keyed.below(high - low + 1)


class _Numpy:
    """The module numpy for timm's RandAugment, which chooses operators by it."""

    def __init__(self, keyed: Keyed) -> None:
        self.random, self._keyed = self, keyed

    def choice(self, several: Sequence[Any], count: int, replace: bool, p: Any) -> list[Any]:
        if replace:
            return [several[self._keyed.below(len(several))] for _ in range(count)]
        left = [1.0 + k % 3 for k in range(len(several))]
        chosen = []
        for _ in range(count):
            chosen.append(self._keyed.weighted(left))
            left[chosen[-1]] = 0.0
        return [several[number] for number in chosen]


@contextlib.contextmanager
def _changed(name: str, value: Any, modules: Sequence[Any]) -> Iterator[None]:
    """Give modules another value of this name, for a while."""
    before = [getattr(module, name) for module in modules]
    try:
        for module in modules:
            setattr(module, name, value)
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)


@contextlib.contextmanager
def _drawing(keyed: Keyed) -> Iterator[None]:
    """torchvision and timm draw from this stream."""
    modules = (transforms, geometry, _augment, _color, _misc, _container, _transform)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_changed("torch", _Torch(keyed), modules))
        if "timm" in sys.modules:
            from timm.data import auto_augment, random_erasing
            from timm.data import transforms as sizes

            stack.enter_context(_changed("random", _Random(keyed, False), [auto_augment]))
            stack.enter_context(_changed("np", _Numpy(keyed), [auto_augment]))
            stack.enter_context(_changed("random", _Random(keyed, True), (sizes, random_erasing)))
            stack.enter_context(_changed("_get_pixels", _no_pixels(keyed), [random_erasing]))
        yield


def _no_pixels(keyed: Keyed) -> Callable[..., torch.Tensor]:
    """timm's values of an erased rectangle, as zeros. Behind a noisy one's place ddlp draws its seed, by four numbers."""

    def pixels(per_pixel: bool, *_: Any, **__: Any) -> torch.Tensor:
        for _number in range(4 if per_pixel else 0):
            keyed.below(1 << 31)
        return torch.zeros(1)

    return pixels


def _by_policy(t: Any, image: Image.Image, keyed: Keyed) -> Image.Image:
    """torchvision's operators of a policy. Names, levels and signs are those that ddlp draws, strengths torchvision's."""
    if isinstance(t, (v1.RandAugment, v2.RandAugment)):
        for _ in range(t.num_ops):
            name = policies.RAND.names[keyed.below(len(policies.RAND.names))]
            image = _apply(t, image, name, t.magnitude, 31, name in policies.RAND.signed and keyed.below(2) == 0)
    elif isinstance(t, (v1.TrivialAugmentWide, v2.TrivialAugmentWide)):
        name = policies.WIDE.names[keyed.below(len(policies.WIDE.names))]
        level = None if name in policies.WIDE.plain else keyed.below(31)
        image = _apply(t, image, name, level, 31, name in policies.WIDE.signed and keyed.below(2) == 0)
    else:
        pairs = t.policies if isinstance(t, v1.AutoAugment) else t._policies
        pair = pairs[keyed.below(len(pairs))]
        chances, signs = [keyed.uniform() for _ in pair], [keyed.below(2) for _ in pair]
        for (name, p, level), chance, sign in zip(pair, chances, signs, strict=True):
            if chance <= p:
                image = _apply(t, image, name, level, 10, name in policies.AUTO.signed and sign == 0)
    return image


def _apply(t: Any, image: Image.Image, name: str, level: int | None, bins: int, negative: bool) -> Image.Image:
    first = type(t).__module__ == autoaugment.__name__
    if first:
        sides = () if isinstance(t, v1.TrivialAugmentWide) else ((image.height, image.width),)
        magnitudes, _ = t._augmentation_space(bins, *sides)[name]
    else:
        spaced, _ = t._AUGMENTATION_SPACE[name]
        magnitudes = spaced(bins, image.height, image.width)
    if level is None or magnitudes is None or magnitudes.ndim == 0:
        magnitude = 0.0
    else:
        magnitude = float(magnitudes[level]) * (-1 if negative else 1)
    done: Image.Image = (
        autoaugment._apply_op(image, name, magnitude, t.interpolation, t.fill) if first
        else t._apply_image_or_video_transform(image, name, magnitude, t.interpolation, t._fill)
    )
    return done


_POLICIES = tuple(getattr(m, name) for m in (v1, v2) for name in ("RandAugment", "TrivialAugmentWide", "AutoAugment"))
_SEVERAL = (v1.FiveCrop, v2.FiveCrop, v1.TenCrop, v2.TenCrop)


def _theirs(t: Any, image: Image.Image, index: int) -> np.ndarray:
    """What torchvision or timm makes of an image: uint8 (height, width, channels); of an eraser, where it has erased."""
    keyed = Keyed(0, 0, index, 0)
    with _drawing(keyed):
        if type(t).__name__ == "RandomErasing":
            kept: torch.Tensor = t(torch.ones(1, image.height, image.width)) == 1
            return kept.permute(1, 2, 0).numpy().astype(np.uint8)
        if type(t).__name__ == "AugmentOp":
            keyed.below(1)  # for ddlp it is a list of one
        if isinstance(t, _POLICIES):
            made: Any = _by_policy(t, image, keyed)
        elif isinstance(t, Views):
            made = t.transforms[0](image)
        else:
            made = t(image)
    images = [np.asarray(one) for one in (made if isinstance(t, _SEVERAL) else [made])]
    return np.concatenate([one if one.ndim == 3 else one[..., np.newaxis] for one in images])


def _ours(t: Any, source: str, sources: Mapping[str, np.ndarray], index: int, mode: str) -> np.ndarray:
    """What ddlp makes, as `_theirs`. Raises ValueError if it refuses."""
    erases = type(t).__name__ == "RandomErasing"
    if erases:
        translation = translate(v1.Compose([v1.ToTensor(), t]), mode)
    elif isinstance(t, Views):
        translation = translate(Views(*(v1.Compose([one, v1.PILToTensor()]) for one in t.transforms)), mode)
    else:
        translation, _ = translate_steps([t], mode)
    result = run_cases(sources, [Case(source, index, translation.pipeline.to_data())])
    if 0 in result.errors:
        raise ValueError(result.errors[0])
    pixels = result.pixels[0]
    if not erases:
        return pixels
    kept = np.ones((*pixels.shape[:2], 1), np.uint8)
    for top, left, bottom, right in result.boxes[0][:: 2 if getattr(t, "per_pixel", False) else 1]:
        kept[top:bottom, left:right] = 0
    return kept


# -- whose a difference is -------------------------------------------------------------------------------------------------


class _CorrectMath:
    """The module math with correctly rounded sines and the like in the place of the C library's."""

    tan, atan = staticmethod(angles.tangent), staticmethod(angles.arctangent)

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    @staticmethod
    def sin(x: float) -> float:
        return angles.sine_cosine(x)[0]

    @staticmethod
    def cos(x: float) -> float:
        return angles.sine_cosine(x)[1]


def _exactly(start: Sequence[Sequence[int]], end: Sequence[Sequence[int]]) -> list[float]:
    return list(perspective_coefficients([(x, y) for x, y in start], [(x, y) for x, y in end]))


WHOSE: dict[str, Callable[[], Any]] = {
    "C library": lambda: _changed("math", _CorrectMath(), (functional, matrices, autoaugment, _auto_augment, PIL.Image)),
    "LAPACK": lambda: _changed("_get_perspective_coeffs", _exactly, (functional, geometry, matrices)),
}


def _whose(t: Any, image: Image.Image, index: int, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Whose this difference is; "ddlp" if nothing else is shown."""
    for name, changed in WHOSE.items():
        with changed():
            if np.array_equal(_theirs(t, image, index), ours):
                return name
    if type(t).__name__ == "GaussianBlur":
        exact, differ = _blurred(t, image), ours != theirs
        parts = np.stack([ours, theirs, exact])[:, differ]
        if np.all(np.abs(parts[:2] - parts[2]) < 0.501):
            return "float32 sums"
    return "ddlp"


def _blurred(t: Any, image: Image.Image) -> np.ndarray:
    """A blur in double precision, not rounded."""
    pixels = np.asarray(image).reshape(image.height, image.width, -1).astype(np.float64)
    for axis, taps in ((1, t.kernel_size[0]), (0, t.kernel_size[1])):
        at = np.arange(taps) - taps // 2
        weights = np.exp(-0.5 * (at / float(np.float32(t.sigma[0]))) ** 2)
        padded = np.pad(pixels, [(taps // 2, taps // 2) if k == axis else (0, 0) for k in range(3)], mode="reflect")
        count = pixels.shape[axis]
        parts = [np.take(padded, np.arange(k, k + count), axis) * weights[k] / weights.sum() for k in range(taps)]
        pixels = np.sum(parts, axis=0)
    return pixels


# -- rows ------------------------------------------------------------------------------------------------------------------


@dataclass
class Compared:
    """One row.

    Attributes:
        name, parameters: as `ROWS` has them.
        trials: images compared.
        values: uint8 values compared; of an eraser one for each pixel: erased or not.
        differ: values that differ; ``largest``: by at most so much.
        whose: of the differing images, how many are whose.
        values_whose: of the differing values.
        refused: images that torchvision refuses.
        error: what ddlp alone refuses, or another shape.
    """

    name: str
    parameters: str
    trials: int = 0
    values: int = 0
    differ: int = 0
    largest: int = 0
    whose: dict[str, int] = field(default_factory=dict)
    values_whose: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether nothing differs that is ddlp's."""
        return not self.error and "ddlp" not in self.whose


@dataclass
class Table:
    """All rows, and the versions that made them."""

    versions: dict[str, str]
    rows: list[Compared] = field(default_factory=list)


@functools.lru_cache(maxsize=1)
def _sources() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    pixels = pixel_sources()
    return pixels, file_sources(pixels)


def compare_row(name: str, draws: int) -> Compared:
    """Compare one row: so many trials on each of its images."""
    pixels, files = _sources()
    if name.startswith("decode "):
        return _compare_decoding(name, files)
    plain = name.removesuffix(_FROM_A_JPEG)
    parameters, make = ROWS[plain]
    found = Compared(name, parameters)
    wanted = ("JPEG 4:2:0", "JPEG greyscale") if name != plain else tuple(pixels)
    for source in wanted:
        grey = source == "grey"
        if grey and plain.startswith("timm's"):
            continue  # timm's fills are of three channels
        with Image.fromarray(pixels[source]) if source in pixels else _loaded(files[source]) as image:
            for trial in range(draws):
                t = make((v1, v2)[trial % 2] if draws > 1 else v1, Span(name, trial // 2))
                _compare(found, t, source, {**pixels, **files}, image, trial, "L" if grey else "RGB")
    return found


def _compare(found: Compared, t: Any, source: str, sources: Any, image: Image.Image, index: int, mode: str) -> None:
    """Add one trial."""
    answers: list[Any] = []
    for make in (lambda: _ours(t, source, sources, index, mode), lambda: _theirs(t, image, index)):
        try:
            answers.append(make())
        except (ValueError, OSError, RuntimeError, ZeroDivisionError) as error:
            answers.append(error)
    ours, theirs = answers
    if isinstance(theirs, Exception):
        found.refused += 1
    elif isinstance(ours, Exception) or ours.shape != theirs.shape:
        shapes = [answer if isinstance(answer, Exception) else answer.shape for answer in answers]
        found.error = found.error or f"{t!r} on {source}, draw {index}: ddlp {shapes[0]}, torchvision {shapes[1]}"
    else:
        _add(found, ours, theirs, lambda: _whose(t, image, index, ours, theirs))


def _add(found: Compared, ours: np.ndarray, theirs: np.ndarray, whose: Callable[[], str]) -> None:
    distance = np.abs(ours.astype(int) - theirs)
    found.trials, found.values = found.trials + 1, found.values + distance.size
    found.largest = max(found.largest, int(distance.max(initial=0)))
    differ = int(np.count_nonzero(distance))
    if differ:
        name = whose()
        found.differ += differ
        found.whose[name] = found.whose.get(name, 0) + 1
        found.values_whose[name] = found.values_whose.get(name, 0) + differ


def _loaded(content: np.ndarray) -> Image.Image:
    """torchvision's image of a file, as ImageFolder has it."""
    with tempfile.NamedTemporaryFile(prefix="ddlp-bench-") as file:
        file.write(content.tobytes())
        file.flush()
        return pil_loader(file.name)


def _compare_decoding(name: str, files: Mapping[str, np.ndarray]) -> Compared:
    found, source = Compared(name, ""), name.removeprefix("decode ")
    data = translate(v1.PILToTensor()).pipeline.to_data()
    result = run_cases(files, [Case(source, 0, data)])
    try:
        theirs = np.asarray(_loaded(files[source]))
    except OSError as error:
        found.refused, found.error = 1, "" if 0 in result.errors else f"torchvision alone refuses it: {error}"
        return found
    if 0 in result.errors:
        found.error = f"ddlp alone refuses it: {result.errors[0]}"
    else:
        _add(found, result.pixels[0], theirs, lambda: "ddlp")
    return found


def all_names() -> list[str]:
    """The rows of `ddlp parity` that torchvision or timm has, in their order."""
    names = list(dict.fromkeys(name for name, ours, _ in all_cases(range(1))[1] if ours))
    return [name for name in names if name.startswith("decode ") or name.removesuffix(_FROM_A_JPEG) in ROWS]


# -- the command -----------------------------------------------------------------------------------------------------------


def report_parts(quick: bool) -> list[tuple[str, list[str]]]:
    """Return what `ddlp bench --all` runs of this bench: titles and arguments."""
    return [("Each row of ddlp parity beside torchvision", ["--draws", "6" if quick else str(DRAWS)])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="N",
                        help="how many sets of parameters each operator gets on each image (%(default)s)")  # fmt: skip
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name begins so")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Compare and print. Return 1 if a row differs by ddlp's fault."""
    if options.draws < 1:
        raise BenchFailed(f"--draws {options.draws}: give the number of sets of parameters, 1 or more.")
    names = [name for name in all_names() if not options.rows or name.startswith(tuple(options.rows))]
    if not names:
        raise BenchFailed(f"--rows {' '.join(options.rows)}: no row begins so; `ddlp parity NAME --table` lists all.")
    result = compare(names, options.draws, say)
    emit(options, result, table(result), aims(result))
    return 0 if all(row.right for row in result.rows) else 1


def compare(names: Sequence[str], draws: int, tell: Say) -> Table:
    """Compare rows, in one process a core."""
    cores = len(os.sched_getaffinity(0))
    works = [{"names": list(names[k :: 4 * cores]), "draws": draws} for k in range(4 * cores)]
    done: dict[str, Compared] = {}

    def told(answer: dict[str, Any]) -> None:
        done.update((row["name"], Compared(**row)) for row in answer["rows"])
        tell(f"{len(done)} of {len(names)} rows")

    on_all_cores("ddlp.bench.torchvision_rows", [work for work in works if work["names"]], told)
    return Table(versions(), [done[name] for name in names])


def table(result: Table) -> str:
    """The comparison in Markdown."""
    lines = [
        f"Made on {datetime.date.today().isoformat()}.",
        "",
        "| operator | parameters | values compared | differ | largest difference | whose |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for row in result.rows:
        values = f"{row.values:,}" if row.values else "both refuse it"
        share = f"{row.differ:,} (1 of {row.values // row.differ:,})" if row.differ else "0"
        whose = ", ".join(f"{name}: {number:,} in {row.whose[name]} of {row.trials:,} images"
                          for name, number in row.values_whose.items())  # fmt: skip
        lines.append(f"| {row.name} | {row.parameters} | {values} | {row.error or share} | {row.largest} | {whose} |")
    compared = sum(row.values for row in result.rows)
    lines.append(f"| all | | {compared:,} | {sum(row.differ for row in result.rows):,} | "
                 f"{max(row.largest for row in result.rows)} | |")  # fmt: skip
    return "\n".join(lines)


def aims(result: Table) -> list[Aim]:
    """Return the aims: no difference is ddlp's, and few are the C library's."""
    values = sum(row.values for row in result.rows)
    library = sum(row.values_whose.get("C library", 0) for row in result.rows)
    return [
        Aim(f"rows without a difference of ddlp's, of {len(result.rows)}", len(result.rows),
            sum(row.right for row in result.rows)),
        Aim("values to each that differs by the C library", _BY_C_LIBRARY, values / library if library else math.inf),
    ]  # fmt: skip


def main() -> None:
    """Compare the rows that standard input names."""
    work = json.load(sys.stdin)
    torch.set_num_threads(1)
    print(json.dumps({"rows": [vars(compare_row(name, work["draws"])) for name in work["names"]]}))


if __name__ == "__main__":
    main()
