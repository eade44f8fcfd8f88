"""A segment: the pixels of many samples in one file. It is a safetensors file, padded like a batch file's.

    bytes 0..8     header length, little-endian uint64 (4088)
    bytes 8..4096  JSON header, then spaces: pixels U8 [bytes], then entries I64 [n, 7]; __metadata__ holds format, shelf (whose
                   it is), channels, checksum (of the entries) and seconds (which making the samples took)
    bytes 4096..   pixels: image after image without a gap, then zeros up to a multiple of 8; then the entries

An entry is an `ENTRY`. While a segment is filled, its name ends in `.part`, its writer holds a lock (flock) on it, and its size
is the one that it may grow to, which counts against the quota. Once it has its name, it never changes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import threading
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from csd_engine.batchfile.checksum import MULTIPLIER, Checksum
from csd_engine.batchfile.layout import DATA_OFFSET, safetensors_head
from csd_engine.batchfile.publishing import PART_SUFFIX, publish_name, pwrite
from csd_engine.data.base import Origin
from csd_engine.errors import DamagedSegment
from csd_engine.kernels import kernel
from csd_engine.kernels.arrays import BLOCK_BYTES
from csd_engine.machine.directory import Directory, distrusted
from csd_engine.machine.file_locks import fcntl

__all__ = [
    "ENTRY", "NAME", "Head", "Sample", "Segment", "SegmentFile", "SegmentWriter", "checksums", "open_segment",
    "read_head",
]  # fmt: skip

FORMAT = "ddlp-cache-1"
NAME = re.compile(r"[0-9a-f]{16}\.safetensors")

ENTRY = np.dtype(
    [("source", "<i8"), ("offset", "<i8"), ("height", "<i4"), ("width", "<i4"), ("name", "<u8"), ("size", "<i8"),
     ("mtime_ns", "<i8"), ("checksum", "<u8")]
)  # fmt: skip
"""A sample: its source index; where its pixels begin, and their height and width; what its source was: a digest of its
name, its file's bytes and time of change; the checksum of its pixels, see `checksums`."""

