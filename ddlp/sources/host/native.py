"""Prepares the host's batches in threads of this process.

A sample's kernel call (or Pillow's work) and its epilogue release the GIL, so threads share the work without processes,
shared memory or pickles.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from csd_engine.data.base import Reader, at_hand
from csd_engine.errors import SampleError
from csd_engine.prepare.destination import Destination, FinishedPlace
from csd_engine.prepare.read_time import READING
from csd_engine.prepare.sample import is_bad_image, prepare_sample
from csd_engine.prepare.started_batch import BatchRequest
from ddlp.errors import as_raised_by_the_dataset
from ddlp.sources.base import BatchState, EpochSink, PreparedBatch, Resources, Unwanted
from ddlp.sources.host.fetch_ahead import FetchAhead
from ddlp.sources.host.replacing import replace_samples

__all__ = [
    "NativeHost", "Rows", "as_raised_by_the_dataset", "fresh_rows", "get_ready", "no_boxes", "prepare_batch", "prepare_item",
]  # fmt: skip


class NativeHost:
    """Prepares batches with Pillow and the kernel. It is a `ddlp.sources.base.HostSource`."""

    def __init__(self, resources: Resources, workers: int) -> None:
        self._resources, self._workers = resources, workers
        self._first: dict[int, _SharedBatch] = {}  # those of the epoch's first batches that nobody has taken, by position
        self._taking = threading.Lock()
        self._ahead: FetchAhead | None = None
        self._told: tuple[Callable[[str], None], ...] = ()  # who is told of the cache in this epoch, and who was before
        get_ready(resources)

    def begin(self, sink: EpochSink) -> None:
        """Have the user told what goes wrong with the cache, and bring samples of a slow storage before their turn."""
        if self._resources.cache is not None:
            self._told = sink.warn, self._resources.cache.shelf.tell
            self._resources.cache.shelf.tell = sink.warn
        if self._resources.reader.slow:
            self._ahead = FetchAhead(self._resources, sink)
        elif self._workers > 1 and not self._resources.epoch.portable.epilogue.sizes:
            def goes_on() -> bool:
                return not sink.over_within(0)

            for position in sink.for_host(self._workers):
                if not self._resources.plan.wrong(position):
                    self._first[position] = _SharedBatch(self._resources, position, self._workers, goes_on)

    def prepare(self, position: int, wanted: Callable[[], bool]) -> PreparedBatch:
        """Make the batch at this position. All workers make the first ones together, before any later one."""
        for shared, batch in self._first.items():
            if shared == position:
                try:
                    return batch.result(wanted)
                finally:
                    with self._taking:  # others may be going through the dictionary, so another one takes its place
                        self._first = {at: other for at, other in self._first.items() if at != position}
            batch.help()
        if self._ahead is None or not wanted():
            return prepare_batch(self._resources, position, wanted)
        fetch = self._ahead.take(position)
        if fetch is None:
            raise Unwanted
        with contextlib.closing(fetch):
            began = time.monotonic()
            reader = fetch.wait(wanted)
            READING.seconds += time.monotonic() - began
            if reader is None:
                raise Unwanted
            return prepare_batch(self._resources, position, wanted, reader)

    def close(self) -> None:
        """Drop the samples that were brought and are not wanted any more, and have nobody of this epoch told of the cache."""
        if self._told and self._resources.cache is not None and self._resources.cache.shelf.tell == self._told[0]:
            # Else the shelf, and so its mapped files, would be kept by a cycle.
            self._resources.cache.shelf.tell = self._told[1]
        self._told, self._first = (), {}
        if self._ahead is not None:
            self._ahead.close()


def get_ready(resources: Resources) -> None:
    """Do the work that comes once a process with its first batch, mainly imports. Called before any other thread starts.

    If a thread imports a module while this process is forked (a DataLoader starts its workers), the child waits for ever for
    that module's lock. The same is true of the locks of cached properties before Python 3.12.
    """
    Image.preinit()  # the common formats
    first = resources.reader.places([0]) if len(resources.reader) else None
    if first is not None and os.path.splitext(first.paths[0])[1].lower() not in Image.EXTENSION:
        Image.init()  # all formats that Pillow knows
    _ = resources.maker  # this also loads the kernel


def prepare_batch(
    resources: Resources, position: int, wanted: Callable[[], bool], reader: Reader | None = None
) -> PreparedBatch:
    """Make the batch at this position in memory of the pool.

    If it ends on the CPU, each part goes through the epilogue while it is in the cache, so no whole batch of bytes is ever in
    memory. ``reader``: has the batch's samples, if they were brought from a slow storage.

    ``wanted`` is called between samples, or between small parts of an array's samples. Raises `Unwanted` once it returns False.
    If a sample can't be prepared, raises an error of the type that the data set's own code would have raised, with the sample's
    file. If ``most_replaced`` is not None another one is made in its place instead.
    """
    if not wanted():  # later batches of a run may have been delivered and forgotten meanwhile
        raise Unwanted
    for request in resources.plan.wrong(position):
        raise resources.error_of(request)
    sources, occurrences = resources.plan.images(position)
    if reader is None and resources.reader.slow:
        with at_hand(resources.reader, resources.to_read(sources), wanted) as there:
            return prepare_batch(resources, position, wanted, there)
    rows = Rows(resources, len(sources))
    return _finished(resources, position, rows, lambda: _make(resources, sources, occurrences, rows, wanted, reader))


def _make(
    resources: Resources,
    sources: np.ndarray,
    occurrences: np.ndarray,
    rows: Rows,
    wanted: Callable[[], bool],
    reader: Reader | None,
) -> dict[int, SampleError]:
    """Make these samples. Returns the bad ones by their row, with the reason, if others take their place."""
    bad: dict[int, SampleError] = {}
    request = BatchRequest(sources, occurrences, resources.epoch.seed, resources.epoch.number, reader, known=True)
    with resources.maker.start(request) as batch:
        at = 0
        while at < len(sources):
            if at and not wanted():
                raise Unwanted
            try:
                at = batch.make(at, rows)
            except SampleError as error:
                if not (resources.epoch.most_replaced is not None and is_bad_image(error)):
                    raise
                bad[at] = error
                at += 1
    return bad


def _finished(resources: Resources, position: int, rows: Rows, make: Callable[[], dict[int, SampleError]]) -> PreparedBatch:
    """Return the batch in ``rows``, once ``make`` has returned its bad samples and others have taken their place."""
    bad: dict[int, SampleError] = {}
    failed: list[Exception] = []
    try:
        bad = make()
        replaced = replace_samples(resources, position, bad, rows.put_one) if bad else ()
    except SampleError as error:
        failed.append(as_raised_by_the_dataset(error))
    finally:
        bad.clear()  # the errors' tracebacks hold this frame: the cycle would keep the loader
    if failed:
        raise failed.pop()  # out of the handler, which would change the context of what a user's operator has raised
    return replace(rows.pixels(), replaced=replaced) if replaced else rows.pixels()


class _SharedBatch:
    """A batch that all workers make together, each a part of its samples at a time.

    So an epoch's first batches come as fast as later ones do. If each worker made one of its own, training would wait for the
    first one as long as a single worker takes for a whole batch.

    Args:
        position: the batch's position in the epoch's plan.
        parts: the number of parts.
        wanted: False once nobody wants any batch of the epoch.
    """

    def __init__(self, resources: Resources, position: int, parts: int, wanted: Callable[[], bool]) -> None:
        self._resources, self._position, self._wanted = resources, position, wanted
        self._sources, self._occurrences = resources.plan.images(position)
        self._changed = threading.Condition()
        samples = len(self._sources)
        size = max(1, -(-samples // parts))
        self._to_begin = deque(slice(first, min(first + size, samples)) for first in range(0, samples, size))
        self._unfinished = len(self._to_begin)
        self._rows: Rows | None = None  # made by the first worker
        self._bad: dict[int, SampleError] = {}
        self._failed: dict[int, BaseException] = {}  # by the first sample of its part

    def help(self) -> None:
        """Make parts of it until all are begun."""
        while (work := self._next()) is not None:
            part, rows = work
            bad: dict[int, SampleError] = {}
            failed: dict[int, BaseException] = {}
            try:
                bad = _make(self._resources, self._sources[part], self._occurrences[part], rows, self._wanted, None)
            except BaseException as error:  # raised where the batch is asked for
                failed[part.start] = error
            with self._changed:
                self._bad.update((part.start + row, error) for row, error in bad.items())
                self._failed.update(failed)
                self._unfinished -= 1
                self._changed.notify_all()
            bad.clear()
            failed.clear()  # as in `_finished`

    def result(self, wanted: Callable[[], bool]) -> PreparedBatch:
        """Make what is left of it, wait for the others' parts, and return the batch. Raises as `prepare_batch`."""
        if wanted():
            self.help()
        with self._changed:
            self._unfinished -= len(self._to_begin)  # of a batch that nobody wants
            self._to_begin.clear()
            self._changed.wait_for(lambda: not self._unfinished)
            rows, self._rows = self._rows, None
        if rows is None or not wanted():
            self._bad.clear()
            self._failed.clear()
            raise Unwanted
        return _finished(self._resources, self._position, rows, self._take_bad)

    def _next(self) -> tuple[slice, Rows] | None:
        """Return a part that nobody has begun, and its memory."""
        with self._changed:
            if not self._to_begin:
                return None
            resources, samples = self._resources, len(self._sources)
            if self._rows is None:
                self._rows = Rows(resources, samples)
            part = self._to_begin.popleft()
            return part, self._rows.part(part)

    def _take_bad(self) -> dict[int, SampleError]:
        """Return the bad samples. Raises the first error of a part, if one failed."""
        failed, self._failed = self._failed, {}
        if failed:
            raise failed.pop(min(failed))
        return self._bad


