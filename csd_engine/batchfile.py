"""The batch file: laid out, filled in place, published under its name, verified when read.

A safetensors file whose header is padded with spaces so that data begin at byte 4096, for aligned direct reads:

    bytes 0..8     header length, little-endian uint64 (4088)
    bytes 8..4096  JSON header, then spaces: images U8 [batch, height, width, channels] first, then, where the pipeline
                   has masks, boxes I32 [batch, boxes, 4]; __metadata__ holds format, identity, lease and checksum
    bytes 4096..   images, then boxes, without a gap

Until published its name ends in `.part`. Then it never changes, and none is renamed over another one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from csd_engine.checksum import BLOCK_BYTES, Checksum
from csd_engine.errors import DamagedBatch, EngineError, SpoolError, SpoolFull

__all__ = ["Batch", "BatchWriter", "Layout", "file_name", "identity", "read_batch"]

DATA_OFFSET = 4096
FORMAT = "ddlp-batch-1"
PART_SUFFIX = ".part"

_BOX_BYTES = 16  # four int32
_READ_BYTES = 4 * BLOCK_BYTES  # stays in a core's second-level cache between the read and its checksum
_ZEROS_BYTES = 1 << 20  # one write where a file system cannot allocate
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Layout:
    """Shape of a batch: uint8 images (batch, height, width, channels) and int32 boxes (batch, boxes, 4)."""

    batch: int
    height: int
    width: int
    channels: int
    boxes: int = 0

    def __post_init__(self) -> None:
        limits = (("batch", 1, 1 << 24), ("height", 1, 1 << 16), ("width", 1, 1 << 16), ("channels", 1, 4))
        for name, low, high in limits + (("boxes", 0, 64),):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise EngineError(f"layout: {name} is {value!r}; it must be an integer from {low} to {high}.")

    @property
    def row_bytes(self) -> int:
        """Bytes of one image."""
        return self.height * self.width * self.channels

    @property
    def image_bytes(self) -> int:
        """Bytes of all images."""
        return self.batch * self.row_bytes

    @property
    def data_bytes(self) -> int:
        """Bytes of images and boxes."""
        return self.image_bytes + self.batch * self.boxes * _BOX_BYTES

    @property
    def file_bytes(self) -> int:
        """Bytes of the batch file."""
        return DATA_OFFSET + self.data_bytes

    @property
    def image_shape(self) -> Tuple[int, int, int, int]:
        """(batch, height, width, channels)."""
        return (self.batch, self.height, self.width, self.channels)

    def to_data(self) -> Dict[str, int]:
        """Return plain data for JSON."""
        return {name: getattr(self, name) for name in ("batch", "height", "width", "channels", "boxes")}

    @staticmethod
    def parse(data: Any) -> "Layout":
        """Make a layout from `to_data`'s result.

        Raises:
            EngineError: a field is missing, unknown or out of range.
        """
        names = ["batch", "boxes", "channels", "height", "width"]
        if not isinstance(data, dict) or sorted(data) != names:
            raise EngineError(f"layout: {data!r:.200} is not an object with exactly the fields {names}.")
        return Layout(**data)


class Batch(NamedTuple):
    """A verified batch: images uint8 (batch, height, width, channels); boxes int32 (batch, boxes, 4) or None."""

    images: np.ndarray
    boxes: Optional[np.ndarray]


def identity(
    pipeline_digest: str, dataset_fingerprint: str, seed: int, epoch: int, items: Sequence[Tuple[int, int]]
) -> str:
    """Return the batch's identity: 32 hex digits, blake2b-128 over all that decides its content.

    Args:
        pipeline_digest: 32 hex digits.
        dataset_fingerprint: 32 hex digits.
        seed: any integer.
        epoch: any integer.
        items: ordered (source index, occurrence) pairs, both from 0 to 2**63 - 1.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"ddlp batch")
    digest.update(f"{pipeline_digest} {dataset_fingerprint} {int(seed)} {int(epoch)} {len(items)}\n".encode("ascii"))
    digest.update(np.asarray(items, dtype="<i8").reshape(-1, 2).tobytes())
    return digest.hexdigest()


def file_name(batch_identity: str, lease: int) -> str:
    """Return the name of a published batch file.

    Raises:
        EngineError: the identity is not 32 hex digits, or the lease's number is negative.
    """
    if len(batch_identity) != 32 or not set(batch_identity) <= set("0123456789abcdef"):
        raise EngineError(f"batch identity {batch_identity!r:.80} is not 32 lower-case hex digits.")
    if not 0 <= lease < 1 << 63:
        raise EngineError(f"lease {lease!r} is not a number from 0 to 2**63 - 1.")
    return f"{batch_identity}.{lease}.safetensors"


