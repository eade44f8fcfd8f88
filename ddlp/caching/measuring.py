"""What is measured of a few samples, to choose what to keep of all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from csd_engine.data.base import Reader, at_hand
from csd_engine.data.image_files import content, open_image
from csd_engine.data.objects.window import LEAST
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import SampleError
from csd_engine.prepare.cached_batch import RowReader
from csd_engine.prepare.sample import prepare_any_size, prepare_sample
from csd_engine.transforms.prefix import CachePoint
from csd_engine.transforms.primitives import CHANNELS
from ddlp.caching.cache_point import between_requests_s
from ddlp.translate.portable import Portable

__all__ = ["FileSizes", "PixelTimes", "brought", "file_sizes", "pixel_times"]

_SAMPLES = 24
_ENOUGH_S = 1.0


class FileSizes(NamedTuple):
    """Means of some files.

    Attributes:
        file_bytes: of the file.
        decoded_bytes: of its image as pixels.
    """

    file_bytes: float
    decoded_bytes: float


class PixelTimes(NamedTuple):
    """Means of some samples.

    Attributes:
        plain_s: seconds of a processor, made as a whole.
        made_s, behind_s: the same up to the cut, and behind it.
        pixel_bytes: at the cut.
    """

    plain_s: float
    made_s: float
    behind_s: float
    pixel_bytes: float


def _some(portable: Portable) -> Iterator[int]:
    """Source indices from all of the data set, until the time is over."""
    count, began = portable.dataset.starts[-1], time.monotonic()
    for index in sorted({count * step // _SAMPLES for step in range(_SAMPLES)}):
        if time.monotonic() - began > _ENOUGH_S:
            return
        yield index


@contextlib.contextmanager
def brought(portable: Portable) -> Iterator[tuple[Reader, float]]:
    """Yield a reader of the samples that are measured here, which has brought them all if their storage is slow.

    And the seconds from one object of that storage to the next, with more requests in flight than these; 0: there is none.
    """
    reader, some = portable.dataset.reader(), list(_some(portable))
    if not reader.slow or not some:
        yield reader, 0.0
        return
    alone_s = 0.0
    for _ in range(2):  # the first request connects
        began = time.perf_counter()
        with at_hand(reader, some[:1]):
            alone_s = time.perf_counter() - began
    began = time.perf_counter()
    with at_hand(reader, some) as there:
        yield there, between_requests_s(alone_s, time.perf_counter() - began, len(some), LEAST)


def file_sizes(portable: Portable, reader: Reader) -> FileSizes | None:
    """Read up to 24 files, for a second at most; None: none could be read. ``reader``: as `brought` yields it."""
    sizes, channels = [], CHANNELS[portable.pipeline.mode]
    for index in _some(portable):
        try:
            source = reader.open(index)
            if not isinstance(source, OpenFile):  # an array's row
                continue
            image = open_image(source.path, content(source))
        except SampleError:
            continue
        sizes.append((source.size, image.width * image.height * channels))
    return FileSizes(*np.mean(sizes, axis=0).tolist()) if sizes else None


def pixel_times(portable: Portable, point: CachePoint, reader: Reader) -> PixelTimes | None:
    """Make up to 24 samples several times, with and without kept pixels, for a second at most; None: none could be made.

    ``reader``: as `brought` yields it.
    """
    pipeline = portable.pipeline
    out = np.empty(portable.shape, np.uint8)
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    times = []  # of this thread's processor: by the clock, a rest of a second beside other programs is 40 ms in the mean
    for index in _some(portable):
        item = (index, 0)
        try:
            prepare_sample(reader, pipeline, item, 0, 0, out, boxes)  # brings the file into memory
            at = [time.thread_time()]
            prepare_sample(reader, pipeline, item, 0, 0, out, boxes)
            at.append(time.thread_time())
            pixels = prepare_any_size(reader, point.before, index)
            at.append(time.thread_time())
            row = pixels if point.shape[2] > 1 else pixels[:, :, 0]
            prepare_sample(RowReader(reader, {index: row}.__getitem__), point.behind, item, 0, 0, out, boxes)
            at.append(time.thread_time())
        except SampleError:
            continue
        times.append((*np.diff(at), pixels.nbytes))
    return PixelTimes(*np.mean(times, axis=0).tolist()) if times else None
