"""The host prong: prepares batches in place, in threads of this process.

A sample's kernel call (or Pillow's work) and its epilogue release the GIL, so threads share the work without processes,
shared memory or pickles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from csd_engine.data.base import Reader
from csd_engine.data.readahead import ReadAhead
from csd_engine.errors import SampleError
from csd_engine.prepare.file_batch import FileBatch
from csd_engine.prepare.sample import prepare_sample
from ddlp.sources.base import BatchState, EpochSink, EpochSpec, PreparedBatch, Unwanted
from ddlp.transfer.epilogue import Epilogue

__all__ = ["NativeHost", "Rows", "fill_rows", "fresh_rows", "make_files", "no_boxes", "prepare_batch", "prepare_item"]


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
    bulk = spec.bulk
    sources, occurrences = spec.plan.sources(position), spec.plan.occurrences(position)
    if bulk is not None:  # an array's rows, which always can be read

        def make_part(part: slice, rows: Rows) -> None:
            rows.fill(part, partial(bulk.fill, sources[part], occurrences[part], spec.seed, spec.epoch))

        return _in_parts(spec, list(bulk.slices(len(sources))), make_part, wanted, finished)
    files = FileBatch.of(spec.reader, spec.pipeline, spec.files, sources, occurrences, spec.seed, spec.epoch)
    if files is not None:
        with files:
            return _of_files(spec, files, len(sources), wanted, finished)
    items = spec.plan.items(position)
    with ReadAhead(spec.reader, (index for index, _ in items)) as reader:

        def make_one(part: slice, rows: Rows) -> None:
            made = rows.place(part)
            boxes = None if rows.boxes is None else rows.boxes[part.start]
            _prepare(reader, spec, items[part.start], made[0], boxes)
            rows.done(part, made)

        return _in_parts(spec, [slice(k, k + 1) for k in range(len(items))], make_one, wanted, finished)


def _in_parts(
    spec: EpochSpec, parts: list[slice], make: Callable[[slice, Rows], None], wanted: Callable[[], bool], finished: bool
) -> PreparedBatch:
    """`prepare_batch`: ``make`` makes one part after the other, in the batch's rows."""
    samples, most = (parts[-1].stop, parts[0].stop) if parts else (0, 0)  # no part is larger than the first
    rows = Rows(spec, samples, most, finished)
    for part in parts:
        if not wanted():
            raise Unwanted
        make(part, rows)
    return rows.pixels()


def _of_files(spec: EpochSpec, files: FileBatch, samples: int, wanted: Callable[[], bool], finished: bool) -> PreparedBatch:
    """`prepare_batch`: a few files in each of the kernel's calls."""
    rows = Rows(spec, samples, 1, finished)
    at = 0
    while at < samples:
        if not wanted():
            raise Unwanted
        with _as_the_dataset_tells():
            at = rows.make(files, at)
    return rows.pixels()


