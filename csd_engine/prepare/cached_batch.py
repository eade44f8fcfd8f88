"""Makes batches with a shelf of the cache: what a pipeline does every time is taken from there, or done and kept there.

What is behind the cut runs on the kept pixels, by the kernel's call on images in memory. The bits are those without a cache. A
sample that fails anywhere on this way is made as without a cache, which raises its error. Kept files need no cut.
"""

from __future__ import annotations

import hashlib
import platform
import time
from abc import ABC, abstractmethod
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

import numpy as np
import PIL
from PIL import Image

import csd_engine
from csd_engine.cache.files import FILES, KeptFiles
from csd_engine.cache.origins import origins_of
from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import Found, Shelf
from csd_engine.data.base import Origins, Reader, Source
from csd_engine.data.image_files import is_above_limit
from csd_engine.data.readahead import ReadAhead
from csd_engine.errors import SampleError
from csd_engine.kernels import kernel
from csd_engine.kernels.pixels import Pixels, PixelSamples
from csd_engine.kernels.places import address
from csd_engine.machine.versions import libjpeg
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.destination import Destination, FinishedPlace
from csd_engine.prepare.sample import ABOVE_LIMIT, prepare_any_size
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.transforms.fileplan import file_plan
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.prefix import CachePoint

__all__ = ["CachedBatchMaker", "Kept", "RowReader", "SampleCache", "channels_of", "shelf_key"]

Kept = Union[CachePoint, str]
"""What is kept: the pixels where a pipeline is cut, or `FILES`."""

_PILLOWS_LIMIT = (1 << 30) // 12  # pixels of an image, if nobody has set Image.MAX_IMAGE_PIXELS
_MADE_BYTES = 2 << 20  # of pixels that are made before what is behind the cut runs on them: they stay in a core's cache


def channels_of(point: Kept) -> int:
    """Return the channels of what is kept; 1 for rows of bytes."""
    return point.shape[2] if isinstance(point, CachePoint) else 1


def shelf_key(data_set: Tuple[Any, ...], points: Iterable[Kept]) -> str:
    """Return the key of a shelf, 32 hex digits: the data set, what is kept of it, and what decides about the bits.

    Args:
        data_set: what tells it from others. A few samples' places may stand for all: each entry of a shelf names its own file.
        points: what is kept, or may be.
    """
    kept = [(point.before.digest, point.shape) if isinstance(point, CachePoint) else point for point in points]
    decoders = () if kept == [FILES] else (csd_engine.__version__, PIL.__version__, libjpeg(), platform.machine())
    limit = () if Image.MAX_IMAGE_PIXELS == _PILLOWS_LIMIT else (Image.MAX_IMAGE_PIXELS,)
    identity = repr((*data_set, kept, decoders, *limit))
    return hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=16, person=b"ddlp shelf").hexdigest()


class SampleCache(NamedTuple):
    """What is kept of a data set's samples, and the shelf with it.

    Attributes:
        point: what is kept. Of a pipeline's cut the results of what is before it.
        shelf: of `channels_of` the point.
    """

    point: Kept
    shelf: Shelf

    def __str__(self) -> str:
        return str(self.point)

    def missing(self, reader: Reader, sources: np.ndarray) -> np.ndarray:
        """Return those of these samples, int64 (n,), that the shelf does not have, so that they must be read."""
        origins = origins_of(reader, sources)
        return sources if origins is None else sources[~self.shelf.has(sources, origins)]

    def maker(self, reader: Reader, pipeline: Pipeline, shape: Tuple[int, int, int], boxes: int) -> BatchMaker:
        """Return what makes batches, as `BatchMaker`, and uses and fills the shelf."""
        if isinstance(self.point, CachePoint):
            return CachedBatchMaker(reader, pipeline, shape, boxes, self.point, self.shelf)
        return _FileKeeper(reader, pipeline, shape, boxes, self.shelf)


class _FileKeeper(BatchMaker):
    """Makes batches as a `BatchMaker`, of files that lie on a shelf, and keeps there what a slow storage has brought."""

    def __init__(self, reader: Reader, pipeline: Pipeline, shape: Tuple[int, int, int], boxes: int, shelf: Shelf) -> None:
        super().__init__(reader, pipeline, shape, boxes)
        self._shelf = shelf

    def start(self, request: BatchRequest) -> StartedBatch:
        """See `BatchMaker.start`. Its reader may lack those that are on the shelf, if it reads them when it is asked."""
        origins = origins_of(self.reader, request.sources)
        if origins is not None:
            kept = KeptFiles(self._shelf, self.reader_for(request), request.sources, origins)
            kept.keep_missing()
            request = request._replace(reader=kept)
        return super().start(request)


