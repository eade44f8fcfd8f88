"""A shelf in use: which samples it has, where they lie on the disk, and new ones on their way there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.cache.segments import ENTRY, Sample, Segment, SegmentFile, SegmentWriter, checksums, open_segment
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Origins
from csd_engine.errors import CacheRefused, DamagedSegment

__all__ = ["ENTRY_BYTES", "CacheCounts", "Found", "Shelf"]

ENTRY_BYTES = ENTRY.itemsize + 6  # of memory that an open shelf takes for each sample of its data set

SEGMENT_BYTES = 64 << 20  # of a file, at most; a kill loses no more than one file
_MOST_SEGMENTS = 256  # each takes a descriptor; of a larger cache each file is larger
_LEAST_IMAGES = 4  # that a file must have room for, or it is not worth beginning
_LOOK_S = 10.0  # from one look for what other processes have written to the next one, if the directory's time tells nothing
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_SETTLED_S = 2.0  # a file that was changed so lately may change again without a new time of change, which has coarse steps


@dataclass
class CacheCounts:
    """What a shelf did in an epoch.

    Attributes:
        hits: samples that came from it.
        misses: samples that did not, those that it cannot keep included.
        written_bytes: of files that were finished.
    """

    hits: int = 0
    misses: int = 0
    written_bytes: int = 0


class Found(NamedTuple):
    """Samples as a shelf has them.

    Attributes:
        hit: bool (n,).
        height, width: int32 (n,), of each hit.
        descriptor, offset: int32 and int64 (n,), where each hit lies in its file, bytes. `Shelf.read` brings it.
        files: keep them as long as the descriptors.
    """

    hit: np.ndarray
    height: np.ndarray
    width: np.ndarray
    descriptor: np.ndarray
    offset: np.ndarray
    files: Tuple[SegmentFile, ...]


class _Unverified(NamedTuple):
    """A sample that this process uses for the first time: its file's number, its index, where its bytes lie, their checksum."""

    segment: int
    source: int
    offset: int
    size: int
    checksum: int


