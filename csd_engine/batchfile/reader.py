"""The format of a batch file, and its reader: nothing is used before it is verified. `csd_engine.batchfile.writer` makes it.

It is a safetensors file. Its header is padded with spaces so that data begin at byte 4096, for aligned direct reads:

    bytes 0..8     header length, little-endian uint64 (4088)
    bytes 8..4096  JSON header, then spaces: images U8 [batch, height, width, channels] first, then, where the pipeline
                   has masks, boxes I32 [batch, boxes, 4], then, where bad samples are to be replaced, bad_rows U8 [batch];
                   __metadata__ holds format, identity, lease and checksum
    bytes 4096..   images, then boxes, then bad_rows, without a gap

Until the file is published, its name ends in `.part`. After that it never changes, and no file is renamed over another one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Iterator, List, NamedTuple, Optional, Union

import numpy as np

from csd_engine.batchfile.checksum import READ_BYTES, Checksum
from csd_engine.batchfile.layout import DATA_OFFSET, Layout, file_name, header, identity
from csd_engine.errors import DamagedBatch, MissingBatch
from csd_engine.kernels.fresh_memory import fresh

__all__ = [
    "Batch", "BatchReceiver", "Layout", "check_sum", "file_name", "identity", "open_batch", "promised_checksum",
    "read_batch",
]  # fmt: skip

_NOT_THERE = {errno.ENOENT, errno.ESTALE}


class Batch(NamedTuple):
    """A verified batch, as arrays: an engine has no torch.

    Attributes:
        images: uint8 (batch, height, width, channels).
        boxes: int32 (batch, boxes, 4) or None.
        bad_rows: uint8 (batch,), not 0 for a row that its writer could not make; None if the layout has no such marks.
    """

    images: np.ndarray
    boxes: Optional[np.ndarray]
    bad_rows: Optional[np.ndarray] = None


def _check_header(raw: bytes, expect_identity: str, expect_lease: int, layout: Layout) -> str:
    """Return the checksum that the header promises, after comparing all else in it; raises DamagedBatch."""
    try:
        data = json.loads(raw[8:].decode("ascii"))
        metadata = dict(data["__metadata__"])
        checksum = str(metadata["checksum"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedBatch(f"its header is not a batch file's ({type(error).__name__})") from None
    if metadata.get("identity") != expect_identity:
        raise DamagedBatch(f"it holds batch {metadata.get('identity')!r:.50}, expected was {expect_identity}")
    if metadata.get("lease") != str(expect_lease):
        raise DamagedBatch(f"it was made for lease {metadata.get('lease')!r:.30}, expected was {expect_lease}")
    try:
        same = raw == header(layout, expect_identity, expect_lease, checksum)
    except UnicodeEncodeError:
        same = False
    if not same:
        raise DamagedBatch("its header does not describe the expected tensors")
    return checksum


class BatchReceiver:
    """Puts a batch file's bytes, which come in order, into their places, and verifies them.

    A caller that reads a file calls `read`. A caller that gets the bytes from a socket calls `take`, or reads them into
    `spaces` itself and then calls `filled`. All go through the same checks.

    Args:
        expect_identity: 32 hex digits.
        expect_lease: the lease's number.
        layout: the expected shape.
        images: a C-contiguous writable uint8 array of the layout's image bytes to fill; else fresh memory.

    Raises:
        ValueError: `images` has the wrong type or size.
    """

    def __init__(
        self, expect_identity: str, expect_lease: int, layout: Layout, images: Optional[np.ndarray] = None
    ) -> None:
        if images is None:
            images = fresh(layout.image_bytes).reshape(layout.image_shape)
        elif images.dtype != np.uint8 or images.size != layout.image_bytes or not images.flags.c_contiguous:
            raise ValueError(f"images must be a C-contiguous uint8 array of {layout.image_bytes} bytes")
        self._expected = (expect_identity, expect_lease, layout)
        self._images = images
        self._boxes = np.empty((layout.batch, layout.boxes, 4), dtype="<i4") if layout.boxes else None
        self._header = bytearray(DATA_OFFSET)
        self._places = [memoryview(self._header), images.reshape(-1).data]
        if self._boxes is not None:
            self._places.append(self._boxes.reshape(-1).data.cast("B"))
        self._bad_rows = np.empty(layout.batch, dtype=np.uint8) if layout.bad_rows else None
        if self._bad_rows is not None:
            self._places.append(self._bad_rows.data)
        self._place = self._position = 0
        self._checksum = Checksum()
        self._promised = ""

    def read(self, descriptor: int) -> int:
        """Read the next bytes from an open file's position into their places.

        Returns:
            The number of bytes read; 0 once all have come, or at the end of the file.

        Raises:
            OSError: it can't be read.
            DamagedBatch: the header is complete, and not the expected one.
        """
        if self.complete:
            return 0
        rest = self._places[self._place][self._position :]
        count = self._checksum.read(descriptor, rest) if self._place > 0 else os.readv(descriptor, [rest])
        self._advance(count)
        return count

    def _advance(self, count: int) -> None:
        self._position += count
        if self._position == len(self._places[self._place]):
            if self._place == 0:
                self._promised = _check_header(bytes(self._header), *self._expected)
            self._place, self._position = self._place + 1, 0

    def take(self, data: Union[bytes, memoryview]) -> None:
        """Take the next bytes. Raises DamagedBatch, also where there are too many."""
        view = memoryview(data)
        while len(view):
            if self.complete:
                raise DamagedBatch("it is longer than expected")
            # Summed piece by piece while still in the cache, so that a batch crosses the memory bus once.
            space = self._places[self._place][self._position : self._position + READ_BYTES]
            count = min(len(space), len(view))
            space[:count] = view[:count]
            if self._place > 0:
                self._checksum.update(space[:count])
            self._advance(count)
            view = view[count:]

    def spaces(self, count: int) -> List[memoryview]:
        """Return the places of the next `count` bytes, for the caller to fill. Raises DamagedBatch where there are too many.

        Call `filled` then.
        """
        spaces = []
        for number in range(self._place, len(self._places)):
            space = self._places[number][self._position if number == self._place else 0 :][:count]
            spaces.append(space)
            count -= len(space)
            if not count:
                return spaces
        raise DamagedBatch("it is longer than expected")

    def filled(self, count: int) -> None:
        """Note that the next `count` bytes are in their places. Raises DamagedBatch where they are not the expected ones."""
        for space in self.spaces(count):
            if self._place > 0:
                self._checksum.update(space)
            self._advance(len(space))

    @property
    def complete(self) -> bool:
        """Whether all bytes have come."""
        return self._place == len(self._places)

    def batch(self) -> Batch:
        """Return the verified batch. Raises DamagedBatch where bytes are missing or not those of its writer."""
        if not self.complete:
            raise DamagedBatch("it ended early")
        check_sum(self._checksum.hexdigest(), self._promised)
        layout = self._expected[2]
        boxes = None if self._boxes is None else self._boxes.astype(np.int32, copy=False)
        return Batch(self._images.reshape(layout.image_shape), boxes, self._bad_rows)


def read_batch(
    path: Union[str, "os.PathLike[str]"],
    expect_identity: str,
    expect_lease: int,
    layout: Layout,
    images: Optional[np.ndarray] = None,
) -> Batch:
    """Read a published batch and verify size, header, identity, lease and checksum.

    Args:
        path: the published file; nothing in it is trusted.
        expect_identity: 32 hex digits.
        expect_lease: the lease's number.
        layout: the expected shape.
        images: a C-contiguous writable uint8 array of the layout's image bytes to read into; else fresh memory.

    Raises:
        MissingBatch: there is no such file, or it is shorter than it must be; `images` then holds garbage.
        DamagedBatch: it is unreadable or not the expected one; as above.
        ValueError: `images` has the wrong type or size.

    """
    receiver = BatchReceiver(expect_identity, expect_lease, layout, images)
    with open_batch(path, layout) as descriptor:
        while receiver.read(descriptor):
            pass
        if not receiver.complete:
            raise MissingBatch("the file ended early")
        return receiver.batch()


@contextlib.contextmanager
def open_batch(path: Union[str, "os.PathLike[str]"], layout: Layout) -> Iterator[int]:
    """Open a published batch file and check its size. The descriptor is open for as long as the context lasts.

    Raises:
        MissingBatch, DamagedBatch: as `read_batch`; also in place of an OSError or DamagedBatch raised within the context.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedBatch("it is not a regular file")
            if status.st_size != layout.file_bytes:
                kind = MissingBatch if status.st_size < layout.file_bytes else DamagedBatch
                raise kind(f"it has {status.st_size} bytes, expected were {layout.file_bytes}")
            yield descriptor
        finally:
            os.close(descriptor)
    except (OSError, DamagedBatch) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        missing = isinstance(error, MissingBatch) or (isinstance(error, OSError) and error.errno in _NOT_THERE)
        raise (MissingBatch if missing else DamagedBatch)(
            f"batch file {os.fspath(path)} cannot be used: {why}. The batch is prepared again elsewhere; "
            "if this repeats, check the spool's file system and disk."
        ) from error


def promised_checksum(descriptor: int, expect_identity: str, expect_lease: int, layout: Layout) -> str:
    """Return the checksum that the header of an open batch file promises, after comparing all else in it.

    Raises:
        DamagedBatch: it is not the expected batch's; MissingBatch: the file ended early.
        OSError: it can't be read.
    """
    raw = os.pread(descriptor, DATA_OFFSET, 0)
    if len(raw) < DATA_OFFSET:
        raise MissingBatch("the file ended early")
    return _check_header(raw, expect_identity, expect_lease, layout)


def check_sum(checksum: str, promised: str) -> None:
    """Raise DamagedBatch where a batch's data are not those of its writer."""
    if checksum != promised:
        raise DamagedBatch(f"its checksum is {checksum}, its header promises {promised}")
