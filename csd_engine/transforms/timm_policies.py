"""timm's automatic augmentations: its operators, how strong each is at a magnitude, and how they are chosen.

They use magnitudes from 0 to 10, which may be noisy. torchvision's augmentations (policies.py) use the levels of a grid.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, ClassVar, Dict, List, Optional, Tuple, Union

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms import colour_steps as colours
from csd_engine.transforms.operators import Canvas, Operator
from csd_engine.transforms.primitives import Primitive
from csd_engine.transforms.warp_steps import WARP_FILTERS
from csd_engine.transforms.warps import rotate

__all__ = ["NAMES", "OPERATORS", "strength"]

_FULL = 10.0  # the magnitude of the full effect
_MOST = 1000.0
_MOST_POLICIES = 256
_DARK_BELOW = 128  # SolarizeAdd brightens the values below this one

Line = Tuple[str, float, float]  # name, probability, magnitude


def _kept_bits(share: float) -> int:
    return int(share * 4)


def _threshold(share: float) -> int:
    return min(256, int(share * 256))


def _clamped(low: float, high: float) -> Callable[[float], float]:
    return lambda share: max(low, min(high, low + (high - low) * share))


_SIGNED = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}  # an operator's strength at the full magnitude, positive or negative
_TRANSLATE = ("TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel")
_ENHANCED = {"Color": "saturation", "Contrast": "contrast", "Brightness": "brightness", "Sharpness": "sharpness"}
_INCREASING = {f"{name}Increasing": what for name, what in _ENHANCED.items()}
_BY_SHARE: Dict[str, Callable[[float], float]] = {
    "Posterize": _kept_bits,
    "PosterizeIncreasing": lambda share: 4 - _kept_bits(share),
    "PosterizeOriginal": lambda share: _kept_bits(share) + 4,
    "Solarize": _threshold,
    "SolarizeIncreasing": lambda share: 256 - _threshold(share),
    "SolarizeAdd": lambda share: min(128, int(share * 110)),
    "Desaturate": _clamped(0.5, 1.0),
    "GaussianBlur": _clamped(0.1, 2.0),
    "GaussianBlurRand": _clamped(0.0, 1.0),
    **dict.fromkeys(_ENHANCED, lambda share: share * 1.8 + 0.1),
}
_PLAIN: Dict[str, Callable[[], Primitive]] = {
    "AutoContrast": colours.AutoContrast, "Equalize": colours.Equalize, "Invert": colours.inverted,
}  # fmt: skip
NAMES = (*_SIGNED, *_TRANSLATE, *_INCREASING, *_BY_SHARE, *_PLAIN)
"""All operators."""


def strength(name: str, magnitude: float, negative: bool, translate_const: float, translate_pct: float) -> float:
    """An operator's own parameter at a magnitude: degrees, a factor, bits, a threshold ...; 0.0 if it has none.

    ``negative`` turns the sign of an operator that has both signs. At the full magnitude, a translation by pixels is
    ``translate_const``, and a translation by a share of the image is ``translate_pct``.
    """
    share = magnitude / _FULL
    if name in _BY_SHARE:
        return _BY_SHARE[name](share)
    if name in _PLAIN:
        return 0.0
    full = 0.9 if name in _INCREASING else _SIGNED.get(name, translate_pct if name.endswith("Rel") else translate_const)
    signed = -(share * full) if negative else share * full
    return max(0.1, 1.0 + signed) if name in _INCREASING else signed


def _noise(value: Any) -> Union[float, str]:
    if value == "uniform":
        return "uniform"
    return float(checks.number(0.0, _MOST)(value))


def _filters(value: Any) -> Tuple[str, ...]:
    return tuple(checks.one_of(*WARP_FILTERS)(name) for name in checks.listed(value, range(1, 9), "a list of filters"))


def _line(value: Any) -> Line:
    name, p, magnitude = checks.listed(value, (3,), "[name, probability, magnitude]")
    return checks.one_of(*NAMES)(name), checks.probability(p), checks.number(0.0, _MOST)(magnitude)


def _policies(value: Any) -> Tuple[Tuple[Line, ...], ...]:
    listed = checks.listed(value, range(1, _MOST_POLICIES + 1), f"a list of 1 to {_MOST_POLICIES} lists of operators")
    return tuple(tuple(map(_line, checks.listed(lines, range(9), "a list of at most 8 operators"))) for lines in listed)


@dataclasses.dataclass(frozen=True)
class TimmAugment(Operator):
    """timm's AugmentOps in lists, some of which are chosen at random. RandAugment's lists have one operator, AutoAugment's two.

    Attributes:
        policies: the lists; each operator has name, probability and magnitude.
        layers: how many lists are chosen, with replacement unless there are ``weights``.
        weights: the weight of each list, or None: all are equally likely.
        noise: the standard deviation of a magnitude, or "uniform": a uniform number from 0 to the magnitude.
        most: the largest magnitude.
        interpolation: each operator takes one of these filters.
        fill: the colour of the area that a shear, rotation or translation leaves empty.
        translate_const, translate_pct: see `strength`.
    """

    policies: Tuple[Tuple[Line, ...], ...]
    layers: int
    weights: Optional[Tuple[float, ...]]
    noise: Union[float, str]
    most: float
    interpolation: Tuple[str, ...]
    fill: Tuple[int, ...]
    translate_const: float
    translate_pct: float
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "policies": _policies,
        "layers": checks.integer(0, 64),
        "weights": checks.weights,
        "noise": _noise,
        "most": checks.number(0.0, _MOST),
        "interpolation": _filters,
        "fill": checks.fill,
        "translate_const": checks.number(-checks.MAX_SIDE, checks.MAX_SIDE),
        "translate_pct": checks.number(-1.0, 1.0),
    }

    def validate(self) -> None:
        """Raise ValueError unless there are as many weights as lists, and enough for a choice without replacement."""
        if self.weights is None:
            return
        if len(self.weights) != len(self.policies):
            raise ValueError(f"{len(self.weights)} weights for {len(self.policies)} lists of operators")
        if self.layers > sum(weight > 0.0 for weight in self.weights):
            raise ValueError(f"{self.layers} layers of fewer lists of operators with a weight, each chosen once")

    def to_data(self) -> Dict[str, Any]:
        """Plain data, as parsed."""
        return dict(super().to_data(), policies=[[list(line) for line in lines] for lines in self.policies])

    def chosen(self, keyed: Keyed) -> List[int]:
        """Draw the lists' numbers, in their order."""
        if self.weights is None:
            return [keyed.below(len(self.policies)) for _ in range(self.layers)]
        left = list(self.weights)
        numbers: List[int] = []
        for _ in range(self.layers):
            numbers.append(keyed.weighted(left))
            left[numbers[-1]] = 0.0
        return numbers

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw the lists, then each operator's chance, magnitude, sign and filter."""
        for number in self.chosen(keyed):
            for name, p, magnitude in self.policies[number]:
                if p >= 1.0 or keyed.uniform() < p:
                    self.augment(canvas, name, self.noisy(magnitude, keyed), keyed)

    def noisy(self, magnitude: float, keyed: Keyed) -> float:
        """Draw a magnitude with noise from this one, within the bounds."""
        if isinstance(self.noise, str):
            magnitude = keyed.uniform(0.0, magnitude)
        elif self.noise > 0.0:
            magnitude += self.noise * keyed.normal()
        return max(0.0, min(magnitude, self.most))

    def augment(self, canvas: Canvas, name: str, magnitude: float, keyed: Keyed) -> None:
        """Add one operator's step."""
        moves = name in _SIGNED or name in _TRANSLATE
        negative = (moves or name in _INCREASING) and keyed.below(2) == 0
        amount = strength(name, magnitude, negative, self.translate_const, self.translate_pct)
        if moves:
            interpolation = self.interpolation[keyed.below(len(self.interpolation))]
            move(canvas, name, amount, interpolation, self.fill)
        elif name == "GaussianBlurRand":
            canvas.add(colours.BoxesBlur(keyed.uniform(0.1, 2.0 * amount)))
        else:
            recolour(canvas, name, amount)