class Shelf:
    """The samples of one data set by one pipeline. Any thread may use it; a fork of the process only reads.

    A sample's pixels are verified when this process uses them for the first time; where they are damaged, the whole file is
    removed, and its samples are made again. Files that this process has written itself are not verified.

    Nothing here raises once it is open: what fails is told in one line, and the samples are made as without a cache.

    Args:
        shelves: the cache's directory.
        key: 32 hex digits that stand for data set, pipeline and versions.
        about: what is in it, JSON data for people.
        samples: of the data set.
        channels: of all images.
        tell: takes a line for the user about what went wrong.

    Attributes:
        counts: of the epoch under way, or of the last one.
        tell: the argument, which may be replaced.
        wanted: whether more samples should be kept; asked often, by any thread. It may be replaced.
        trouble: the last thing that went wrong; "": nothing.

    Raises:
        CacheRefused: it can't be made, or another user may write there.
    """

    def __init__(
        self, shelves: Shelves, key: str, about: Dict[str, Any], samples: int, channels: int, tell: Callable[[str], None]
    ) -> None:
        self.key, self.channels, self.counts = key, channels, CacheCounts()
        self._shelves, self.tell, self._pid = shelves, tell, os.getpid()
        self.trouble = ""
        self.wanted: Callable[[], bool] = _always
        self._lock = threading.RLock()
        self._published = threading.Condition(self._lock)
        self._publishing = 0  # files that threads are about to end
        self._entries = np.zeros(samples, ENTRY)
        self._segment = np.zeros(samples, np.int32)  # each sample's, as its place in _names; 0: none
        self._verified = np.zeros(samples, np.bool_)
        self._coming = np.zeros(samples, np.bool_)  # in a file that is being written
        self._names: List[str] = [""]
        self._open: List[Optional[Segment]] = [None]
        self._descriptors = np.full(1, -1, np.int32)
        self._dead: Dict[int, int] = {}  # entries of each segment whose source has changed
        self._known: Set[str] = set()
        self._writer: Optional[SegmentWriter] = None
        self._full = False  # no more room, or writing failed
        self._notices: Set[str] = set()
        self._looked_s = 0.0  # of the monotonic clock
        self._looked_at_ns = 0  # the directory's time of change then
        try:
            self._files = shelves.open_shelf(key, about)
        except OSError as error:
            raise CacheRefused(
                f"the cache's directory {shelves.path} can't be used: {error.strerror}. Give another one, or correct this one."
            ) from None
        self.begin()

    @property
    def keeps(self) -> bool:
        """Whether it takes samples of this thread now."""
        return not self._full and os.getpid() == self._pid and self.wanted()

    @property
    def full(self) -> bool:
        """Whether there is no more room, or writing failed."""
        return self._full

    @property
    def held(self) -> int:
        """How many samples it has, whether or not their sources are still the same."""
        return int(np.count_nonzero(self._segment))

    def begin(self) -> None:
        """Begin to count anew, take up what other processes have written, and look for room again."""
        self.counts, self._full = CacheCounts(), False
        self._look()

    def _changed(self) -> bool:
        """Return whether a file has come or gone since the last look, or that look is long ago."""
        if time.monotonic() - self._looked_s > _LOOK_S:
            return True
        with contextlib.suppress(OSError):
            return self._files.directory.status().st_mtime_ns != self._looked_at_ns
        return False

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        try:
            self._looked_at_ns = self._files.directory.status().st_mtime_ns
            for name in self._files.segments():
                if name not in self._known:
                    self._take(name, verified=False)
        except OSError as error:
            self.tell_once(f"can't be read: {error.strerror}")

    def _take(self, name: str, verified: bool) -> None:
        """Use a file that is complete."""
        with self._lock:
            if name in self._known:
                return
            self._known.add(name)
        try:
            segment = open_segment(self._files.directory, name, self.key, self.channels)
            sources = segment.entries["source"]
            if len(sources) and not 0 <= sources.min() <= sources.max() < len(self._entries):
                raise DamagedSegment("it has samples that the data set has not")
        except FileNotFoundError:
            return
        except (DamagedSegment, OSError) as error:
            if isinstance(error, OSError) and error.errno in _SHORT:  # this process is: the file may be good for others
                self.tell_once(f"is used in part: {error.strerror}")
                return
            self._remove_damaged(name, getattr(error, "strerror", None) or str(error))
            return
        with self._lock:
            number = len(self._names)
            self._names.append(name)
            self._open.append(segment)
            self._descriptors = np.append(self._descriptors, np.int32(segment.file.descriptor))
            self._entries[sources], self._segment[sources] = segment.entries, number  # the newest of several counts
            self._verified[sources], self._coming[sources] = verified, False

    def _remove_damaged(self, name: str, why: str) -> None:
        self._files.directory.unlink(name)
        self.tell_once(f"had a damaged file ({why}), which was removed; its samples are made again")
        self._full = self._pid != os.getpid()  # there is room again

    def tell_once(self, what: str) -> None:
        """Tell the user a line about this cache, once."""
        if what not in self._notices:
            self._notices.add(what)
            self.trouble = what
            self.tell(f"the cache in {self._shelves.path} {what}")

    def find(self, sources: np.ndarray, origins: Origins) -> Found:
        """Return the samples that the shelf has, made of what is there now.

        Args:
            sources: their indices, int64 (n,), which exist.
            origins: what they are made of.
        """
        if self._changed():  # ranks and an engine's processes end their epochs at different times
            self._look()
        shelved, unverified = self._gather(sources, origins)
        while unverified:
            for number in self._unsound(unverified):
                self._give_up(number, "a sample's checksum is another one")
            shelved, unverified = self._gather(sources, origins)
        hits = int(np.count_nonzero(shelved.hit))
        with self._lock:
            self.counts.hits += hits
            self.counts.misses += len(sources) - hits
        return shelved

    def has(self, sources: np.ndarray, origins: Origins) -> np.ndarray:
        """Return which samples it has, bool (n,), unless `find` finds them damaged. Nothing is counted or read."""
        with self._lock:
            return (self._segment[sources] > 0) & _made_of(self._entries[sources], origins)

    def _gather(self, sources: np.ndarray, origins: Origins) -> Tuple[Found, List[_Unverified]]:
        """Return what is found, and the samples that are not verified."""
        with self._lock:
            entries, numbers = self._entries[sources], self._segment[sources]
            there = numbers > 0
            hit = there & _made_of(entries, origins)
            in_file = self._descriptors[numbers], entries["offset"] + DATA_OFFSET
            segments = map(self._open.__getitem__, set(numbers[hit].tolist()))
            files = tuple(segment.file for segment in segments if segment is not None)
            new = np.flatnonzero(hit & ~self._verified[sources])
            unverified: List[_Unverified] = []
            if len(new):
                ones = entries[new]
                sizes = ones["height"].astype(np.int64) * ones["width"] * self.channels
                columns = numbers[new], sources[new], ones["offset"], sizes, ones["checksum"]
                unverified = list(map(_Unverified, *(column.tolist() for column in columns)))
            if (there & ~hit).any():  # this may drop a file that has hits too: it is in `files`
                self._forget_changed(sources[there & ~hit], numbers[there & ~hit])
        return Found(hit, entries["height"], entries["width"], *in_file, files), unverified

    def read(self, shelved: Found, positions: Sequence[int]) -> Optional[List[np.ndarray]]:
        """Return the bytes of these hits, uint8 (n,) each. None: a file was cut off meanwhile, and is used no more."""
        files = {file.descriptor: file for file in shelved.files}
        images: List[np.ndarray] = []
        for descriptor, part in itertools.groupby(positions, lambda position: int(shelved.descriptor[position])):
            each = list(part)
            sizes = shelved.height[each].astype(np.int64) * shelved.width[each] * self.channels
            try:
                images += files[descriptor].read(sizes.tolist(), shelved.offset[each].tolist())
            except DamagedSegment as error:
                for number in np.flatnonzero(self._descriptors == descriptor).tolist():
                    self._give_up(number, str(error))
                return None
        return images

    def _give_up(self, number: int, why: str) -> None:
        """Use a damaged file no more, and remove it, unless another thread was first."""
        if self._open[number] is not None:
            self._drop(number)
            self._remove_damaged(self._names[number], why)

    def _unsound(self, samples: List[_Unverified]) -> Set[int]:
        """Compare checksums; return the files that have another one, or are used no more."""
        files = {sample.segment: self._open[sample.segment] for sample in samples}
        gone = {number for number, segment in files.items() if segment is None}
        there = [(sample, segment) for sample in samples if (segment := files[sample.segment]) is not None]
        sums: List[Optional[int]] = []
        for sample, segment in there:
            try:
                sums += checksums(segment.file.read([sample.size], [sample.offset + DATA_OFFSET])).tolist()
            except DamagedSegment:
                sums.append(None)
        with self._lock:
            for (sample, _), checksum in zip(there, sums):
                if checksum != sample.checksum:
                    gone.add(sample.segment)
                elif self._segment[sample.source] == sample.segment:
                    self._verified[sample.source] = True
        return gone

    def _drop(self, number: int) -> None:
        """Use a file no more. It stays open for those who use it now."""
        with self._lock:
            gone = self._segment == number
            self._segment[gone], self._verified[gone] = 0, False
            self._open[number] = None

    def _forget_changed(self, sources: np.ndarray, numbers: np.ndarray) -> None:
        """Forget samples whose sources have changed. A file with more than half of such samples is removed, for new ones."""
        self._segment[sources], self._verified[sources] = 0, False
        for number in set(numbers.tolist()):
            segment = self._open[number]
            self._dead[number] = self._dead.get(number, 0) + int(np.count_nonzero(numbers == number))
            if segment is not None and 2 * self._dead[number] > len(segment.entries) and self._pid == os.getpid():
                self._drop(number)
                self._files.directory.unlink(self._names[number])
                self._full = False

    def keep(self, samples: Sequence[Sample], seconds: float) -> None:
        """Keep samples, if there is room. ``seconds``: the time that making them took."""
        if not self.keeps:
            return
        settled_ns = (time.time() - _SETTLED_S) * 1e9
        fit = [sample for sample in samples if -1 < sample.origin.size and sample.origin.mtime_ns < settled_ns]
        wanted = list({sample.source: sample for sample in fit if not self._has(sample)}.values())
        each_s = seconds / max(1, len(samples))
        for sample in wanted:
            self._coming[sample.source] = True
        try:
            while wanted and (writer := self._writing(wanted[0].pixels.nbytes)) is not None:
                done = writer.keep(wanted, each_s * len(wanted))
                wanted = wanted[done:]
                if wanted:
                    self._finish(writer)
        except OSError as error:
            self._full = True
            self.tell_once(f"takes no more samples: {error.strerror}")
        for sample in wanted:
            self._coming[sample.source] = False

    def _has(self, sample: Sample) -> bool:
        """Return whether the sample is there by now, or on its way."""
        if self._coming[sample.source]:
            return True
        if not self._segment[sample.source]:
            return False
        entry = self._entries[sample.source]
        return bool((entry["name"], entry["size"], entry["mtime_ns"]) == sample.origin)

    def _writing(self, image_bytes: int) -> Optional[SegmentWriter]:
        """Return the file to write to; None: there is no room. Raises OSError."""
        with self._lock:
            if self._writer is None and not self._full:
                least = DATA_OFFSET + 8 + _LEAST_IMAGES * (image_bytes + ENTRY.itemsize)
                wanted = max(SEGMENT_BYTES, self._shelves.quota_bytes // _MOST_SEGMENTS, least)
                self._writer = self._shelves.begin_segment(self._files, self.key, self.channels, wanted, least)
                self._full = self._writer is None
            return self._writer

    def _finish(self, writer: SegmentWriter) -> None:
        """End this file, unless another thread does. Raises OSError."""
        with self._lock:
            if self._writer is not writer:
                return
            self._writer, self._publishing = None, self._publishing + 1
        try:
            size = writer.publish()
            if size:
                with self._lock:
                    self.counts.written_bytes += size
                self._take(writer.name, verified=True)
        finally:
            with self._lock:
                self._publishing -= 1
                self._published.notify_all()

    def flush(self) -> None:
        """End the file that is being filled, so that its samples can be found, and wait for those that other threads end."""
        if os.getpid() != self._pid:
            return
        writer = self._writer
        if writer is not None:
            try:
                self._finish(writer)
            except OSError as error:
                self._full = True
                self.tell_once(f"takes no more samples: {error.strerror}")
            self._coming[:] = False
        with self._lock:
            self._published.wait_for(lambda: not self._publishing)

    def close(self) -> None:
        """End the file that is being filled, and give up the shelf's lock. Do not use the shelf any more."""
        self.flush()
        self._full = True
        self._files.close()


def _always() -> bool:
    return True


def _made_of(entries: np.ndarray, origins: Origins) -> np.ndarray:
    """Return which entries are of samples that are made of the very same, bool (n,)."""
    same: np.ndarray = (entries["name"] == origins.names) & (entries["size"] == origins.sizes)
    return same & (entries["mtime_ns"] == origins.mtimes_ns)
