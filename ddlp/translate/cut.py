"""Cuts a transform in two: the first operators are known and go through ddlp's pipeline, the others are the user's code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from csd_engine.errors import PipelineError
from csd_engine.transforms.primitives import CHANNELS
from ddlp.errors import Untranslatable
from ddlp.translate.joint import Joint, changes_image, follows
from ddlp.translate.transforms import (
    Translation,
    names_of,
    operator_counts,
    steps_of,
    translate_steps,
    translate_views_steps,
    view_transforms,
)
from ddlp.translate.views import Held

__all__ = ["Cut", "Rest", "cut", "cut_joint"]

Steps = tuple[Any, ...]


@dataclass(frozen=True)
class Rest:
    """The steps that the host runs as user code, sample by sample, on the results of the known operators.

    Attributes:
        views: the steps of each view of a sample, in turn; there is one view unless the transform makes several. A view without
            steps: the collate_fn alone is the user's.
        gathered: makes the transform's result of the list of several views: list, tuple or a `Held`; None: the transform makes
            one image.
        crops: the first step gets a tuple with so many images, which lie one below the other in each prepared image; 1: it gets
            the image.
        tensor: the type of the image that the first step gets, torch.Tensor or a tv_tensors.Image, (channels, height, width);
            None: a PIL image of mode RGB or L.
        target_transforms: the user's, one for each part of the data set; None: targets are given as they are.
        why: the reason why the first step is not known.
        joint: what the known operators do to targets; each step then gets image and target. None: each step gets the image.
    """

    views: tuple[Steps, ...]
    gathered: type | Held | None
    crops: int
    tensor: type[torch.Tensor] | None
    target_transforms: tuple[Any, ...]
    why: Untranslatable
    joint: Joint | None = None

    @property
    def names(self) -> list[str]:
        """The steps of each view as the user wrote them, on one line; views that are alike once."""
        return list(dict.fromkeys(" -> ".join(names_of(steps)) or "none" for steps in self.views))


@dataclass(frozen=True)
class Cut:
    """A transform in two parts: the known operators, and the steps after them. See `Rest` for what both have."""

    known: Translation
    views: tuple[Steps, ...]
    gathered: type | Held | None
    tensor: type[torch.Tensor] | None
    shape: tuple[int, int, int]  # (height, width, channels) between the two


@dataclass(frozen=True)
class _Beginning:
    """The first ``steps`` operators of a transform, which ddlp knows."""

    steps: int
    known: Translation
    tensor: type[torch.Tensor] | None
    shape: tuple[int, int, int]


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
    several = view_transforms(transform)
    if several is not None:
        return _cut_views(several.transforms, several.gathered, mode, size, as_pil)
    steps = steps_of(transform, mode)
    for beginning in _beginnings(steps, mode, size, as_pil):
        return Cut(beginning.known, (tuple(steps[beginning.steps :]),), None, beginning.tensor, beginning.shape)
    return None


def cut_joint(transforms: Any, mode: str, as_pil: bool = False) -> tuple[Cut, Joint] | None:
    """Do as `cut` for a joint transform, which gets an image and its target, of images of any size.

    Returns:
        The cut, whose steps are joint ones too, and what its known operators do to targets; None as `cut`.
    """
    steps = steps_of(transforms, mode)
    known = list(itertools.takewhile(follows, steps))
    places = [place for place, step in enumerate(known) if changes_image(step)]
    of_images = [known[place] for place in places]
    for beginning in _beginnings(of_images, mode, None, as_pil):
        end = places[beginning.steps] if beginning.steps < len(places) else len(known)
        operators = iter(beginning.known.pipeline.operators)
        counts = dict(zip(places[: beginning.steps], operator_counts(of_images[: beginning.steps], mode, as_pil), strict=True))
        followed = tuple((step, tuple(itertools.islice(operators, counts.get(k, 0)))) for k, step in enumerate(known[:end]))
        prefix = Cut(beginning.known, (tuple(steps[end:]),), None, beginning.tensor, beginning.shape)
        return prefix, Joint(followed, CHANNELS[mode])
    return None


def _cut_views(
    transforms: Sequence[Any], gathered: type | Held, mode: str, size: tuple[int, int] | None, as_pil: bool
) -> Cut | None:
    """Cut each view as late as possible; if the views' images differ then, cut each before its image becomes a tensor."""
    different = {id(transform): steps_of(transform, mode) for transform in transforms}  # views are often alike
    beginnings = {
        number: [beginning for beginning in _beginnings(steps, mode, size, as_pil) if beginning.known.crops == 1]
        for number, steps in different.items()
    }
    views, candidates = ([of[id(transform)] for transform in transforms] for of in (different, beginnings))
    for on_pil in (False, True):
        latest = [
            next((beginning for beginning in several if beginning.tensor is None or not on_pil), None) for several in candidates
        ]
        counts = [beginning.steps for beginning in latest if beginning is not None]
        if len(counts) < len(views):
            return None
        parts = list(zip(views, counts, strict=True))
        try:
            known, tensor = translate_views_steps([steps[:count] for steps, count in parts], mode, as_pil)
            shape = known.pipeline.output_shape(size)
        except (Untranslatable, PipelineError):
            continue
        return Cut(known, tuple(tuple(steps[count:]) for steps, count in parts), gathered, tensor, shape)
    return None


def _beginnings(
    steps: Sequence[Any], mode: str, size: tuple[int, int] | None, as_pil: bool
) -> Iterator[_Beginning]:
    """Yield the runs of first operators that ddlp knows, that change pixels and give images of one size; the longest first."""
    for known in range(_known(steps, mode, as_pil), 0, -1):
        try:
            translation, tensor = translate_steps(steps[:known], mode, as_pil)
            shape = translation.pipeline.output_shape(size)
        except (Untranslatable, PipelineError):
            continue
        if translation.pipeline.operators:
            yield _Beginning(known, translation, tensor, shape)


def _known(steps: Sequence[Any], mode: str, as_pil: bool) -> int:
    """How many first steps are known, for images of any size."""
    for known in range(1, len(steps) + 1):
        try:
            translate_steps(steps[:known], mode, as_pil)
        except Untranslatable:
            return known - 1
    return len(steps)
