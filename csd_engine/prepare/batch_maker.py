"""Makes the samples of a batch in the fastest of three ways: in bulk, by the kernel's calls on many images, or one by one.

Host, engine and benchmarks all make their batches here. Each says where the samples go. All ways give the same bits.
"""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from csd_engine.data.base import Reader
from csd_engine.data.readahead import ReadAhead
from csd_engine.kernels import kernel
from csd_engine.prepare.destination import Destination
from csd_engine.prepare.kernel_calls import file_calls, pixel_calls
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.transforms.bulk import Bulk
from csd_engine.transforms.fileplan import file_plan
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["BatchMaker"]


class BatchMaker:
    """Makes batches of one data set by one pipeline. Any thread may use it.

    Args:
        reader: of the data set.
        pipeline: what to run.
        shape: (height, width, channels) of a sample's memory.
        boxes: the number of boxes of a sample.

    If the pipeline makes samples of another shape, they are made one by one, and the first one raises the error.
    """

    def __init__(self, reader: Reader, pipeline: Pipeline, shape: Tuple[int, int, int], boxes: int) -> None:
        self.reader, self.pipeline = reader, pipeline
        self._bulk = Bulk.of(pipeline, reader.rows())
        if self._bulk is not None and (self._bulk.shape, pipeline.boxes) != (shape, boxes):
            self._bulk = None
        self._plan = file_plan(pipeline, kernel())
        if self._plan is not None and (self._plan.shape, self._plan.boxes) != (shape, boxes):
            self._plan = None

    def start(self, request: BatchRequest) -> StartedBatch:
        """Start a batch; nothing is made yet."""
        reader = self.reader_for(request)
        if self._bulk is not None and (request.known or self._bulk.takes(request.sources)):
            return _InBulk(self._bulk, reader, self.pipeline, request)
        calls = pixel_calls(reader, self._plan, request) or file_calls(reader, self._plan, request)
        if calls is None:
            reader = ReadAhead(reader, request.sources.tolist())
        return StartedBatch(reader, self.pipeline, request, calls)

    def reader_for(self, request: BatchRequest) -> Reader:
        """Return the reader of the request's samples."""
        return self.reader if request.reader is None else request.reader


class _InBulk(StartedBatch):
    """A batch whose samples are made in bulk. It has no file open."""

    def __init__(self, bulk: Bulk, reader: Reader, pipeline: Pipeline, request: BatchRequest) -> None:
        super().__init__(reader, pipeline, request)
        self._bulk = bulk

    def make(self, first: int, to: Destination) -> int:
        """See `StartedBatch.make`."""
        part = slice(first, min(first + self._bulk.at_once, len(self._request.sources)))
        finished = to.finished_place(part)
        if finished is not None and finished.table is not None:  # bulk can't make planes of bytes
            self._fill(part, *finished)
            return int(part.stop)
        images, boxes = to.place(part)
        part = slice(first, first + min(len(images), part.stop - first))
        n = part.stop - first
        self._fill(part, images[:n], None if boxes is None else boxes[:n])
        to.done(part)
        return int(part.stop)

    def _fill(
        self,
        part: slice,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        table: Optional[np.ndarray] = None,
        channels_last: bool = True,
    ) -> None:
        request = self._request
        key = request.seed, request.epoch
        self._bulk.fill(request.sources[part], request.occurrences[part], *key, out, boxes, table, channels_last)