def move(canvas: Canvas, name: str, amount: float, interpolation: str, fill: Tuple[int, ...]) -> None:
    """Shear by a tangent, rotate by degrees, or translate by pixels or a share of the image."""
    width, height = canvas.width, canvas.height
    if name == "Rotate":
        rotate(canvas, amount, interpolation, False, None, fill)
        return
    matrices = {
        "ShearX": (1.0, amount, 0.0, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, amount, 1.0, 0.0),
        "TranslateX": (1.0, 0.0, amount, 0.0, 1.0, 0.0),
        "TranslateY": (1.0, 0.0, 0.0, 0.0, 1.0, amount),
        "TranslateXRel": (1.0, 0.0, amount * width, 0.0, 1.0, 0.0),
        "TranslateYRel": (1.0, 0.0, 0.0, 0.0, 1.0, amount * height),
    }
    canvas.warp(height, width, matrices[name], interpolation, fill)


def recolour(canvas: Canvas, name: str, amount: float) -> None:
    """Add the step of an operator that moves no pixels. If no bits are kept, the image is black, as before Pillow 13."""
    if name in _PLAIN:
        canvas.add(_PLAIN[name]())
    elif name.startswith("Posterize"):
        if amount < 8:
            canvas.add(colours.posterized(max(int(amount), 0)))
    elif name == "SolarizeAdd":
        canvas.add(colours.brightened_below(_DARK_BELOW, int(amount)))
    elif name.startswith("Solarize"):
        canvas.add(colours.solarized(float(amount)))
    elif name == "Desaturate":
        canvas.add(colours.Enhance("saturation", min(1.0, max(0.0, 1.0 - amount))))
    elif name == "GaussianBlur":
        canvas.add(colours.BoxesBlur(amount))
    else:
        canvas.add(colours.Enhance({**_ENHANCED, **_INCREASING}[name], amount))


OPERATORS = (TimmAugment,)
"""The operators that a pipeline may name."""
