"""The host prong: prepares batches in place, in threads of this process.

A sample's kernel call (or Pillow's work) and its epilogue release the GIL, so threads share the work without processes,
shared memory or pickles.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from csd_engine.errors import SampleError
from csd_engine.prepare.batch_maker import Destination, FinishedPlace
from csd_engine.prepare.sample import prepare_sample
from ddlp.sources.base import BatchState, EpochSink, EpochSpec, PreparedBatch, Unwanted
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.memory_pool import MemoryPool

__all__ = ["NativeHost", "Rows", "fresh_rows", "no_boxes", "prepare_batch", "prepare_item"]


class NativeHost:
    """Prepares batches by Pillow and the kernel: a `ddlp.sources.base.HostSource`."""

    def __init__(self, spec: EpochSpec) -> None:
        self._spec = spec
        spec.get_ready()

    def begin(self, sink: EpochSink) -> None:
        """There is nothing to tell."""

    def prepare(self, position: int, wanted: Callable[[], bool], finished: bool) -> PreparedBatch:
        """Make the batch at this position."""
        return prepare_batch(self._spec, position, wanted, finished)

    def close(self) -> None:
        """There is nothing to close."""


def prepare_batch(spec: EpochSpec, position: int, wanted: Callable[[], bool], finished: bool = False) -> PreparedBatch:
    """Make the batch at this position, into memory of the pool.

    ``finished``: as the epilogue delivers it on the CPU. Each part goes through the epilogue while it is in the cache; no
    batch of bytes is ever in memory.

    ``wanted`` is asked between samples, or small parts of an array's. Raises `Unwanted` once it says no, and the sample's own
    kind of error (OSError, ...) with its file's name where a sample can't be prepared.
    """
    if not wanted():  # a run's later batches may have been delivered meanwhile, and forgotten
        raise Unwanted
    sources, occurrences = spec.plan.sources(position), spec.plan.occurrences(position)
    rows = Rows(spec.epilogue, spec.shape, spec.pipeline.boxes, len(sources), spec.pool, finished)
    with spec.maker.start(sources, occurrences, spec.seed, spec.epoch, known=True) as batch:
        at = 0
        while at < len(sources):
            if at and not wanted():
                raise Unwanted
            try:
                at = batch.make(at, rows)
            except SampleError as error:
                raise _as_raised_by_the_dataset(error) from error
    return rows.pixels()


class Rows(Destination):
    """A batch's memory while its samples are made.

    Args:
        epilogue: what makes the batch of the samples' bytes.
        shape: (height, width, channels) of a sample.
        masks: the number of a sample's boxes.
        samples: the number of them.
        pool: where the memory comes from.
        finished: whether the samples go through the epilogue at once, part by part. Then there is room for the bytes of one
            part only, or for none where the kernel does both.
    """

    def __init__(
        self, epilogue: Epilogue, shape: tuple[int, int, int], masks: int, samples: int, pool: MemoryPool, finished: bool
    ) -> None:
        height, width, _ = shape
        convert = finished and not epilogue.keeps_bytes
        self._epilogue, self._shape, self._samples, self._pool, self._finished = epilogue, shape, samples, pool, finished
        self._bits = epilogue.empty(samples, height, width, pool) if convert else None
        self._bytes: np.ndarray | None = None
        self.boxes = no_boxes(samples, masks)

    def _images(self, samples: int) -> np.ndarray:
        """Made when first asked for: where the kernel makes the result at once, nobody does. No later part is larger."""
        if self._bytes is None:
            self._bytes = self._pool.empty((samples, *self._shape), np.uint8)
        return self._bytes

    def place(self, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
        """See `Destination.place`."""
        boxes = None if self.boxes is None else self.boxes[part]
        if self._bits is None:
            return self._images(self._samples)[part], boxes
        samples = part.stop - part.start
        return self._images(samples)[:samples], boxes

    def done(self, part: slice) -> None:
        """See `Destination.done`."""
        if self._bits is not None:
            samples = part.stop - part.start
            self._epilogue.convert(self._images(samples)[:samples], self._bits[part])

    def finished_place(self, part: slice) -> FinishedPlace | None:
        """See `Destination.finished_place`."""
        if self._bits is None:
            return None
        table, channels_last = self._epilogue.by_table or (None, False)  # bytes go to planes
        return FinishedPlace(self._bits[part], None if self.boxes is None else self.boxes[part], table, channels_last)

    def put(self, part: slice, made: np.ndarray) -> None:
        """Take samples that were made elsewhere, uint8 (n, height, width, channels)."""
        if self._bits is None:
            self._images(self._samples)[part] = made
        else:
            self._epilogue.convert(made, self._bits[part])

    def pixels(self) -> PreparedBatch:
        """The batch."""
        boxes = self.boxes
        if not self._finished:
            images = self._images(self._samples)
            return PreparedBatch(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes))
        result = self._epilogue.tensor(self._images(self._samples) if self._bits is None else self._bits)
        if boxes is not None:
            self._epilogue.fill(result, boxes)
        return PreparedBatch(result, None, BatchState.TENSORS)


def fresh_rows(spec: EpochSpec, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Memory for a batch's images, uint8, and boxes."""
    return spec.pool.empty((samples, *spec.shape), np.uint8), no_boxes(samples, spec.pipeline.boxes)


def no_boxes(samples: int, masks: int) -> np.ndarray | None:
    """Memory for the boxes of so many samples, empty ones; None without masks."""
    return np.zeros((samples, masks, 4), dtype=np.int32) if masks else None


def prepare_item(spec: EpochSpec, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None) -> None:
    """Make one sample. An unreadable one raises an error of the kind that the data set itself would have raised."""
    try:
        prepare_sample(spec.reader, spec.pipeline, item, spec.seed, spec.epoch, out, boxes)
    except SampleError as error:
        raise _as_raised_by_the_dataset(error) from error


def _as_raised_by_the_dataset(error: SampleError) -> Exception:
    """An error of the kind that the data set itself would have raised."""
    cause = error.__cause__
    kind = type(cause) if isinstance(cause, Exception) else OSError
    try:
        return kind(str(error))
    except Exception:  # a type that wants other arguments, as torch's own workers meet it
        return RuntimeError(str(error))