class CachedBatchMaker(BatchMaker):
    """Makes batches as a `BatchMaker`, and uses and fills a shelf.

    Args:
        reader, pipeline, shape, boxes: as of `BatchMaker`.
        point: where the pipeline is cut.
        shelf: with the results of what is before it.
    """

    def __init__(
        self, reader: Reader, pipeline: Pipeline, shape: Tuple[int, int, int], boxes: int, point: CachePoint, shelf: Shelf
    ) -> None:
        super().__init__(reader, pipeline, shape, boxes)
        self.point, self.shelf = point, shelf
        height, width, _ = point.shape
        self.before = BatchMaker(reader, point.before, point.shape, 0) if point.fixed else None
        plan = file_plan(point.behind, kernel(), (width, height) if point.fixed else None)
        self.plan = None if plan is None or (plan.shape, plan.boxes) != (shape, boxes) else plan

    def start(self, request: BatchRequest) -> StartedBatch:
        """See `BatchMaker.start`. Its reader may lack those that are on the shelf, if it reads them when it is asked."""
        origins = origins_of(self.reader, request.sources)
        if origins is not None:
            shelved = self.shelf.find(request.sources, origins)
            if self.shelf.keeps or shelved.hit.any():
                return _CachedBatch(self, shelved, origins, request)
        return self.start_plain(request)

    def start_plain(self, request: BatchRequest) -> StartedBatch:
        """Start a batch without the cache."""
        return super().start(request)


class _CachedBatch(StartedBatch):
    """A batch in pieces: samples whose pixels are kept or made here, samples that are made plainly, and those that failed."""

    def __init__(self, maker: CachedBatchMaker, shelved: Found, origins: Origins, request: BatchRequest) -> None:
        super().__init__(maker.reader_for(request), maker.pipeline, request)
        self._maker, self._shelved, self._origins = maker, shelved, origins
        by_pixels = np.ones(len(shelved.hit), np.bool_) if maker.shelf.keeps else shelved.hit
        self._by_pixels: List[bool] = by_pixels.tolist()
        self._hit: List[bool] = shelved.hit.tolist()
        plain = np.flatnonzero(~by_pixels)
        self._plain = self._started(maker.start_plain, plain)
        self._plain_at = {position: place for place, position in enumerate(plain.tolist())}
        missing = np.flatnonzero(by_pixels & ~shelved.hit)
        self._missing: _Missing
        if maker.before is None:
            sources = request.sources[missing]
            self._missing = _MissingAnySize(self._reader, maker.point.before, sources, request.before_decoding)
        else:
            started = self._started(maker.before.start, missing)
            self._missing = _MissingFixed(maker.point.shape, started, len(missing))
        self._failed: Set[int] = set()  # positions of samples whose pixels could not be made or read
        self._piece: Optional[StartedBatch] = None
        self._begin = self._end = 0

    def _started(self, start: Callable[[BatchRequest], StartedBatch], positions: np.ndarray) -> StartedBatch:
        """Start a batch of the samples at these positions."""
        part = self._request.at(positions)
        return start(part) if len(positions) else StartedBatch(self._reader, self._pipeline, part)

    def close(self) -> None:
        self._plain.close()
        self._missing.close()

    def make(self, first: int, to: Destination) -> int:
        if first in self._failed or not self._by_pixels[first]:
            return self._make_plain(first, to)
        if self._piece is None or not self._begin <= first < self._end:
            self._piece = self._next_piece(first)
        if self._piece is None:
            return self._make_plain(first, to)
        try:
            return self._piece.make(first - self._begin, _Part(to, self._begin, self._end)) + self._begin
        except SampleError:
            if self._piece.calls is not None:  # what they refuse was made without the cache already
                raise
            return self._make_one(first, to)

    def _make_plain(self, first: int, to: Destination) -> int:
        """Make samples as without a cache, up to the next one that is made from pixels."""
        if self._by_pixels[first]:
            return self._make_one(first, to)
        end = first + 1
        while end < len(self._by_pixels) and not self._by_pixels[end]:
            end += 1
        shift = first - self._plain_at[first]
        return self._plain.make(first - shift, _Part(to, shift, end)) + shift

    def _next_piece(self, first: int) -> Optional[StartedBatch]:
        """Take the next samples that are made from pixels, and make the pixels that are missing. None: the first failed."""
        self._begin = self._end = first
        fresh: List[Tuple[int, np.ndarray]] = []
        keep: List[Tuple[int, np.ndarray]] = []
        room, began = _MADE_BYTES, time.monotonic()
        while self._end < len(self._by_pixels) and self._by_pixels[self._end] and room > 0:
            if self._hit[self._end]:
                room -= self._size_of(self._end)
            else:
                above = ABOVE_LIMIT.count
                try:
                    pixels = self._missing.next(all_used=not fresh)
                except SampleError:
                    self._failed.add(self._end)
                    break
                fresh.append((self._end, pixels))
                if ABOVE_LIMIT.count == above:  # else Pillow warns of it each time, or refuses it, as the user says
                    keep.append((self._end, pixels))
                room -= pixels.nbytes
            self._end += 1
        if keep:
            samples = [Sample(int(self._request.sources[k]), self._origins.one(k), pixels) for k, pixels in keep]
            self._maker.shelf.keep(samples, (time.monotonic() - began) * len(keep) / len(fresh))
        kept = [k for k in range(first, self._end) if self._hit[k]]
        read = self._maker.shelf.read(self._shelved, kept)
        if read is None:  # a file was cut off meanwhile: these samples are made as without a cache
            self._failed.update(range(first, self._end))
        if read is None or self._end == first:
            return None
        return self._from_pixels(slice(first, self._end), fresh + list(zip(kept, read)))

    def _size_of(self, position: int) -> int:
        """Return the bytes of a hit."""
        return int(self._shelved.height[position]) * int(self._shelved.width[position]) * self._maker.shelf.channels

    def _from_pixels(self, part: slice, samples: List[Tuple[int, np.ndarray]]) -> StartedBatch:
        """Return the batch of these samples, from their pixels: (height, width, channels), or as `Shelf.read` has them."""
        shelved, maker = self._shelved, self._maker
        height, width = shelved.height[part].copy(), shelved.width[part].copy()
        first = np.zeros(len(height), np.uint64)
        for position, pixels in samples:
            k = position - part.start
            first[k] = address(pixels)
            if pixels.ndim == 3:  # made now; the others' sizes are known
                height[k], width[k] = pixels.shape[:2]
        images = Pixels.packed(first, height, width, maker.point.shape[2], tuple(pixels for _, pixels in samples))
        request = self._request.at(part)
        if maker.plan is not None and not is_above_limit(maker.plan.most_cropped):
            items = request.seed, request.epoch, request.sources, request.occurrences
            return StartedBatch(self._reader, self._pipeline, request, PixelSamples(maker.plan, images, *items))
        places = {source: k for k, source in enumerate(request.sources.tolist())}
        rows = RowReader(self._reader, lambda index: images.array(places[index]))
        return StartedBatch(rows, maker.point.behind, request)


