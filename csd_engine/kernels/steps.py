"""Steps on a small image in memory, which one call of the kernel runs: src/steps/steps.h."""

from __future__ import annotations

import ctypes
import enum
import struct
from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

from csd_engine.kernels.places import address

__all__ = ["KernelStep", "PackedSteps", "StepKind"]

_NUMBERS = 14  # STEP_NUMBERS of src/steps/steps.h
_STEP = struct.Struct(f"@ii{_NUMBERS}dP0d")  # ddlp_step_numbers, with its padding


class StepKind(enum.IntEnum):
    """What a step does; src/steps/steps.h says which numbers each kind takes."""

    CROP = 0
    MIRROR = 1
    PAD = 2
    GRAY = 3
    RESIZE = 4
    TURN = 5
    TABLE = 6
    BRIGHTNESS = 7
    CONTRAST = 8
    SATURATION = 9
    SHARPNESS = 10
    HUE = 11
    AUTOCONTRAST = 12
    EQUALIZE = 13
    AFFINE = 14
    PERSPECTIVE = 15
    BLUR = 16
    CROPS = 17
    GRID = 18


class KernelStep(NamedTuple):
    """One step in the kernel's form.

    Attributes:
        kind: what it does.
        numbers: its numbers, at most 14.
        data: a contiguous array that the step reads, or None.
    """

    kind: StepKind
    numbers: Tuple[float, ...] = ()
    data: Optional[np.ndarray] = None


class PackedSteps:
    """Steps in the form that the kernel reads. Any thread may use it.

    Raises:
        ValueError: a step has too many numbers.
    """

    def __init__(self, steps: Sequence[KernelStep]) -> None:
        parts = []
        for kind, numbers, data in steps:
            if len(numbers) > _NUMBERS:
                raise ValueError(f"{kind!r} has {len(numbers)} numbers; at most {_NUMBERS} fit")
            place = 0 if data is None else address(data)
            parts.append(_STEP.pack(kind, 0, *numbers, *(0.0,) * (_NUMBERS - len(numbers)), place))
        self._data = [step.data for step in steps]  # kept alive, since the kernel reads them
        self._bytes = b"".join(parts)
        self.count = len(steps)

    @property
    def pointer(self) -> ctypes.c_char_p:
        """The steps' address for a call; valid while this object lives."""
        return ctypes.c_char_p(self._bytes)
