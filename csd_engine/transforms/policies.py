"""torchvision's automatic augmentations: which operators they choose from, how strong these are, and how they choose.

AutoAugment (Cubuk et al., arXiv 1805.09501), RandAugment (arXiv 1909.13719), TrivialAugment Wide (Müller and Hutter, arXiv
2103.10158).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, Dict, NamedTuple, Optional, Tuple

import numpy as np

from csd_engine.arithmetic.angles import arctangent
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import checks
from csd_engine.transforms import colour_steps as colours
from csd_engine.transforms.operators import Canvas, Operator
from csd_engine.transforms.torch_pixels import PILLOW
from csd_engine.transforms.warp_steps import WARP_FILTERS
from csd_engine.transforms.warps import FILL, affine, require_known, rotate

__all__ = ["AUTO", "OPERATORS", "POLICIES", "RAND", "WIDE", "augment"]

_MOST_BINS = 1024
_DEGREES = 180.0 / math.pi


def augment(
    canvas: Canvas, name: str, magnitude: float, interpolation: str, fill: Optional[Tuple[int, ...]], v2: bool,
    pixels: str = PILLOW,
) -> None:
    """Add the step of one operator with a magnitude, as torchvision's _apply_op does in v1, or in ``v2``.

    A shear's magnitude is its tangent, of which torchvision makes degrees, and a tangent again. torch compares a tensor's bytes
    with float32 thresholds.
    """
    along_x = name.endswith("X")
    if name in ("ShearX", "ShearY"):
        degrees = arctangent(magnitude) * _DEGREES
        shear = (degrees, 0.0) if along_x else (0.0, degrees)
        affine(canvas, (0.0, 0.0), 0.0, (0.0, 0.0), 1.0, shear, interpolation, fill, v2, pixels)
    elif name in ("TranslateX", "TranslateY"):
        by = float(int(magnitude))
        move = (by, 0.0) if along_x else (0.0, by)
        affine(canvas, None, 0.0, move, 1.0, (0.0, 0.0), interpolation, fill, v2, pixels)
    elif name == "Rotate":
        rotate(canvas, magnitude, interpolation, False, None, fill, pixels)
    elif name in _ENHANCED:
        canvas.add(colours.Enhance(_ENHANCED[name], 1.0 + magnitude, pixels))
    elif name == "Posterize":
        canvas.add(colours.posterized(int(magnitude)))
    elif name == "Solarize":
        canvas.add(colours.solarized(magnitude if pixels == PILLOW else float(np.float32(magnitude))))
    elif name == "AutoContrast":
        canvas.add(colours.AutoContrast(pixels))
    elif name == "Equalize":
        canvas.add(colours.Equalize())
    elif name == "Invert":
        canvas.add(colours.inverted())


_ENHANCED = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}


class Strength(NamedTuple):
    """How strong an operator may be: from 0 to ``end``, positive or negative.

    Attributes:
        end: the largest magnitude; with ``side``, a share of the image's width or height.
        side: "", "width" or "height".
    """

    end: float
    side: str = ""


class Space(NamedTuple):
    """The operators from which an augmentation chooses.

    Attributes:
        signed: operators whose strength may be positive or negative.
        lost_bits: the most bits that Posterize removes.
        plain: operators without a strength.
    """

    signed: Dict[str, Strength]
    lost_bits: int
    plain: Tuple[str, ...]

    @property
    def names(self) -> Tuple[str, ...]:
        """All operators."""
        return (*self.signed, "Posterize", "Solarize", *self.plain)


def _space(shear: float, translate: Tuple[Strength, Strength], angle: float, most: float, lost_bits: int, *plain: str) -> Space:
    signed = {"ShearX": Strength(shear), "ShearY": Strength(shear), "TranslateX": translate[0], "TranslateY": translate[1]}
    signed.update(Rotate=Strength(angle), **{name: Strength(most) for name in _ENHANCED})
    return Space(signed, lost_bits, ("AutoContrast", "Equalize", *plain))


_SHARES = Strength(150.0 / 331.0, "width"), Strength(150.0 / 331.0, "height")
AUTO = _space(0.3, _SHARES, 30.0, 0.9, 4, "Invert")
RAND = _space(0.3, _SHARES, 30.0, 0.9, 4, "Identity")
WIDE = _space(0.99, (Strength(32.0), Strength(32.0)), 135.0, 0.99, 6, "Identity")


@functools.lru_cache(maxsize=4096)
def _linspace(start: float, end: float, bins: int) -> Tuple[float, ...]:
    """torch.linspace's float32 numbers. They are computed from both ends, each rounded once (a fused multiply-add)."""
    step = float((np.float32(end) - np.float32(start)) / np.float32(bins - 1))
    first, last = float(np.float32(start)), float(np.float32(end))
    up = [first + step * k for k in range(bins // 2)]
    return tuple(float(np.float32(value)) for value in up + [last - step * (bins - 1 - k) for k in range(bins // 2, bins)])


def _magnitude(space: Space, name: str, level: int, bins: int, v2: bool, canvas: Canvas) -> float:
    """An operator's strength at a level, 0 to bins - 1, without its sign."""
    if name == "Posterize":
        return float(8 - round(level / ((bins - 1) / space.lost_bits)))
    if name == "Solarize":
        return 255.0 * _linspace(1.0, 0.0, bins)[level] if v2 else _linspace(255.0, 0.0, bins)[level]
    if name not in space.signed:
        return 0.0
    end, side = space.signed[name]
    sides = {"": 1.0, "width": float(canvas.width), "height": float(canvas.height)}
    return _linspace(0.0, end * sides[side] if side else end, bins)[level]


@dataclasses.dataclass(frozen=True)
class _Policy(Operator):
    """Base of the policies. ``v2``: torchvision's v2 computes Solarize's thresholds and shears in other ways than v1."""

    interpolation: str
    fill: Optional[Tuple[int, ...]]
    v2: bool
    pixels = PILLOW  # a field of each policy: one with a default comes last
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "interpolation": checks.one_of(*WARP_FILTERS),
        "fill": FILL,
        "v2": checks.boolean,
    }
    OPTIONAL: ClassVar[Dict[str, checks.Check]] = {"pixels": checks.pixels}

    def validate(self) -> None:
        """Raise ValueError unless torch's pixels are known."""
        require_known(self.interpolation, self.pixels)

    def augment(self, canvas: Canvas, space: Space, name: str, level: Optional[int], bins: int, negative: bool) -> None:
        """Add the step of one operator at a level, or without a level."""
        magnitude = 0.0 if level is None else _magnitude(space, name, level, bins, self.v2, canvas)
        signed = -magnitude if negative and name in space.signed else magnitude
        augment(canvas, name, signed, self.interpolation, self.fill, self.v2, self.pixels)


@dataclasses.dataclass(frozen=True)
class RandAugment(_Policy):
    """Run ``num_ops`` operators, each chosen at random, all at level ``magnitude`` of ``bins`` levels."""

    num_ops: int
    magnitude: int
    bins: int
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        **_Policy.FIELDS,
        "num_ops": checks.integer(0, 64),
        "magnitude": checks.integer(0, _MOST_BINS - 1),
        "bins": checks.integer(2, _MOST_BINS),
    }

    def validate(self) -> None:
        """Raise ValueError unless the level is below the number of levels."""
        super().validate()
        if self.magnitude >= self.bins:
            raise ValueError("magnitude must be below the number of bins")

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw each operator, then its sign."""
        for _ in range(self.num_ops):
            name = RAND.names[keyed.below(len(RAND.names))]
            self.augment(canvas, RAND, name, self.magnitude, self.bins, name in RAND.signed and keyed.below(2) == 0)


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
    """Run one operator, chosen at random, at a random level of ``bins`` levels."""

    bins: int
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {**_Policy.FIELDS, "bins": checks.integer(2, _MOST_BINS)}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw the operator, its level, its sign."""
        name = WIDE.names[keyed.below(len(WIDE.names))]
        level = None if name in WIDE.plain else keyed.below(self.bins)
        self.augment(canvas, WIDE, name, level, self.bins, name in WIDE.signed and keyed.below(2) == 0)


def _policies(text: str) -> Tuple[Tuple[Tuple[str, float, Optional[int]], ...], ...]:
    """Parse lines of two operators each: name, probability, level of 10 (none: -)."""

    def operator(words: Tuple[str, ...]) -> Tuple[str, float, Optional[int]]:
        return words[0], float(words[1]), None if words[2] == "-" else int(words[2])

    lines = [tuple(line.split()) for line in text.strip().splitlines()]
    return tuple((operator(words[:3]), operator(words[3:])) for words in lines)


@dataclasses.dataclass(frozen=True)
class AutoAugment(_Policy):
    """Run one pair of operators of a learned policy. Each operator has its probability and level."""

    policy: str
    pixels: str = PILLOW
    FIELDS: ClassVar[Dict[str, checks.Check]] = {**_Policy.FIELDS, "policy": checks.one_of("imagenet", "cifar10", "svhn")}

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Draw the pair, both chances, both signs."""
        pairs = POLICIES[self.policy]
        pair = pairs[keyed.below(len(pairs))]
        chances = [keyed.uniform() for _ in pair]
        signs = [keyed.below(2) for _ in pair]
        for (name, p, level), chance, sign in zip(pair, chances, signs):
            if chance <= p:
                self.augment(canvas, AUTO, name, level, 10, sign == 0)


# The tables of arXiv 1805.09501's appendix, as torchvision has them.
POLICIES = {
    "imagenet": _policies("""
        Posterize 0.4 8 Rotate 0.6 9
        Solarize 0.6 5 AutoContrast 0.6 -
        Equalize 0.8 - Equalize 0.6 -
        Posterize 0.6 7 Posterize 0.6 6
        Equalize 0.4 - Solarize 0.2 4
        Equalize 0.4 - Rotate 0.8 8
        Solarize 0.6 3 Equalize 0.6 -
        Posterize 0.8 5 Equalize 1.0 -
        Rotate 0.2 3 Solarize 0.6 8
        Equalize 0.6 - Posterize 0.4 6
        Rotate 0.8 8 Color 0.4 0
        Rotate 0.4 9 Equalize 0.6 -
        Equalize 0.0 - Equalize 0.8 -
        Invert 0.6 - Equalize 1.0 -
        Color 0.6 4 Contrast 1.0 8
        Rotate 0.8 8 Color 1.0 2
        Color 0.8 8 Solarize 0.8 7
        Sharpness 0.4 7 Invert 0.6 -
        ShearX 0.6 5 Equalize 1.0 -
        Color 0.4 0 Equalize 0.6 -
        Equalize 0.4 - Solarize 0.2 4
        Solarize 0.6 5 AutoContrast 0.6 -
        Invert 0.6 - Equalize 1.0 -
        Color 0.6 4 Contrast 1.0 8
        Equalize 0.8 - Equalize 0.6 -
    """),
    "cifar10": _policies("""
        Invert 0.1 - Contrast 0.2 6
        Rotate 0.7 2 TranslateX 0.3 9
        Sharpness 0.8 1 Sharpness 0.9 3
        ShearY 0.5 8 TranslateY 0.7 9
        AutoContrast 0.5 - Equalize 0.9 -
        ShearY 0.2 7 Posterize 0.3 7
        Color 0.4 3 Brightness 0.6 7
        Sharpness 0.3 9 Brightness 0.7 9
        Equalize 0.6 - Equalize 0.5 -
        Contrast 0.6 7 Sharpness 0.6 5
        Color 0.7 7 TranslateX 0.5 8
        Equalize 0.3 - AutoContrast 0.4 -
        TranslateY 0.4 3 Sharpness 0.2 6
        Brightness 0.9 6 Color 0.2 8
        Solarize 0.5 2 Invert 0.0 -
        Equalize 0.2 - AutoContrast 0.6 -
        Equalize 0.2 - Equalize 0.6 -
        Color 0.9 9 Equalize 0.6 -
        AutoContrast 0.8 - Solarize 0.2 8
        Brightness 0.1 3 Color 0.7 0
        Solarize 0.4 5 AutoContrast 0.9 -
        TranslateY 0.9 9 TranslateY 0.7 9
        AutoContrast 0.9 - Solarize 0.8 3
        Equalize 0.8 - Invert 0.1 -
        TranslateY 0.7 9 AutoContrast 0.9 -
    """),
    "svhn": _policies("""
        ShearX 0.9 4 Invert 0.2 -
        ShearY 0.9 8 Invert 0.7 -
        Equalize 0.6 - Solarize 0.6 6
        Invert 0.9 - Equalize 0.6 -
        Equalize 0.6 - Rotate 0.9 3
        ShearX 0.9 4 AutoContrast 0.8 -
        ShearY 0.9 8 Invert 0.4 -
        ShearY 0.9 5 Solarize 0.2 6
        Invert 0.9 - AutoContrast 0.8 -
        Equalize 0.6 - Rotate 0.9 3
        ShearX 0.9 4 Solarize 0.3 3
        ShearY 0.8 8 Invert 0.7 -
        Equalize 0.9 - TranslateY 0.6 6
        Invert 0.9 - Equalize 0.6 -
        Contrast 0.3 3 Rotate 0.8 4
        Invert 0.8 - TranslateY 0.0 2
        ShearY 0.7 6 Solarize 0.4 8
        Invert 0.6 - Rotate 0.8 4
        ShearY 0.3 7 TranslateX 0.9 3
        ShearX 0.1 6 Invert 0.6 -
        Solarize 0.7 2 TranslateY 0.6 7
        ShearY 0.8 4 Invert 0.8 -
        ShearX 0.7 9 TranslateY 0.8 3
        ShearY 0.8 5 AutoContrast 0.7 -
        ShearX 0.7 2 Invert 0.1 -
    """),
}
OPERATORS = (RandAugment, TrivialAugmentWide, AutoAugment)
"""The operators that a pipeline may name."""