class Rows(Destination):
    """A batch's memory while its samples are made.

    If it ends on the CPU the samples go through the epilogue at once, part by part. Then there is room only for the bytes of
    one part, or no room for bytes if the kernel does both steps.

    Args:
        resources: whose pool gives the memory, and whose epilogue makes the batch from the samples' bytes.
        samples: the number of samples.
    """

    def __init__(self, resources: Resources, samples: int) -> None:
        portable, self._pool, self._finished = resources.epoch.portable, resources.pool, resources.ends_on_cpu
        self._epilogue, self._shape, self._samples = portable.epilogue, portable.shape, samples
        height, width, _ = portable.shape
        convert = self._finished and not portable.epilogue.keeps_bytes
        self._bits = portable.epilogue.empty(samples, height, width, resources.pool) if convert else None
        self._bytes: np.ndarray | None = None
        self.boxes = no_boxes(samples, portable.pipeline.boxes)

    def _images(self, samples: int) -> np.ndarray:
        """Return memory for bytes, made at the first call. If the kernel makes the result at once, nobody calls this.

        No later part is larger than the first one.
        """
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
            self._epilogue.convert(self._images(samples)[:samples], self._bits, part.start)

    def finished_place(self, part: slice) -> FinishedPlace | None:
        """See `Destination.finished_place`."""
        if self._bits is None:
            return None
        table, channels_last = self._epilogue.by_table or (None, False)  # without a table the bytes go to planes
        return FinishedPlace(self._bits[part], None if self.boxes is None else self.boxes[part], table, channels_last)

    def part(self, samples: slice) -> Rows:
        """Return the memory of some of the samples. Several threads may fill such parts at the same time."""
        some = copy.copy(self)
        some._samples = samples.stop - samples.start
        some.boxes = None if self.boxes is None else self.boxes[samples]
        if self._bits is None:
            some._bytes = self._images(self._samples)[samples]
        else:
            some._bits, some._bytes = self._bits[samples], None
        return some

    def put(self, part: slice, images: np.ndarray) -> None:
        """Take samples that were made elsewhere, uint8 (n, height, width, channels)."""
        if self._bits is None:
            self._images(self._samples)[part] = images
        else:
            self._epilogue.convert(images, self._bits, part.start)

    def put_one(self, row: int, image: np.ndarray, boxes: np.ndarray | None) -> None:
        """Take one sample that was made elsewhere, uint8 (height, width, channels), and its boxes, int32 (masks, 4)."""
        self.put(slice(row, row + 1), image[np.newaxis])
        if self.boxes is not None:
            self.boxes[row] = boxes

    def pixels(self) -> PreparedBatch:
        """Return the batch."""
        boxes = self.boxes
        if not self._finished:
            images = self._images(self._samples)
            return PreparedBatch(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes))
        result = self._epilogue.tensor(self._images(self._samples) if self._bits is None else self._bits)
        if boxes is not None:
            self._epilogue.fill(result, boxes)
        return PreparedBatch(result, None, BatchState.TENSORS)


def fresh_rows(resources: Resources, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return memory for a batch's images, uint8, and for its boxes."""
    portable = resources.epoch.portable
    return resources.pool.empty((samples, *portable.shape), np.uint8), no_boxes(samples, portable.pipeline.boxes)


def no_boxes(samples: int, masks: int) -> np.ndarray | None:
    """Return empty boxes for ``samples`` samples; None without masks."""
    return np.zeros((samples, masks, 4), dtype=np.int32) if masks else None


def prepare_item(resources: Resources, item: tuple[int, int], out: np.ndarray, boxes: np.ndarray | None) -> None:
    """Make one sample. If it is unreadable, raises an error of the type that the data set itself would have raised."""
    failed: list[Exception] = []
    epoch = resources.epoch
    try:
        prepare_sample(resources.reader, epoch.portable.pipeline, item, epoch.seed, epoch.number, out, boxes)
    except SampleError as error:
        failed.append(as_raised_by_the_dataset(error))
    if failed:
        raise failed.pop()