class Rows:
    """A batch's memory while its parts are made.

    Where each part goes through the epilogue at once there is room for the bytes of ``most`` samples only.
    """

    def __init__(self, spec: EpochSpec, samples: int, most: int, finished: bool) -> None:
        epilogue = spec.epilogue
        height, width, _ = spec.shape
        convert = finished and not epilogue.keeps_bytes
        self._epilogue, self._finished = epilogue, finished
        self._bits = epilogue.empty(samples, height, width, spec.pool) if convert else None
        self._pool, self._shape = spec.pool, (most if convert else samples, *spec.shape)
        self._bytes: np.ndarray | None = None
        self.boxes = no_boxes(spec, samples)

    @property
    def _images(self) -> np.ndarray:
        """Made when first asked for: where the kernel makes the result at once, nobody does."""
        if self._bytes is None:
            self._bytes = self._pool.empty(self._shape, np.uint8)
        return self._bytes

    def place(self, part: slice) -> np.ndarray:
        """Where to make a part, uint8 (samples, height, width, channels); `done` before the next one."""
        return self._images[part] if self._bits is None else self._images[: part.stop - part.start]

    def done(self, part: slice, made: np.ndarray) -> None:
        """A part is made, in its place."""
        if self._bits is not None:
            self._epilogue.convert(made, self._bits[part])

    def put(self, part: slice, made: np.ndarray) -> None:
        """A part was made elsewhere."""
        if self._bits is None:
            self._images[part] = made
        else:
            self.done(part, made)

    def make(self, files: FileBatch, first: int) -> int:
        """Have some samples of files made, from ``first`` on; returns the position of the first one not made."""
        boxes = None if self.boxes is None else self.boxes[first:]
        if self._bits is None:
            return files.make(first, self._images[first:], boxes)
        return make_files(files, first, self._epilogue, self._bits, boxes)

    def fill(self, part: slice, fill: Callable[..., None]) -> None:
        """Have a part of an array's rows made, through the epilogue in the same call where the kernel can do that."""
        boxes = None if self.boxes is None else self.boxes[part]
        bits = None if self._bits is None else self._bits[part]
        fill_rows(fill, self._epilogue, lambda: self.place(part), boxes, bits)

    def pixels(self) -> PreparedBatch:
        """The batch."""
        boxes = self.boxes
        if not self._finished:
            return PreparedBatch(torch.from_numpy(self._images), None if boxes is None else torch.from_numpy(boxes))
        result = self._epilogue.tensor(self._images if self._bits is None else self._bits)
        if boxes is not None:
            self._epilogue.fill(result, boxes)
        return PreparedBatch(result, None, BatchState.TENSORS)


def fill_rows(
    fill: Callable[..., None],
    epilogue: Epilogue,
    place: Callable[[], np.ndarray],
    boxes: np.ndarray | None,
    bits: np.ndarray | None,
) -> None:
    """Have `Bulk.fill`, whose samples are given, make its rows: in ``place()`` and, unless that is None, from there in
    ``bits``; by one call where the kernel can do both.
    """
    if bits is not None and (by_table := epilogue.by_table) is not None:
        fill(bits, boxes, *by_table)
        return
    made = place()
    fill(made, boxes)
    if bits is not None:
        epilogue.convert(made, bits)


def make_files(files: FileBatch, first: int, epilogue: Epilogue, bits: np.ndarray, boxes: np.ndarray | None) -> int:
    """Have `FileBatch.make` bring samples from ``first`` on through the epilogue; ``bits``: the whole batch's."""
    table, channels_last = epilogue.by_table or (None, False)  # bytes go to planes
    return files.make(first, bits[first:], boxes, table, channels_last)


def fresh_rows(spec: EpochSpec, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Memory for a batch's images, uint8, and boxes."""
    return spec.pool.empty((samples, *spec.shape), np.uint8), no_boxes(spec, samples)


def no_boxes(spec: EpochSpec, samples: int) -> np.ndarray | None:
    """Memory for a batch's boxes, empty ones."""
    return np.zeros((samples, spec.pipeline.boxes, 4), dtype=np.int32) if spec.pipeline.boxes else None


def prepare_item(spec: EpochSpec, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None) -> None:
    """Make one sample. An unreadable one raises an error of the kind that the data set itself would have raised."""
    _prepare(spec.reader, spec, item, out, boxes)


def _prepare(
    reader: Reader, spec: EpochSpec, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None
) -> None:
    with _as_the_dataset_tells():
        prepare_sample(reader, spec.pipeline, item, spec.seed, spec.epoch, out, boxes)


@contextlib.contextmanager
def _as_the_dataset_tells() -> Iterator[None]:
    try:
        yield
    except SampleError as error:
        cause = error.__cause__
        raise _as_raised_by_the_dataset(cause, str(error)) from error


def _as_raised_by_the_dataset(cause: BaseException | None, message: str) -> Exception:
    kind = type(cause) if isinstance(cause, Exception) else OSError
    try:
        return kind(message)
    except Exception:  # a type that wants other arguments, as torch's own workers meet it
        return RuntimeError(message)
