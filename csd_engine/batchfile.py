"""The batch file: laid out, filled in place, published under its name, verified when read.

A safetensors file whose header is padded with spaces so that data begin at byte 4096, for aligned direct reads:

    bytes 0..8     header length, little-endian uint64 (4088)
    bytes 8..4096  JSON header, then spaces: images U8 [batch, height, width, channels] first, then, where the pipeline
                   has masks, boxes I32 [batch, boxes, 4]; __metadata__ holds format, identity, lease and checksum
    bytes 4096..   images, then boxes, without a gap

Until published its name ends in `.part`. Then it never changes, and none is renamed over another one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional, Union

import numpy as np

from csd_engine.checksum import BLOCK_BYTES, READ_BYTES, Checksum, digest
from csd_engine.errors import DamagedBatch, MissingBatch, SpoolError, SpoolFull
from csd_engine.fresh import fresh
from csd_engine.kernels import kernel
from csd_engine.layout import DATA_OFFSET, Layout, file_name, header, identity

__all__ = [
    "Batch", "BatchReceiver", "BatchWriter", "Layout", "check_sum", "file_name", "identity", "open_batch", "promised_checksum",
    "read_batch",
]  # fmt: skip

PART_SUFFIX = ".part"

_ZEROS_BYTES = 1 << 20  # one write where a file system cannot allocate
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NOT_THERE = {errno.ENOENT, errno.ESTALE}
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Batch(NamedTuple):
    """A verified batch: images uint8 (batch, height, width, channels); boxes int32 (batch, boxes, 4) or None."""

    images: np.ndarray
    boxes: Optional[np.ndarray]


def _pwrite(descriptor: int, data: Any, offset: int) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its blocks now, so that a full disk is met before any work is done."""
    try:
        os.posix_fallocate(descriptor, 0, size)
        return
    except AttributeError:  # not every platform's Python has it
        pass
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV):
            raise
    zeros = bytes(_ZEROS_BYTES)
    for offset in range(0, size, _ZEROS_BYTES):
        _pwrite(descriptor, memoryview(zeros)[: min(_ZEROS_BYTES, size - offset)], offset)


def _publish_name(part: str, final: str) -> None:
    """Give the finished file its name, never over an existing one (FileExistsError)."""
    try:
        os.link(part, final)
        os.unlink(part)
        return
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    # No hard links here (FAT, some network file systems): whoever creates the claim file may rename.
    claim = final + ".claim"
    os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final)
        os.rename(part, final)
    finally:
        os.unlink(claim)


