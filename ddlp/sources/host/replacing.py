"""Makes the samples that a device leaves to the host, and others in the place of bad ones (``on_error="replace"``).

A device only marks the rows that it does not make (`csd_engine.batchfile`). The host tries these samples itself, so that a
device that fails, or lies, can't leave out a good one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from csd_engine.data.base import Reader, Source
from csd_engine.errors import SampleError
from csd_engine.prepare.sample import is_bad_image, prepare_sample
from ddlp.sampling.replacements import candidates
from ddlp.sources.base import Resources
from ddlp.stats.replaced import Replaced

__all__ = ["make_left_out", "replace_samples"]

Put = Callable[[int, np.ndarray, "np.ndarray | None"], None]
"""Takes a row of the batch, its image uint8 (height, width, channels), and its boxes int32 (masks, 4) or None."""


class _InPlaceOf(Reader):
    """The data set's reader, with one sample in the place of every other."""

    def __init__(self, reader: Reader, source: int) -> None:
        self._reader, self._source = reader, source

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        """Open that sample."""
        return self._reader.open(self._source)

    def where(self, index: int) -> str:
        """Return where that sample lies."""
        return self._reader.where(self._source)


def replace_samples(resources: Resources, position: int, bad: Mapping[int, SampleError], put: Put) -> tuple[Replaced, ...]:
    """Make other samples for the bad rows of a batch, and return which.

    The random draws are those of the bad sample, so that no image comes twice with the same draws. All views of a sample are
    made of the same image.

    Args:
        resources, position: the epoch's, and the batch in it.
        bad: the error of each row that could not be made.
        put: takes the new rows.

    Raises:
        SampleError: no other sample of the batch can be prepared: the bad sample's own error. Or a user's operator has failed.
    """
    sources, occurrences = resources.plan.images(position)
    size = resources.plan.size(position)
    errors = {row % size: bad[row] for row in sorted(bad, reverse=True)}  # by sample: that of its first bad view
    replaced = []
    for place, error in sorted(errors.items()):
        rows = range(place, len(sources), size)
        items = [(int(sources[row]), int(occurrences[row])) for row in rows]
        source, views = _first_good(resources, items, sources[:size].tolist(), error)
        for row, (image, boxes) in zip(rows, views, strict=True):
            put(row, image, boxes)
        replaced.append(Replaced(place, source, error.where, error.why))
    return tuple(replaced)


_Made = list[tuple[np.ndarray, "np.ndarray | None"]]


def _first_good(
    resources: Resources, items: list[tuple[int, int]], batch: list[int], error: SampleError
) -> tuple[int, _Made]:
    """Return the first candidate of which all items can be made, and what was made. Raises ``error`` if there is none."""
    for source in candidates(resources.epoch.seed, resources.epoch.number, items[0][0], batch):
        try:
            return source, [_made(resources, item, _InPlaceOf(resources.reader, source)) for item in items]
        except SampleError as other:
            if not is_bad_image(other):
                raise
    raise error


def _made(resources: Resources, item: tuple[int, int], reader: Reader) -> tuple[np.ndarray, np.ndarray | None]:
    epoch, pipeline = resources.epoch, resources.epoch.portable.pipeline
    image = np.empty(epoch.portable.shape, np.uint8)
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    prepare_sample(reader, pipeline, item, epoch.seed, epoch.number, image, boxes)
    return image, boxes


def make_left_out(resources: Resources, position: int, rows: Iterable[int], put: Put) -> dict[int, SampleError]:
    """Make the samples of rows that a device has left out. Returns the error of each that has a bad image.

    Raises:
        SampleError: one fails for another reason than its image.
    """
    errors = {}
    sources, occurrences = resources.plan.images(position)
    for row in rows:
        try:
            put(row, *_made(resources, (int(sources[row]), int(occurrences[row])), resources.reader))
        except SampleError as error:
            if not is_bad_image(error):
                raise
            errors[row] = error
    return errors
