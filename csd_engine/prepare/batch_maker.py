"""Makes the samples of a batch in the fastest of three ways: in bulk, by the kernel's calls on many images, or one by one.

Host, engine and benchmarks all make their batches here. Each says where the samples go. All ways give the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np

from csd_engine.data.base import Reader
from csd_engine.data.readahead import ReadAhead
from csd_engine.kernels import kernel
from csd_engine.prepare.file_batch import FileBatch
from csd_engine.prepare.kernel_batch import KernelBatch
from csd_engine.prepare.pixel_batch import PixelBatch
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms.bulk import Bulk
from csd_engine.transforms.fileplan import file_plan
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["BatchMaker", "ByKernel", "Destination", "FinishedPlace", "OneByOne", "StartedBatch"]

Item = Tuple[int, int]  # source index, occurrence


class FinishedPlace(NamedTuple):
    """Memory for samples in the form that is delivered. The kernel can make this form directly.

    Attributes:
        out, boxes, table, channels_last: as for `csd_engine.kernels.files.Files.make`.
    """

    out: np.ndarray
    boxes: Optional[np.ndarray]
    table: Optional[np.ndarray]
    channels_last: bool


class Destination(ABC):
    """The destination of the samples of one batch. `part` is a slice of positions in the batch."""

    @abstractmethod
    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Return memory for these samples, or only for the first ones if there is less room: at least for one.

        Returns:
            images, uint8 (n, height, width, channels), and boxes, int32 (n, masks, 4), or None for a pipeline without masks.
            Both are C-contiguous and are filled until `done` is called.
        """

    @abstractmethod
    def done(self, part: slice) -> None:
        """Take these samples. They are finished, in the memory that `place` returned last."""

    def finished_place(self, part: slice) -> Optional[FinishedPlace]:
        """Return memory for these samples in their final form. None: their bytes go to the memory of `place`."""
        return None


class StartedBatch(ABC):
    """A batch whose samples are being made, in their order. It is for one thread, in a `with`."""

    def __enter__(self) -> StartedBatch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close the files that are open."""

    @abstractmethod
    def make(self, first: int, to: Destination) -> int:
        """Make some samples from position `first` on, the first one not made: for some milliseconds, but at least one.

        Returns:
            The position of the first sample that is still not made.

        Raises:
            SampleError: the sample at `first` cannot be read, decoded or transformed.
        """


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
        self._reader = reader
        self._pipeline = pipeline
        self._bulk = Bulk.of(pipeline, reader.rows())
        if self._bulk is not None and (self._bulk.shape, pipeline.boxes) != (shape, boxes):
            self._bulk = None
        self._plan = file_plan(pipeline, kernel())
        if self._plan is not None and (self._plan.shape, self._plan.boxes) != (shape, boxes):
            self._plan = None

    def start(
        self,
        sources: np.ndarray,
        occurrences: np.ndarray,
        seed: int,
        epoch: int,
        large_bytes: Optional[int] = None,
        before_decoding: Optional[Callable[[int], None]] = None,
        known: bool = False,
        reader: Optional[Reader] = None,
    ) -> StartedBatch:
        """Start a batch; nothing is made yet.

        Args:
            sources, occurrences: int64 (n,).
            seed, epoch: with these the keys of all random draws.
            large_bytes: an image that takes so many bytes to decode waits for `before_decoding`; None: none waits.
            before_decoding: as for `prepare_sample`; may be called for smaller images too.
            known: the data set is known to have all these sources, so they are not checked. The check takes as long as a
                small batch.
            reader: of these sources, if they have been brought into memory (`csd_engine.data.base.Fetch`).
        """
        if self._bulk is not None and (known or self._bulk.takes(sources)):
            return _InBulk(self._bulk, sources, occurrences, seed, epoch)
        reader = self._reader if reader is None else reader
        batch = reader, self._pipeline, self._plan, sources, occurrences, seed, epoch
        found = PixelBatch.of(*batch, before_decoding) or FileBatch.of(*batch, large_bytes, before_decoding)
        if found is not None:
            return ByKernel(found)
        items = list(zip(sources.tolist(), occurrences.tolist()))
        return OneByOne(reader, self._pipeline, items, seed, epoch, before_decoding)


class _InBulk(StartedBatch):
    def __init__(self, bulk: Bulk, sources: np.ndarray, occurrences: np.ndarray, seed: int, epoch: int) -> None:
        self._bulk, self._sources, self._occurrences, self._key = bulk, sources, occurrences, (seed, epoch)

    def make(self, first: int, to: Destination) -> int:
        part = slice(first, min(first + self._bulk.at_once, len(self._sources)))
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
        self._bulk.fill(self._sources[part], self._occurrences[part], *self._key, out, boxes, table, channels_last)


class ByKernel(StartedBatch):
    """A batch whose samples the kernel makes."""

    def __init__(self, batch: KernelBatch) -> None:
        self._batch = batch

    def close(self) -> None:
        self._batch.close()

    def make(self, first: int, to: Destination) -> int:
        rest = slice(first, self._batch.samples)
        finished = to.finished_place(rest)
        if finished is not None:
            return self._batch.make(first, *finished)
        images, boxes = to.place(rest)
        end = self._batch.make(first, images, boxes)
        to.done(slice(first, end))
        return end


class OneByOne(StartedBatch):
    """A batch whose samples are made one by one. ``items``: (source index, occurrence) of each."""

    def __init__(
        self,
        reader: Reader,
        pipeline: Pipeline,
        items: List[Item],
        seed: int,
        epoch: int,
        before_decoding: Optional[Callable[[int], None]],
    ) -> None:
        self._reader = ReadAhead(reader, (index for index, _ in items))
        self._pipeline, self._items, self._key, self._before_decoding = pipeline, items, (seed, epoch), before_decoding

    def close(self) -> None:
        self._reader.close()

    def make(self, first: int, to: Destination) -> int:
        part = slice(first, first + 1)
        images, boxes = to.place(part)
        place = images[0], None if boxes is None else boxes[0]
        prepare_sample(self._reader, self._pipeline, self._items[first], *self._key, *place, self._before_decoding)
        to.done(part)
        return first + 1