class BatchWriter:
    """Fills one batch file row by row; its memory does not grow with the images.

    Args:
        directory: the job's directory below the spool.
        batch_identity: 32 hex digits.
        lease: the lease's number.
        layout: shape of the batch.

    Raises:
        SpoolFull: the file system has no room for the whole file; nothing is left behind.
        SpoolError: the directory cannot be written, or the same lease's file is there already.
    """

    def __init__(self, directory: Union[str, "os.PathLike[str]"], batch_identity: str, lease: int, layout: Layout):
        self.layout = layout
        self._identity = batch_identity
        self._lease = lease
        self._final = os.path.join(os.fspath(directory), file_name(batch_identity, lease))
        self._part = self._final + PART_SUFFIX
        self._checksum = Checksum()
        self._boxes = bytearray()
        self._row = 0
        self._descriptor = -1
        self._created = False
        try:
            if os.path.lexists(self._final):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._final)
            self._descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            self._created = True
            _reserve(self._descriptor, layout.file_bytes)
        except OSError as error:
            raise self._failed(error) from error

    @property
    def row(self) -> int:
        """Rows written so far; the next one to write."""
        return self._row

    def write(self, row: int, image: np.ndarray, boxes: Optional[np.ndarray] = None) -> None:
        """Write row `row` (rows come in order): image uint8 (height, width, channels), boxes int32 (boxes, 4).

        Raises:
            SpoolFull, SpoolError: the write failed; the part file is removed.
            ValueError: out of order, or a shape or type that is not the layout's.
        """
        self.write_rows(row, image[np.newaxis], None if boxes is None else boxes[np.newaxis])

    def write_rows(self, row: int, images: np.ndarray, boxes: Optional[np.ndarray] = None) -> None:
        """Write several rows from `row` on: images uint8 (n, height, width, channels), boxes int32 (n, boxes, 4).

        Raises as `write`.
        """
        layout, count = self.layout, len(images)
        if row != self._row or row + count > layout.batch:
            raise ValueError(f"rows {row} to {row + count - 1} of {layout.batch} came, {self._row} is next")
        if images.shape[1:] != (layout.height, layout.width, layout.channels) or images.dtype != np.uint8:
            raise ValueError(f"images {images.shape} {images.dtype} are not {layout.image_shape[1:]} uint8 each")
        if layout.boxes:
            if boxes is None or boxes.shape != (count, layout.boxes, 4):
                raise ValueError(f"boxes {None if boxes is None else boxes.shape} are not ({count}, {layout.boxes}, 4)")
            self._boxes += boxes.astype("<i4").tobytes()
        data = memoryview(np.ascontiguousarray(images).reshape(-1).data)
        try:
            _pwrite(self._descriptor, data, DATA_OFFSET + row * layout.row_bytes)
        except OSError as error:
            raise self._failed(error) from error
        self._checksum.update(data)
        self._row += count

    def publish(self) -> Path:
        """Write boxes and header and give the complete file its name.

        Raises:
            SpoolFull, SpoolError: the write failed or the name is taken; the part file is removed.
            ValueError: rows are missing.
        """
        layout = self.layout
        if self._row != layout.batch:
            raise ValueError(f"{self._row} of {layout.batch} rows written: the batch is not complete")
        try:
            if layout.boxes:
                self._checksum.update(memoryview(self._boxes))
                _pwrite(self._descriptor, self._boxes, DATA_OFFSET + layout.image_bytes)
            first = header(layout, self._identity, self._lease, self._checksum.hexdigest())
            _pwrite(self._descriptor, first, 0)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)  # before the name: a network file system writes back, and fails, at close
            _publish_name(self._part, self._final)
            self._created = False
        except OSError as error:
            raise self._failed(error) from error
        return Path(self._final)

    def abort(self) -> None:
        """Drop the part file. May be called at any time, and again; a published file stays."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        if self._created:  # else the name is another writer's
            self._created = False
            try:
                os.unlink(self._part)
            except OSError:
                pass

    def _failed(self, error: OSError) -> SpoolError:
        self.abort()
        if error.errno in _FULL:
            return SpoolFull(
                f"no room for a batch file of {self.layout.file_bytes} bytes: {error.strerror}, in "
                f"{os.path.dirname(self._final)}. Free space there, lower the quota, or choose another spool."
            )
        return SpoolError(
            f"a batch file cannot be written: {error.strerror or error}, {self._final}. "
            "Check that the spool exists and that its owner may write there."
        )


def _check_header(raw: bytes, expect_identity: str, expect_lease: int, layout: Layout) -> str:
    """Return the checksum that the header promises, after comparing all else in it; raises DamagedBatch."""
    try:
        data = json.loads(raw[8:].decode("ascii"))
        found = dict(data["__metadata__"])
        checksum = str(found["checksum"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedBatch(f"its header is not a batch file's ({type(error).__name__})") from None
    if found.get("identity") != expect_identity:
        raise DamagedBatch(f"it holds batch {found.get('identity')!r:.50}, expected was {expect_identity}")
    if found.get("lease") != str(expect_lease):
        raise DamagedBatch(f"it was made for lease {found.get('lease')!r:.30}, expected was {expect_lease}")
    try:
        same = raw == header(layout, expect_identity, expect_lease, checksum)
    except UnicodeEncodeError:
        same = False
    if not same:
        raise DamagedBatch("its header does not describe the expected tensors")
    return checksum


class BatchReceiver:
    """Takes a batch file's bytes in order, from wherever they come, into their places, and verifies them.

    Whoever reads a file calls `read`, whoever is given bytes `take`: the file and the socket go through the same checks.

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
        self._place = self._position = 0
        self._checksum = Checksum()
        self._promised = ""

    def read(self, descriptor: int) -> int:
        """Read on from where an open file stands, which is where these bytes begin, to their places.

        Returns:
            The bytes read: 0 once all have come, or where the file ends.

        Raises:
            OSError: it can't be read.
            DamagedBatch: they complete a header that is not the expected one's.
        """
        if self.complete:
            return 0
        rest = self._places[self._place][self._position :]
        count = self._checksum.read(descriptor, rest) if self._place > 0 else os.readv(descriptor, [rest])
        self._advance(count)
        return count

    def whole_file(self, path: Union[str, "os.PathLike[str]"]) -> Optional[Batch]:
        """Return the verified batch of a file, read by one call of the kernel: a small one costs less than letting other
        threads in between. None where there is no such call, or something is not as it must be: `read` says what.
        """
        identity, lease, layout = self._expected
        fast = kernel()
        if fast is None or self._boxes is not None:
            return None
        head, acc = np.frombuffer(self._header, dtype=np.uint8), np.zeros(BLOCK_BYTES // 4, dtype=np.uint32)
        if not fast.read_file(path, head, self._images, acc) or self._header != header(layout, identity, lease, digest(acc)):
            return None
        return self._batch()

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

    @property
    def complete(self) -> bool:
        """Whether all bytes have come."""
        return self._place == len(self._places)

    def batch(self) -> Batch:
        """Return the verified batch. Raises DamagedBatch where bytes are missing or not those of its writer."""
        if not self.complete:
            raise DamagedBatch("it ended early")
        check_sum(self._checksum.hexdigest(), self._promised)
        return self._batch()

    def _batch(self) -> Batch:
        layout = self._expected[2]
        boxes = None if self._boxes is None else self._boxes.astype(np.int32, copy=False)
        return Batch(self._images.reshape(layout.image_shape), boxes)


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
    if (whole := receiver.whole_file(path)) is not None:
        return whole
    with open_batch(path, layout) as descriptor:
        while receiver.read(descriptor):
            pass
        if not receiver.complete:
            raise MissingBatch("the file ended early")
        return receiver.batch()


@contextlib.contextmanager
def open_batch(path: Union[str, "os.PathLike[str]"], layout: Layout) -> Iterator[int]:
    """Descriptor of a published batch file, which has the right size, for as long as the context lasts.

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
    """What the header of an open batch file promises of its data, after comparing all else in it.

    Raises:
        DamagedBatch: it is not the expected batch's; MissingBatch: the file ended early.
        OSError: it can't be read.
    """
    raw = os.pread(descriptor, DATA_OFFSET, 0)
    if len(raw) < DATA_OFFSET:
        raise MissingBatch("the file ended early")
    return _check_header(raw, expect_identity, expect_lease, layout)


def check_sum(found: str, promised: str) -> None:
    """Raise DamagedBatch where a batch's data are not those of its writer."""
    if found != promised:
        raise DamagedBatch(f"its checksum is {found}, its header promises {promised}")
