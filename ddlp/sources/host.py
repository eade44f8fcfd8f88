"""The host prong: prepares batches in place, in threads of this process.

Decoding and resampling release the GIL, so threads share the work without processes, shared memory or pickles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from csd_engine.datasets import Reader
from csd_engine.errors import SampleError
from csd_engine.samples import prepare_sample
from csd_engine.transforms import Pipeline
from csd_engine.transforms.bulk import Bulk
from ddlp.plan import EpochPlan
from ddlp.transfer.epilogue import Epilogue


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

    @functools.cached_property
    def bulk(self) -> Bulk | None:
        """Makes many samples at once, where they are rows of an array; None where each is made by itself."""
        return Bulk.of(self.pipeline, self.reader.rows())


@dataclass(frozen=True)
class Pixels:
    """A batch as both sides make it: uint8 (batch, height, width, channels), boxes int32 (batch, masks, 4) or None."""

    images: torch.Tensor
    boxes: torch.Tensor | None


class Unwanted(Exception):
    """The other side's copy was first; what is left of this one is not worth making."""


def prepare_batch(recipe: Recipe, position: int, wanted: Callable[[], bool]) -> Pixels:
    """Make the batch at this position into fresh memory.

    ``wanted`` is asked between samples. Raises `Unwanted` once it says no, and the sample's own kind of error (OSError,
    ...) with its file's name where a sample can't be prepared.
    """
    if recipe.bulk is not None:
        return _prepare_rows(recipe, recipe.bulk, position, wanted)
    items = recipe.plan.items(position)
    images, boxes = fresh_rows(recipe, len(items))
    for k, item in enumerate(items):
        if not wanted():
            raise Unwanted
        prepare_item(recipe, item, images[k], None if boxes is None else boxes[k])
    return Pixels(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes))


def _prepare_rows(recipe: Recipe, bulk: Bulk, position: int, wanted: Callable[[], bool]) -> Pixels:
    """`prepare_batch` of an array's rows, which always can be read."""
    sources, occurrences = recipe.plan.sources(position), recipe.plan.occurrences(position)
    images, boxes = fresh_rows(recipe, len(sources))
    for part in bulk.slices(len(sources)):
        if not wanted():
            raise Unwanted
        into = None if boxes is None else boxes[part]
        bulk.fill(sources[part], occurrences[part], recipe.seed, recipe.epoch, images[part], into)
    return Pixels(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes))


def fresh_rows(recipe: Recipe, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Memory for a batch's images and boxes.

    numpy's, since it asks the kernel for huge pages: torch's costs more in page faults than the pixels in arithmetic.
    """
    images = np.empty((samples, *recipe.shape), dtype=np.uint8)
    return images, np.zeros((samples, recipe.pipeline.boxes, 4), dtype=np.int32) if recipe.pipeline.boxes else None


def prepare_item(recipe: Recipe, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None) -> None:
    """Make one sample. An unreadable one raises an error of the kind that the data set itself would have raised."""
    try:
        prepare_sample(recipe.reader, recipe.pipeline, item, recipe.seed, recipe.epoch, out, boxes)
    except SampleError as error:
        cause = error.__cause__
        raise _as_raised_by_the_dataset(cause, str(error)) from error


def _as_raised_by_the_dataset(cause: BaseException | None, message: str) -> Exception:
    kind = type(cause) if isinstance(cause, Exception) else OSError
    try:
        return kind(message)
    except Exception:  # a type that wants other arguments, as torch's own workers meet it
        return RuntimeError(message)
