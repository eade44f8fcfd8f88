"""Finds the operator that differs on a device: both sides run the pipeline again, one operator longer each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import EngineRefused
from csd_engine.prepare.sample import prepare_sample, sample_digest
from csd_engine.transforms.containers import Container
from csd_engine.transforms.masks import Mask
from csd_engine.transforms.operators import CenterCrop, Operator
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.user import User
from ddlp.sources.host.native import Resources

__all__ = ["Ask", "first_difference"]

Ask = Callable[[Pipeline, tuple[int, int], tuple[int, int, int]], str]
"""(pipeline, item, (height, width, channels) of its result) -> digest of the item as the device makes it."""


def first_difference(resources: Resources, item: tuple[int, int], ask: Ask) -> str:
    """Name what makes other pixels of this item on the device: the image itself, or an operator with its parameters.

    Empty if that can't be told: the device's result changes from time to time, or it refuses all but the whole pipeline.

    Args:
        resources: of the epoch whose pipeline makes other bits on the device.
        item: (source index, occurrence) of a sample that has other bits there.
        ask: has the device make an item with another pipeline; raises EngineRefused if the device refuses that one.
    """
    each = resources.epoch.portable.pipeline.each
    index, occurrence = item
    for view, pipeline in enumerate(each):  # of a row that holds several
        name = _of_one(resources, pipeline, (index, occurrence * len(each) + view), ask)
        if name:
            return name
    return ""


def _of_one(resources: Resources, whole: Pipeline, item: tuple[int, int], ask: Ask) -> str:
    """Do the same for a pipeline that makes one image."""
    with resources.reader.image(item[0]) as image:
        size, kind = image.size, image.format
    unknown: list[str] = []
    for pipeline, last in _steps(whole):
        image_itself = f"the {kind or 'array'} itself, which is another one there or is read otherwise"
        name = image_itself if last is None else _name(last)
        key = Keyed(resources.epoch.seed, resources.epoch.number, *item)
        height, width, channels = pipeline.draw(size, key).shape
        if last is None or not _masks(last):
            # This crop changes no pixel and draws nothing. It fixes the size of the result, which differs between items.
            operators = (*pipeline.operators, CenterCrop((height, width)))
            pipeline = dataclasses.replace(pipeline, operators=operators)
        try:
            theirs = ask(pipeline, item, (height, width, channels))
        except EngineRefused:
            unknown.append(name)
            continue
        if theirs != _digest(resources, item, pipeline, (height, width, channels)):
            return " or ".join([*unknown, name])
        unknown.clear()
    return ""


def _steps(pipeline: Pipeline) -> Iterator[tuple[Pipeline, Operator | None]]:
    """Yield the pipeline cut off after each operator, with its last operator. Masks come last, all in one step."""
    yield dataclasses.replace(pipeline, operators=(), boxes=0), None
    for k, operator in enumerate(pipeline.operators):
        if _masks(operator):
            yield pipeline, operator
            return
        yield dataclasses.replace(pipeline, operators=pipeline.operators[: k + 1], boxes=0), operator


def _masks(operator: Operator) -> bool:
    if isinstance(operator, Container):
        return any(_masks(inner) for group in operator.groups for inner in group)
    return isinstance(operator, Mask)


def _name(operator: Operator) -> str:
    """The operator as a person would write it."""
    if isinstance(operator, User):
        return f"{operator.function}({', '.join(f'{key}={value!r}' for key, value in operator.parameters)}), which is yours"
    data = operator.to_data()
    name = data.pop("op")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in data.items())})"


def _digest(resources: Resources, item: tuple[int, int], pipeline: Pipeline, shape: tuple[int, int, int]) -> str:
    pixels = np.empty(shape, np.uint8)
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    prepare_sample(resources.reader, pipeline, item, resources.epoch.seed, resources.epoch.number, pixels, boxes)
    return sample_digest(pixels, boxes)
