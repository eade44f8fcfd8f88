"""Cuts a transform in two: the first operators are known and go through ddlp's pipeline, the others are the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from csd_engine.errors import PipelineError
from ddlp.errors import Untranslatable
from ddlp.translate.transforms import Translation, names_of, steps_of, translate_steps

__all__ = ["Cut", "Rest", "cut"]


@dataclass(frozen=True)
class Rest:
    """The steps that the host runs as user code, sample by sample, on the results of the known operators.

    Attributes:
        steps: of the transform, in turn. None: the collate_fn alone is the user's.
        tensor: the type of the image that the first step gets, torch.Tensor or a tv_tensors.Image, (channels, height, width);
            None: a PIL image of mode RGB or L.
        target_transforms: the user's, one for each part of the data set; None: targets are given as they are.
        why: the reason why the first step is not known.
    """

    steps: tuple[Any, ...]
    tensor: type[torch.Tensor] | None
    target_transforms: tuple[Any, ...]
    why: Untranslatable

    @property
    def names(self) -> list[str]:
        """The steps as the user wrote them."""
        return names_of(self.steps)


@dataclass(frozen=True)
class Cut:
    """A transform in two parts: the known operators, and the steps after them."""

    known: Translation
    steps: tuple[Any, ...]
    tensor: type[torch.Tensor] | None
    shape: tuple[int, int, int]  # (height, width, channels) between the two


def cut(transform: Any, mode: str, size: tuple[int, int] | None, as_pil: bool = False) -> Cut | None:
    """The longest run of first operators that ddlp knows and that gives images of one size.

    Args:
        transform: the user's.
        mode: Pillow's mode of the images, ``"RGB"`` or ``"L"``.
        size: (width, height) of all images; None: each has its own.
        as_pil: as of `translate`.

    Returns:
        None if there is no such run, or if it changes no pixels: changes of types and values alone save no work.
    """
    steps = steps_of(transform, mode)
    for known in range(_known(steps, mode, as_pil), 0, -1):
        try:
            translation, tensor = translate_steps(steps[:known], mode, as_pil)
            shape = translation.pipeline.output_shape(size)
        except (Untranslatable, PipelineError):
            continue
        if translation.pipeline.operators:
            return Cut(translation, tuple(steps[known:]), tensor, shape)
    return None


def _known(steps: Sequence[Any], mode: str, as_pil: bool) -> int:
    """How many first steps are known, for images of any size."""
    for known in range(1, len(steps) + 1):
        try:
            translate_steps(steps[:known], mode, as_pil)
        except Untranslatable:
            return known - 1
    return len(steps)