def _header(layout: Layout, batch_identity: str, lease: int, checksum: str) -> bytes:
    """Return the file's first DATA_OFFSET bytes. One spelling only, so a reader can compare bytes."""
    tensors: Dict[str, Any] = {
        "__metadata__": {"format": FORMAT, "identity": batch_identity, "lease": str(lease), "checksum": checksum},
        "images": {"dtype": "U8", "shape": list(layout.image_shape), "data_offsets": [0, layout.image_bytes]},
    }
    if layout.boxes:
        tensors["boxes"] = {
            "dtype": "I32",
            "shape": [layout.batch, layout.boxes, 4],
            "data_offsets": [layout.image_bytes, layout.data_bytes],
        }
    text = json.dumps(tensors, separators=(",", ":")).encode("ascii")
    length = DATA_OFFSET - 8
    return length.to_bytes(8, "little") + text.ljust(length)


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
        layout = self.layout
        if row != self._row or row >= layout.batch:
            raise ValueError(f"row {row} of {layout.batch} came, {self._row} is next")
        if image.shape != (layout.height, layout.width, layout.channels) or image.dtype != np.uint8:
            raise ValueError(f"image {image.shape} {image.dtype} is not {layout.image_shape[1:]} uint8")
        if layout.boxes:
            if boxes is None or boxes.shape != (layout.boxes, 4):
                raise ValueError(f"boxes {None if boxes is None else boxes.shape} are not ({layout.boxes}, 4)")
            self._boxes += boxes.astype("<i4").tobytes()
        data = memoryview(np.ascontiguousarray(image).data).cast("B")
        try:
            _pwrite(self._descriptor, data, DATA_OFFSET + row * layout.row_bytes)
        except OSError as error:
            raise self._failed(error) from error
        self._checksum.update(data)
        self._row += 1

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
            header = _header(layout, self._identity, self._lease, self._checksum.hexdigest())
            _pwrite(self._descriptor, header, 0)
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


def _read_into(descriptor: int, view: memoryview, checksum: Optional[Checksum]) -> None:
    """Fill `view` from the file's position, feeding the checksum while each piece is still in the cache."""
    position = 0
    while position < len(view):
        piece = view[position : min(position + _READ_BYTES, len(view))]
        filled = 0
        while filled < len(piece):
            count = os.readv(descriptor, [piece[filled:]])
            filled += count
            if count == 0:
                raise DamagedBatch("the file ended early")
        if checksum is not None:
            checksum.update(piece)
        position += filled


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
        same = raw == _header(layout, expect_identity, expect_lease, checksum)
    except UnicodeEncodeError:
        same = False
    if not same:
        raise DamagedBatch("its header does not describe the expected tensors")
    return checksum


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
        DamagedBatch: the file is missing, unreadable or not the expected one; `images` then holds garbage.
        ValueError: `images` has the wrong type or size.

    Notes:
        Pieces of 256 KiB are read and summed one after another, so the bytes cross the memory bus once.
    """
    if images is None:
        images = np.empty(layout.image_shape, dtype=np.uint8)
    elif images.dtype != np.uint8 or images.size != layout.image_bytes or not images.flags.c_contiguous:
        raise ValueError(f"images must be a C-contiguous uint8 array of {layout.image_bytes} bytes")
    boxes = np.empty((layout.batch, layout.boxes, 4), dtype="<i4") if layout.boxes else None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedBatch("it is not a regular file")
            if status.st_size != layout.file_bytes:
                raise DamagedBatch(f"it has {status.st_size} bytes, expected were {layout.file_bytes}")
            header = bytearray(DATA_OFFSET)
            _read_into(descriptor, memoryview(header), None)
            promised = _check_header(bytes(header), expect_identity, expect_lease, layout)
            checksum = Checksum()
            _read_into(descriptor, images.reshape(-1).data, checksum)
            if boxes is not None:
                _read_into(descriptor, boxes.reshape(-1).data.cast("B"), checksum)
        finally:
            os.close(descriptor)
        if checksum.hexdigest() != promised:
            raise DamagedBatch(f"its checksum is {checksum.hexdigest()}, its header promises {promised}")
    except (OSError, DamagedBatch) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise DamagedBatch(
            f"batch file {os.fspath(path)} cannot be used: {why}. The batch is prepared again elsewhere; "
            "if this repeats, check the spool's file system and disk."
        ) from error
    return Batch(images.reshape(layout.image_shape), None if boxes is None else boxes.astype(np.int32, copy=False))
