"""What torchvision (or timm) runs beside each row of `ddlp parity`: an object as a user writes it, over all its parameters."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, autoaugment, v2

from csd_engine.kernels.windows import PADDING_MODES
from csd_engine.transforms.resample import FILTERS
from csd_engine.transforms.timm_policies import NAMES as TIMM_OPERATORS
from csd_engine.transforms.torch_pixels import PIXELS, is_v2
from csd_engine.transforms.torch_resample import TORCH_FILTERS
from csd_engine.transforms.warp_steps import WARP_FILTERS
from ddlp.deploy.parity import operator_rows
from ddlp.transforms import Views

__all__ = ["ON_TENSORS", "ROWS", "Span", "rows_without_a_call"]

Make = Callable[[Any, "Span"], Any]  # of a module, v1 or v2, and parameters
Rows = dict[str, tuple[str, Make]]


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


def _joined(rows: Callable[[Any], Rows], variants: Iterable[Any]) -> Rows:
    return {name: row for variant in variants for name, row in rows(variant).items()}


def _resampling_rows(name: str) -> Rows:
    how = {"interpolation": InterpolationMode(name.rpartition("-")[2])}

    def on_tensor(m: Any, make: Callable[[Any], Any]) -> Any:
        if name not in TORCH_FILTERS:
            return make(m)
        return v2.Compose([v2.PILToTensor(), make(v2 if name.count("-") == 1 else v1)])

    return {
        f"Resize {name}": ("1 to 300 pixels a side", lambda m, s: on_tensor(m, lambda m: m.Resize(s.pair(1, 300), **how))),
        f"RandomResizedCrop {name}": ("scale 0.01 to 1, ratio 0.2 to 5", lambda m, s: on_tensor(
            m, lambda m: m.RandomResizedCrop((96, 128), s.fixed(0.01, 1), s.fixed(0.2, 5), **how))),
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
        **_joined(_resampling_rows, (*FILTERS, *TORCH_FILTERS)),
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


_ROWS: Rows = {
    **_size_rows(), **_flip_rows(), **_colour_rows(), **_joined(_warp_rows, WARP_FILTERS),
    "RandomRotation, expanded": ("-360 to 360 degrees", lambda m, s: m.RandomRotation(
        s.fixed(-360, 360), expand=True, **_warp(s, "bilinear"))),
    **_joined(_policy_rows, ("v1", "v2")), **_timm_rows(),
}  # fmt: skip


def _rows_of_torchs_pixels() -> Rows:
    """Rows whose operator runs on a tensor. Contrast's are of a size up to which ddlp knows torch's mean."""

    def row(name: str) -> tuple[str, Make]:
        base, _, whose = name.rpartition(", ")
        parameters, make = _ROWS[base]
        return parameters, lambda m, s: v2.Compose([
            v2.PILToTensor(), v2.CenterCrop((150, 130)), make(v2 if is_v2(whose) else v1, s)
        ])  # fmt: skip

    return {name: row(name) for name in operator_rows() if name.rpartition(", ")[2] in PIXELS}


ROWS: Rows = {**_ROWS, **_rows_of_torchs_pixels()}
"""What torchvision and timm run beside a row of `ddlp.deploy.parity.operator_rows`: its parameters in words, and an object."""


def _on_tensor(parameters: str, make: Make) -> tuple[str, Make]:
    return parameters, lambda m, s: v2.Compose([v2.PILToTensor(), make(m, s)])


ON_TENSORS: Rows = {
    f"{name}, on a tensor": _on_tensor(*row)
    for name, row in ROWS.items()
    if name.startswith(("RandomCrop, ", "Pad ", "CenterCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "Posterize",
                        "Solarize", "Invert", "Equalize")) and name.rpartition(", ")[2] not in PIXELS
}  # fmt: skip
"""The same behind PILToTensor, of rows whose pixels ddlp promises to be those of a PIL image there."""


def rows_without_a_call() -> list[str]:
    """The rows of `ddlp parity` that have none here: timm's where it is not installed, and those of ddlp alone."""
    return [name for name in operator_rows() if name not in ROWS]
