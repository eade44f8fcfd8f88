"""Which operator a device does otherwise: the pipeline is run on both sides again, one operator longer each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from csd_engine.errors import EngineRefused
from csd_engine.keyed import Keyed
from csd_engine.prepare.sample import prepare_sample, sample_digest
from csd_engine.transforms import Pipeline
from csd_engine.transforms.containers import Container
from csd_engine.transforms.masks import Mask
from csd_engine.transforms.operators import CenterCrop, Operator
from csd_engine.transforms.user import User
from ddlp.sources.host.native import EpochSpec

__all__ = ["first_difference"]

Ask = Callable[[Pipeline, tuple[int, int, int]], str]
"""(pipeline, (height, width, channels) of its result) -> digest of the item as the device makes it."""


def first_difference(spec: EpochSpec, item: tuple[int, int], ask: Ask) -> str:
    """Name what makes other pixels of this item on the device: the image itself, or an operator with its parameters.

    Empty where it can't be told: what the device makes then changes from time to time, or it refuses all but the whole.

    Args:
        spec: whose pipeline makes other bits there.
        item: (source index, occurrence) of which it does.
        ask: has the device make it with another pipeline; raises EngineRefused where it does not take that.
    """
    with spec.reader.image(item[0]) as image:
        size, kind = image.size, image.format
    unknown: list[str] = []
    for pipeline, last in _steps(spec.pipeline):
        image_itself = f"the {kind or 'array'} itself, which is another one there or is read otherwise"
        name = image_itself if last is None else _name(last)
        key = Keyed(spec.seed, spec.epoch, *item)
        height, width, channels = pipeline.draw(size, key).shape
        if last is None or not _masks(last):
            # Changes nothing, and draws nothing: it says what size this item's result has, since others have other sizes.
            operators = (*pipeline.operators, CenterCrop((height, width)))
            pipeline = dataclasses.replace(pipeline, operators=operators)
        try:
            theirs = ask(pipeline, (height, width, channels))
        except EngineRefused:
            unknown.append(name)
            continue
        if theirs != _digest(spec, item, pipeline, (height, width, channels)):
            return " or ".join([*unknown, name])
        unknown.clear()
    return ""


def _steps(pipeline: Pipeline) -> Iterator[tuple[Pipeline, Operator | None]]:
    """The pipeline cut off behind each operator, and the last operator of each; masks come last and all at once."""
    yield dataclasses.replace(pipeline, operators=(), boxes=0), None
    for k, operator in enumerate(pipeline.operators):
        if _masks(operator):
            yield pipeline, operator
            return
        yield dataclasses.replace(pipeline, operators=pipeline.operators[: k + 1], boxes=0), operator


def _masks(operator: Operator) -> bool:
    if isinstance(operator, Container):
        return any(_masks(one) for group in operator.groups for one in group)
    return isinstance(operator, Mask)


def _name(operator: Operator) -> str:
    """As a person would write it."""
    if isinstance(operator, User):
        return f"{operator.function}({', '.join(f'{key}={value!r}' for key, value in operator.parameters)}), which is yours"
    data = operator.to_data()
    name = data.pop("op")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in data.items())})"


def _digest(spec: EpochSpec, item: tuple[int, int], pipeline: Pipeline, shape: tuple[int, int, int]) -> str:
    pixels = np.empty(shape, np.uint8)
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    prepare_sample(spec.reader, pipeline, item, spec.seed, spec.epoch, pixels, boxes)
    return sample_digest(pixels, boxes)