class _Part(Destination):
    """A part of a batch as a destination of its own: its position 0 is the batch's position `shift`, and it stops at `end`."""

    def __init__(self, to: Destination, shift: int, end: int) -> None:
        self._to, self._shift, self._end = to, shift, end

    def _there(self, part: slice) -> slice:
        return slice(part.start + self._shift, min(part.stop + self._shift, self._end))

    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        return self._to.place(self._there(part))

    def done(self, part: slice) -> None:
        self._to.done(self._there(part))

    def finished_place(self, part: slice) -> Optional[FinishedPlace]:
        return self._to.finished_place(self._there(part))


class _Missing(ABC):
    """Makes the pixels of samples that the shelf does not have, in their order."""

    @abstractmethod
    def next(self, all_used: bool) -> np.ndarray:
        """Return the next sample's pixels, uint8 (height, width, channels). Raises SampleError; the one after it is next then.

        ``all_used``: the results before this one are not needed any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


class _MissingAnySize(_Missing):
    def __init__(
        self, reader: Reader, pipeline: Pipeline, sources: np.ndarray, before_decoding: Optional[Callable[[int], None]]
    ) -> None:
        self._pipeline, self._before_decoding = pipeline, before_decoding
        self._reader, self._sources = ReadAhead(reader, iter(sources.tolist())), iter(sources.tolist())

    def next(self, all_used: bool) -> np.ndarray:
        return prepare_any_size(self._reader, self._pipeline, next(self._sources), self._before_decoding)

    def close(self) -> None:
        self._reader.close()


class _MissingFixed(_Missing, Destination):
    """Results of one size, made by as few calls as a batch's."""

    def __init__(self, shape: Tuple[int, int, int], started: StartedBatch, samples: int) -> None:
        self._started = started
        rows = max(1, min(samples, -(-_MADE_BYTES // int(np.prod(shape)))))
        self._rows = np.empty((rows, *shape), np.uint8)
        self._next = self._end = 0  # of the samples: the next one to return, the first one that is not made
        self._at = 0  # where the next one to return lies in the rows

    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        return self._rows[self._at :][: part.stop - part.start], None

    def done(self, part: slice) -> None:
        pass

    def next(self, all_used: bool) -> np.ndarray:
        if self._next == self._end:
            if all_used:
                self._at = 0
            elif self._at == len(self._rows):  # its samples are in use, some of which were made for the piece before
                self._rows, self._at = np.empty_like(self._rows), 0
            try:
                self._end = self._started.make(self._next, self)
            except SampleError:
                self._next = self._end = self._next + 1
                raise
        pixels: np.ndarray = self._rows[self._at]
        self._at, self._next = self._at + 1, self._next + 1
        return pixels

    def close(self) -> None:
        self._started.close()


class RowReader(Reader):
    """The data set's reader, with pixels in the place of samples: ``row`` returns those of a source, (height, width[, 3])."""

    def __init__(self, reader: Reader, row: Callable[[int], np.ndarray]) -> None:
        self._reader, self._row = reader, row

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        return self._row(index)

    def where(self, index: int) -> str:
        return self._reader.where(index)