_ENTRIES_AT_ONCE = 16 << 10  # about 1 MB; a multiple of the checksum's blocks
_NUMBERS = ENTRY.itemsize // 8
_MULTIPLIER = np.uint32(MULTIPLIER)
# Odd numbers of 64 bits: a product with one of them loses no bit.
_WEIGHTS = np.arange(1, BLOCK_BYTES // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)


class Sample(NamedTuple):
    """A sample to keep.

    Attributes:
        source: its index.
        origin: what it was made of, as it was before it was read.
        pixels: C-contiguous uint8 (height, width, channels).
    """

    source: int
    origin: Origin
    pixels: np.ndarray


class Head(NamedTuple):
    """A segment's header.

    Attributes:
        shelf: the key of its shelf, 32 hex digits.
        channels: of all its images.
        pixels: bytes of the pixels, with the zeros behind them.
        entries: how many there are.
        seconds: the time that making the samples took.
        checksum: of the entries.
    """

    shelf: str
    channels: int
    pixels: int
    entries: int
    seconds: float
    checksum: str

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return DATA_OFFSET + self.pixels + self.entries * ENTRY.itemsize

    def to_bytes(self) -> bytes:
        """Return the file's first DATA_OFFSET bytes. There is one spelling only."""
        end = self.pixels + self.entries * ENTRY.itemsize
        metadata = {"shelf": self.shelf, "channels": self.channels, "seconds": f"{self.seconds:.3f}", "checksum": self.checksum}
        tensors: Dict[str, Any] = {
            "__metadata__": {"format": FORMAT, **{name: str(value) for name, value in metadata.items()}},
            "pixels": {"dtype": "U8", "shape": [self.pixels], "data_offsets": [0, self.pixels]},
            "entries": {"dtype": "I64", "shape": [self.entries, _NUMBERS], "data_offsets": [self.pixels, end]},
        }
        return safetensors_head(tensors)


def checksums(images: Sequence[np.ndarray]) -> np.ndarray:
    """Return the checksum of each image's bytes, uint64 (n,). An image is contiguous uint8 (n,).

    It is the batch file's sum of blocks (csd_engine.batchfile.checksum), with a quicker end: each pair of its words times an
    odd number, added up. Any one changed word shows. Somebody who wants to can find other bytes with the same number.
    """
    fast = kernel()
    return np.array([_checksum(image) for image in images], np.uint64) if fast is None else fast.image_sums(images)


def _checksum(pixels: np.ndarray) -> int:
    if pixels.size < BLOCK_BYTES:  # the same number from fewer words: the block's others are 0
        words = np.zeros(-(-pixels.size // 8), "<u8")
        words.view(np.uint8)[: pixels.size] = pixels
        return int((words * _WEIGHTS[: words.size]).sum())
    blocks, rest = divmod(pixels.size, BLOCK_BYTES)
    acc = np.zeros(BLOCK_BYTES // 4, np.uint32)
    for k in range(blocks):
        acc *= _MULTIPLIER
        acc += pixels[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES].copy().view("<u4")
    if rest:
        last = np.zeros(BLOCK_BYTES, np.uint8)
        last[:rest] = pixels[blocks * BLOCK_BYTES :]
        acc *= _MULTIPLIER
        acc += last.view("<u4")
    return int((acc.astype("<u4", copy=False).view("<u8") * _WEIGHTS).sum())


def read_head(descriptor: int) -> Head:
    """Return the header of an open segment.

    Raises:
        DamagedSegment: it is none, or its size is not the file's.
        OSError: it can't be read.
    """
    status, raw = os.fstat(descriptor), os.pread(descriptor, DATA_OFFSET, 0)
    try:
        data = json.loads(raw[8:].decode("ascii"))
        metadata, (pixels,), (entries, _) = data["__metadata__"], data["pixels"]["shape"], data["entries"]["shape"]
        seconds = float(metadata["seconds"])
        shelf, channels, checksum = str(metadata["shelf"]), int(metadata["channels"]), str(metadata["checksum"])
        head = Head(shelf, channels, int(pixels), int(entries), seconds, checksum)
        same = raw == head.to_bytes()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedSegment(f"its header is not a segment's ({type(error).__name__})") from None
    if not same or head.pixels < 0 or head.entries < 0 or not stat.S_ISREG(status.st_mode):
        raise DamagedSegment("its header is not a segment's")
    if status.st_size != head.file_bytes:
        raise DamagedSegment(f"it has {status.st_size} bytes, and its header promises {head.file_bytes}")
    return head


class SegmentFile:
    """The open file of a segment. It is closed with this object."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def read(self, sizes: Sequence[int], offsets: Sequence[int]) -> List[np.ndarray]:
        """Return the bytes of samples, uint8 (size,) each. They are read: a mapping of a file that somebody cuts off kills us.

        ``offsets``: in the file. Raises DamagedSegment: they are not there any more.
        """
        memory = np.empty(sum(sizes), np.uint8)
        images, at = [], 0
        for size, offset in zip(sizes, offsets):
            images.append(memory[at : at + size])
            at += size
            try:
                whole = _pread_into(self.descriptor, images[-1], offset)
            except OSError as error:
                raise DamagedSegment(f"it can't be read: {error.strerror}") from None
            if not whole:
                raise DamagedSegment("it was cut off")
        return images


def _pread_into(descriptor: int, memory: np.ndarray, offset: int) -> bool:
    """Fill memory from this place of a file. False: the file ends before."""
    done = os.preadv(descriptor, [memory], offset)
    while 0 < done < memory.size:  # a signal came, or it is a network file system
        more = os.preadv(descriptor, [memory[done:]], offset + done)
        if not more:
            return False
        done += more
    return done == memory.size


class Segment(NamedTuple):
    """A segment that is open: its entries are verified, its pixels are not.

    Attributes:
        head: its header.
        entries: `ENTRY` (n,).
        file: the pixels are read from it.
    """

    head: Head
    entries: np.ndarray
    file: SegmentFile

    def images(self, entries: np.ndarray) -> List[np.ndarray]:
        """Return the bytes of entries' pixels. Raises DamagedSegment."""
        sizes = entries["height"].astype(np.int64) * entries["width"] * self.head.channels
        return self.file.read(sizes.tolist(), (entries["offset"] + DATA_OFFSET).tolist())

    def check(self) -> None:
        """Compare the checksums of all pixels. Raises DamagedSegment."""
        for entry in range(len(self.entries)):
            row = self.entries[entry : entry + 1]
            if checksums(self.images(row))[0] != row["checksum"][0]:
                raise DamagedSegment("a sample's checksum is another one")


def open_segment(directory: Directory, name: str, shelf: str, channels: Optional[int] = None) -> Segment:
    """Open a segment.

    Args:
        directory: of the shelf.
        name: the file's.
        shelf, channels: as they must be in its header; channels None: any.

    Raises:
        DamagedSegment: it is not a segment of this shelf, not as its writer left it, or another user's.
        OSError: it can't be read.
    """
    descriptor = directory.open(name, os.O_RDONLY)
    try:
        if why := distrusted(os.fstat(descriptor)):
            raise DamagedSegment(why)
        head = read_head(descriptor)
        if head.shelf != shelf or head.channels not in ((1, 3) if channels is None else (channels,)):
            raise DamagedSegment(f"it is of shelf {head.shelf!r:.50} with {head.channels} channels")
        return Segment(head, _read_entries(descriptor, head), SegmentFile(descriptor))
    finally:
        os.close(descriptor)


def _read_entries(descriptor: int, head: Head) -> np.ndarray:
    """Return a segment's entries. Raises DamagedSegment.

    They are checked while they come: a file full of holes may promise more than there is memory for.
    """
    checksum, pieces = Checksum(), []
    for first in range(0, head.entries, _ENTRIES_AT_ONCE):
        size = min(_ENTRIES_AT_ONCE, head.entries - first) * ENTRY.itemsize
        raw = os.pread(descriptor, size, DATA_OFFSET + head.pixels + first * ENTRY.itemsize)
        if len(raw) != size:
            raise DamagedSegment("its entries are damaged")
        checksum.update(raw)
        piece = np.frombuffer(raw, ENTRY)
        height, width = piece["height"].astype(np.int64), piece["width"].astype(np.int64)
        if not (
            0 < min(height.min(), width.min())
            and (height * width).max() <= head.pixels
            and 0 <= piece["offset"].min() <= piece["offset"].max() <= head.pixels
            and (piece["offset"] + height * width * head.channels).max() <= head.pixels
        ):
            raise DamagedSegment("an entry lies outside its pixels")
        pieces.append(piece)
    if checksum.hexdigest() != head.checksum:
        raise DamagedSegment("its entries are damaged")
    return np.concatenate(pieces) if pieces else np.empty(0, ENTRY)


class SegmentWriter:
    """Fills a segment. Any thread may use it.

    Args:
        directory: of the shelf.
        shelf: its key, 32 hex digits.
        channels: of all images.
        most_bytes: of the file.

    Raises:
        OSError: it can't be made.
    """

    def __init__(self, directory: Directory, shelf: str, channels: int, most_bytes: int) -> None:
        self.name = f"{secrets.token_hex(8)}.safetensors"
        self._directory, self._shelf, self._channels, self._most_bytes = directory, shelf, channels, most_bytes
        self._entries: List[Tuple[Any, ...]] = []
        self._end = 0  # of the pixels
        self._room = most_bytes - DATA_OFFSET - 8
        self._writes = 0  # under way
        self._changed = threading.Condition()
        self._seconds = 0.0
        self._descriptor = directory.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, most_bytes)
        except OSError:
            self.abort()
            raise

    @property
    def _part(self) -> str:
        return self.name + PART_SUFFIX

    def keep(self, samples: Sequence[Sample], seconds: float) -> int:
        """Write the first of these samples, as many as there is room for, and return their number.

        ``seconds``: the time that making all of them took.

        Raises:
            OSError: they can't be written. The samples before them are not affected.
        """
        with self._changed:
            sizes: List[int] = []
            for sample in samples:
                needed = sample.pixels.nbytes + ENTRY.itemsize
                if self._descriptor < 0 or needed > self._room:
                    break
                self._room -= needed
                sizes.append(sample.pixels.nbytes)
            if not sizes:
                return 0
            offset, self._end, self._writes = self._end, self._end + sum(sizes), self._writes + 1
        entries: List[Tuple[Any, ...]] = []
        try:
            images = [sample.pixels.reshape(-1) for sample in samples[: len(sizes)]]
            sums = checksums(images).tolist()
            _pwrite_all(self._descriptor, images, DATA_OFFSET + offset)
            for sample, size, checksum in zip(samples, sizes, sums):
                entries.append((sample.source, offset, *sample.pixels.shape[:2], *sample.origin, checksum))
                offset += size
        finally:
            with self._changed:
                self._writes -= 1
                self._entries += entries
                self._seconds += seconds * len(entries) / len(samples)
                self._changed.notify_all()
        return len(sizes)

    def publish(self) -> int:
        """End the file and give it its name; return its bytes. Without a sample it is removed, and has 0.

        Raises:
            OSError: it can't be written; it is removed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._writes)
            descriptor, self._descriptor = self._descriptor, -1  # nobody writes any more
        try:
            if not self._entries:
                self._directory.unlink(self._part)
                return 0
            entries = np.array(self._entries, ENTRY).tobytes()
            pixels = self._end + -self._end % 8
            checksum = Checksum()
            checksum.update(entries)
            head = Head(self._shelf, self._channels, pixels, len(self._entries), self._seconds, checksum.hexdigest())
            pwrite(descriptor, bytes(pixels - self._end) + entries, DATA_OFFSET + self._end)
            os.ftruncate(descriptor, head.file_bytes)
            pwrite(descriptor, head.to_bytes(), 0)
            os.close(os.dup(descriptor))  # a network file system writes back at each close, and may fail; the lock stays
            publish_name(self._directory, self._part, self.name)
            return head.file_bytes
        except OSError:
            self._directory.unlink(self._part)
            raise
        finally:
            os.close(descriptor)

    def abort(self) -> None:
        """Drop the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._directory.unlink(self._part)
            os.close(descriptor)


def _pwrite_all(descriptor: int, parts: List[np.ndarray], offset: int) -> None:
    """Write arrays of bytes one after another, mostly by one system call. Raises OSError."""
    written = os.pwritev(descriptor, parts, offset)
    for part in parts:
        if written < part.size:  # a signal came
            pwrite(descriptor, part[max(0, written) :], offset + max(0, written))
        offset, written = offset + part.size, written - part.size
