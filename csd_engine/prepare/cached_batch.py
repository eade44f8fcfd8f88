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
from csd_engine.cache.origins import Origins, origins_of
from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import Found, Shelf
from csd_engine.data.base import Reader, Source
from csd_engine.data.image_files import is_above_limit
from csd_engine.data.readahead import ReadAhead
from csd_engine.errors import SampleError
from csd_engine.kernels import kernel
from csd_engine.kernels.pixels import Pixels, PixelSamples
from csd_engine.kernels.places import address
from csd_engine.machine.versions import libjpeg
from csd_engine.prepare.batch_maker import BatchMaker, ByKernel, Destination, FinishedPlace, OneByOne, StartedBatch
from csd_engine.prepare.kernel_batch import KernelBatch
from csd_engine.prepare.sample import ABOVE_LIMIT, prepare_any_size, prepare_sample
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
    told = repr((*data_set, kept, decoders, *limit))
    return hashlib.blake2b(told.encode(errors="surrogateescape"), digest_size=16, person=b"ddlp shelf").hexdigest()


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
        self._whole, self._shelf = reader, shelf

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
        """See `BatchMaker.start`. ``reader`` may lack those that are on the shelf, if it reads them when it is asked."""
        origins = origins_of(self._whole, sources)
        if origins is not None:
            kept = KeptFiles(self._shelf, self._whole if reader is None else reader, sources, origins)
            kept.keep_missing()
            reader = kept
        return super().start(sources, occurrences, seed, epoch, large_bytes, before_decoding, known, reader)


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
        self.point, self.shelf, self.reader, self.pipeline = point, shelf, reader, pipeline
        height, width, _ = point.shape
        self.before = BatchMaker(reader, point.before, point.shape, 0) if point.fixed else None
        plan = file_plan(point.behind, kernel(), (width, height) if point.fixed else None)
        self.plan = None if plan is None or (plan.shape, plan.boxes) != (shape, boxes) else plan

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
        """See `BatchMaker.start`. ``reader`` may lack those that are on the shelf, if it reads them when it is asked."""
        origins = origins_of(self.reader, sources)
        if origins is not None:
            found = self.shelf.find(sources, origins)
            if self.shelf.keeps or found.hit.any():
                arguments = sources, occurrences, seed, epoch, large_bytes, before_decoding
                return _CachedBatch(self, found, origins, arguments, reader)
        return super().start(sources, occurrences, seed, epoch, large_bytes, before_decoding, known, reader)

    def start_plain(self, *arguments: object) -> StartedBatch:
        """Start a batch without the cache."""
        return super().start(*arguments)  # type: ignore[arg-type]


Arguments = Tuple[np.ndarray, np.ndarray, int, int, Optional[int], Optional[Callable[[int], None]]]


