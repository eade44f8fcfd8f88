"""The host prong: prepares batches in place, in threads of this process.

A sample's kernel call (or Pillow's work) and its epilogue release the GIL, so threads share the work without processes,
shared memory or pickles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from csd_engine.datasets import Reader
from csd_engine.errors import SampleError
from csd_engine.readahead import ReadAhead
from csd_engine.samples import prepare_sample
from csd_engine.transforms import Pipeline
from csd_engine.transforms.bulk import Bulk
from ddlp.plan import EpochPlan
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.pool import Pool


@dataclass(frozen=True)
class Recipe:
    """All that a sample of this epoch depends on, and the batches to make of them."""

    reader: Reader
    pipeline: Pipeline
    epilogue: Epilogue
    shape: tuple[int, int, int]  # (height, width, channels)
    seed: int
    epoch: int
    plan: EpochPlan
    pool: Pool  # of batches' memory

    @functools.cached_property
    def bulk(self) -> Bulk | None:
        """Makes many samples at once, where they are rows of an array; None where each is made by itself."""
        return Bulk.of(self.pipeline, self.reader.rows())


@dataclass(frozen=True)
class Pixels:
    """A batch: uint8 (batch, height, width, channels) as both sides make it and boxes int32 (batch, masks, 4) or None, or
    what the epilogue made of it, and None.
    """

    images: torch.Tensor
    boxes: torch.Tensor | None


class Unwanted(Exception):
    """The other side's copy was first; what is left of this one is not worth making."""


def prepare_batch(recipe: Recipe, position: int, wanted: Callable[[], bool], finished: bool = False) -> Pixels:
    """Make the batch at this position, into memory of the pool.

    ``finished``: as the epilogue delivers it on the CPU. Each sample goes through the epilogue while it is in the cache; no
    batch of bytes is ever in memory.

    ``wanted`` is asked between samples. Raises `Unwanted` once it says no, and the sample's own kind of error (OSError,
    ...) with its file's name where a sample can't be prepared.
    """
    if recipe.bulk is not None:
        return _prepare_rows(recipe, recipe.bulk, position, wanted, finished)
    items = recipe.plan.items(position)
    epilogue = recipe.epilogue
    convert = finished and not epilogue.keeps_bytes
    height, width, _ = recipe.shape
    bits = epilogue.empty(len(items), height, width, recipe.pool) if convert else None
    images = recipe.pool.empty((1 if convert else len(items), *recipe.shape), np.uint8)
    boxes = _no_boxes(recipe, len(items))
    with ReadAhead(recipe.reader, (index for index, _ in items)) as reader:
        for k, item in enumerate(items):
            if not wanted():
                raise Unwanted
            image = images[0 if convert else k]
            _prepare(reader, recipe, item, image, None if boxes is None else boxes[k])
            if bits is not None:
                epilogue.convert(image[None], bits[k : k + 1])
    return _finished(recipe, images, bits, boxes) if finished else _raw(images, boxes)


def _prepare_rows(
    recipe: Recipe, bulk: Bulk, position: int, wanted: Callable[[], bool], finished: bool
) -> Pixels:
    """`prepare_batch` of an array's rows, which always can be read."""
    sources, occurrences = recipe.plan.sources(position), recipe.plan.occurrences(position)
    epilogue, samples = recipe.epilogue, len(sources)
    convert = finished and not epilogue.keeps_bytes
    height, width, _ = recipe.shape
    slices = list(bulk.slices(samples))
    bits = epilogue.empty(samples, height, width, recipe.pool) if convert else None
    most = max((part.stop - part.start for part in slices), default=0)
    images = recipe.pool.empty((most if convert else samples, *recipe.shape), np.uint8)
    boxes = _no_boxes(recipe, samples)
    for part in slices:
        if not wanted():
            raise Unwanted
        made = images[: part.stop - part.start] if convert else images[part]
        into = None if boxes is None else boxes[part]
        bulk.fill(sources[part], occurrences[part], recipe.seed, recipe.epoch, made, into)
        if bits is not None:
            epilogue.convert(made, bits[part])
    return _finished(recipe, images, bits, boxes) if finished else _raw(images, boxes)


def _raw(images: np.ndarray, boxes: np.ndarray | None) -> Pixels:
    return Pixels(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes))


def _finished(recipe: Recipe, images: np.ndarray, bits: np.ndarray | None, boxes: np.ndarray | None) -> Pixels:
    result = recipe.epilogue.tensor(images if bits is None else bits)
    if boxes is not None:
        recipe.epilogue.fill(result, boxes)
    return Pixels(result, None)


def fresh_rows(recipe: Recipe, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Memory for a batch's images, uint8, and boxes."""
    return recipe.pool.empty((samples, *recipe.shape), np.uint8), _no_boxes(recipe, samples)


def _no_boxes(recipe: Recipe, samples: int) -> np.ndarray | None:
    return np.zeros((samples, recipe.pipeline.boxes, 4), dtype=np.int32) if recipe.pipeline.boxes else None


def prepare_item(recipe: Recipe, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None) -> None:
    """Make one sample. An unreadable one raises an error of the kind that the data set itself would have raised."""
    _prepare(recipe.reader, recipe, item, out, boxes)


def _prepare(
    reader: Reader, recipe: Recipe, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None
) -> None:
    try:
        prepare_sample(reader, recipe.pipeline, item, recipe.seed, recipe.epoch, out, boxes)
    except SampleError as error:
        cause = error.__cause__
        raise _as_raised_by_the_dataset(cause, str(error)) from error


def _as_raised_by_the_dataset(cause: BaseException | None, message: str) -> Exception:
    kind = type(cause) if isinstance(cause, Exception) else OSError
    try:
        return kind(message)
    except Exception:  # a type that wants other arguments, as torch's own workers meet it
        return RuntimeError(message)