class _CachedBatch(StartedBatch):
    """A batch in pieces: samples whose pixels are kept or made here, samples that are made plainly, and those that failed."""

    def __init__(
        self, maker: CachedBatchMaker, found: Found, origins: Origins, arguments: Arguments, reader: Optional[Reader]
    ) -> None:
        self._maker, self._found, self._origins, self._brought = maker, found, origins, reader
        self._reader = maker.reader if reader is None else reader
        self._sources, self._occurrences, self._seed, self._epoch, self._large_bytes, self._before_decoding = arguments
        by_pixels = np.ones(len(found.hit), np.bool_) if maker.shelf.keeps else found.hit
        self._by_pixels: List[bool] = by_pixels.tolist()
        self._hit: List[bool] = found.hit.tolist()
        plain = np.flatnonzero(~by_pixels)
        self._plain = self._started(maker.start_plain, plain)
        self._plain_at = {position: place for place, position in enumerate(plain.tolist())}
        missing = np.flatnonzero(by_pixels & ~found.hit)
        self._missing: _Missing
        if maker.before is None:
            self._missing = _MissingAnySize(self._reader, maker.point.before, self._sources[missing], self._before_decoding)
        else:
            started = self._started(maker.before.start, missing)
            self._missing = _MissingFixed(maker.point.shape, started, len(missing))
        self._failed: Set[int] = set()  # positions of samples whose pixels could not be made or read
        self._piece: Optional[StartedBatch] = None
        self._begin = self._end = 0

    def _started(self, start: Callable[..., StartedBatch], positions: np.ndarray) -> StartedBatch:
        """Start a batch of the samples at these positions."""
        if not len(positions):
            return OneByOne(self._reader, self._maker.pipeline, [], self._seed, self._epoch, None)
        items = self._sources[positions], self._occurrences[positions]
        return start(*items, self._seed, self._epoch, self._large_bytes, self._before_decoding, False, self._brought)

    def close(self) -> None:
        self._plain.close()
        self._missing.close()

    def make(self, first: int, to: Destination) -> int:
        if first in self._failed or not self._by_pixels[first]:
            return self._make_plain(first, to)
        if self._piece is None or not self._begin <= first < self._end:
            self._next_piece(first)
            if self._piece is None:
                return self._make_plain(first, to)
        assert self._piece is not None
        return self._piece.make(first - self._begin, _Part(to, self._begin, self._end)) + self._begin

    def _make_plain(self, first: int, to: Destination) -> int:
        """Make samples as without a cache, up to the next one that is made from pixels."""
        if self._by_pixels[first]:
            item = int(self._sources[first]), int(self._occurrences[first])
            with OneByOne(self._reader, self._maker.pipeline, [item], self._seed, self._epoch, self._before_decoding) as one:
                return one.make(0, _Part(to, first, first + 1)) + first
        end = first + 1
        while end < len(self._by_pixels) and not self._by_pixels[end]:
            end += 1
        shift = first - self._plain_at[first]
        return self._plain.make(first - shift, _Part(to, shift, end)) + shift

    def _next_piece(self, first: int) -> None:
        """Take the next samples that are made from pixels, and make the pixels that are missing. No piece: the first failed."""
        self._piece, self._begin, self._end = None, first, first
        made: List[Tuple[int, np.ndarray]] = []
        keep: List[Tuple[int, np.ndarray]] = []
        room, began = _MADE_BYTES, time.monotonic()
        while self._end < len(self._by_pixels) and self._by_pixels[self._end] and room > 0:
            if self._hit[self._end]:
                room -= self._size_of(self._end)
            else:
                above = ABOVE_LIMIT.count
                try:
                    pixels = self._missing.next(all_used=not made)
                except SampleError:
                    self._failed.add(self._end)
                    break
                made.append((self._end, pixels))
                if ABOVE_LIMIT.count == above:  # else Pillow warns of it each time, or refuses it, as the user says
                    keep.append((self._end, pixels))
                room -= pixels.nbytes
            self._end += 1
        if keep:
            samples = [Sample(int(self._sources[k]), self._origins.one(k), pixels) for k, pixels in keep]
            self._maker.shelf.keep(samples, (time.monotonic() - began) * len(keep) / len(made))
        kept = [k for k in range(first, self._end) if self._hit[k]]
        read = self._maker.shelf.read(self._found, kept)
        if read is None:  # a file was cut off meanwhile: these samples are made as without a cache
            self._failed.update(range(first, self._end))
        elif self._end > first:
            self._piece = self._from_pixels(slice(first, self._end), made + list(zip(kept, read)))

    def _size_of(self, position: int) -> int:
        """Return the bytes of a hit."""
        return int(self._found.height[position]) * int(self._found.width[position]) * self._maker.shelf.channels

    def _from_pixels(self, part: slice, made: List[Tuple[int, np.ndarray]]) -> StartedBatch:
        """Return the batch of these samples, from their pixels: (height, width, channels), or as `Shelf.read` has them."""
        found, maker = self._found, self._maker
        height, width = found.height[part].copy(), found.width[part].copy()
        first = np.zeros(len(height), np.uint64)
        for position, pixels in made:
            k = position - part.start
            first[k] = address(pixels)
            if pixels.ndim == 3:  # made now; the others' sizes are known
                height[k], width[k] = pixels.shape[:2]
        images = Pixels.packed(first, height, width, maker.point.shape[2], tuple(pixels for _, pixels in made))
        sources, occurrences, key = self._sources[part], self._occurrences[part], (self._seed, self._epoch)
        if maker.plan is None or is_above_limit(maker.plan.most_cropped):
            return _FromRows(maker, self._reader, images, sources, occurrences, *key, self._before_decoding)
        calls = PixelSamples(maker.plan, images, *key, sources, occurrences)
        whole = self._reader, maker.pipeline, maker.plan  # by which a sample is made that the kernel refuses
        return ByKernel(KernelBatch(*whole, calls, sources, occurrences, *key, self._before_decoding))


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
        self._next = self._made = 0  # of the samples: the next one to return, the first one that is not made
        self._at = 0  # where the next one to return lies in the rows

    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        return self._rows[self._at :][: part.stop - part.start], None

    def done(self, part: slice) -> None:
        pass

    def next(self, all_used: bool) -> np.ndarray:
        if self._next == self._made:
            self._at = 0 if all_used else self._at
            try:
                self._made = self._started.make(self._next, self)
            except SampleError:
                self._next = self._made = self._next + 1
                raise
        pixels: np.ndarray = self._rows[self._at]
        self._at, self._next = self._at + 1, self._next + 1
        return pixels

    def close(self) -> None:
        self._started.close()


class _FromRows(StartedBatch):
    """A batch from pixels where the kernel has no plan for what is behind the cut: one by one."""

    def __init__(
        self, maker: CachedBatchMaker, reader: Reader, images: Pixels, sources: np.ndarray, occurrences: np.ndarray, seed: int,
        epoch: int, before_decoding: Optional[Callable[[int], None]],
    ) -> None:  # fmt: skip
        self._maker, self._reader, self._images = maker, reader, images
        self._key, self._before_decoding = (seed, epoch), before_decoding
        self._items = list(zip(sources.tolist(), occurrences.tolist()))

    def make(self, first: int, to: Destination) -> int:
        maker, item, part = self._maker, self._items[first], slice(first, first + 1)
        images, boxes = to.place(part)
        place = images[0], None if boxes is None else boxes[0]
        try:
            row = RowReader(self._reader, self._images.array(first))
            prepare_sample(row, maker.point.behind, item, *self._key, *place, self._before_decoding)
        except SampleError:
            prepare_sample(self._reader, maker.pipeline, item, *self._key, *place, self._before_decoding)
        to.done(part)
        return first + 1


class RowReader(Reader):
    """The data set's reader, with one sample's pixels in the place of every sample."""

    def __init__(self, reader: Reader, pixels: np.ndarray) -> None:
        self._reader, self._pixels = reader, pixels

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        return self._pixels

    def where(self, index: int) -> str:
        return self._reader.where(index)
