"""Writes a batch file in place, and publishes it under its name. `csd_engine.batchfile.reader` says what is in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Optional

import numpy as np

from csd_engine.batchfile.checksum import Checksum
from csd_engine.batchfile.layout import DATA_OFFSET, Layout, file_name, header
from csd_engine.batchfile.publishing import PART_SUFFIX, is_there, publish_name, pwrite
from csd_engine.errors import SpoolError, SpoolFull
from csd_engine.machine.directory import Directory

__all__ = ["BatchWriter"]

_ZEROS_BYTES = 1 << 20  # of one write, on a file system that cannot allocate
_FULL = {errno.ENOSPC, errno.EDQUOT}


def _reserve(descriptor: int, size: int) -> None:
    """Allocate the file's blocks now, so that a full disk is noticed before any work is done."""
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
        pwrite(descriptor, memoryview(zeros)[: min(_ZEROS_BYTES, size - offset)], offset)


class BatchWriter:
    """Fills one batch file row by row; its memory does not grow with the images.

    Args:
        directory: the job's below the spool. It stays open for as long as this object.
        batch_identity: 32 hex digits.
        lease: the lease's number.
        layout: shape of the batch.
        begun: the `.part` file is there already, with any content and size.

    Raises:
        SpoolFull: the file system has no room for the whole file; nothing is left behind.
        SpoolError: the directory cannot be written, or the same lease's file is there already.
    """

    def __init__(
        self,
        directory: Directory,
        batch_identity: str,
        lease: int,
        layout: Layout,
        begun: bool = False,
    ):
        self.layout = layout
        self._identity = batch_identity
        self._lease = lease
        self._directory = directory
        self._final = file_name(batch_identity, lease)
        self._path = os.path.join(directory.path, self._final)
        self._part = self._final + PART_SUFFIX
        self._checksum = Checksum()
        self._boxes = bytearray()
        self._bad_rows = bytearray(layout.batch if layout.bad_rows else 0)
        self._row = 0
        self._descriptor = -1
        self._created = False
        try:
            if is_there(directory, self._final):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path)
            self._descriptor = directory.open(self._part, os.O_RDWR | (0 if begun else os.O_CREAT | os.O_EXCL))
            self._created = True
            if begun:
                os.ftruncate(self._descriptor, layout.file_bytes)
                pwrite(self._descriptor, bytes(DATA_OFFSET), 0)  # the former batch's header must not stand over these rows
            _reserve(self._descriptor, layout.file_bytes)
        except OSError as error:
            raise self._failed(error) from error

    @property
    def row(self) -> int:
        """Rows written so far; the next one to write."""
        return self._row

    def write_rows(self, row: int, images: np.ndarray, boxes: Optional[np.ndarray] = None) -> None:
        """Write rows from `row` on, which come in order: images uint8 (n, height, width, channels), boxes int32 (n, boxes, 4).

        Raises:
            SpoolFull, SpoolError: the write failed; the part file is removed.
            ValueError: out of order, or a shape or type that is not the layout's.
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
            pwrite(self._descriptor, data, DATA_OFFSET + row * layout.row_bytes)
        except OSError as error:
            raise self._failed(error) from error
        self._checksum.update(data)
        self._row += count

    def mark_bad(self, row: int) -> None:
        """Note that the sample of this row could not be prepared. The layout has `bad_rows`; the row's bytes don't count."""
        self._bad_rows[row] = 1

    def publish(self) -> Path:
        """Write boxes, marks and header and give the complete file its name.

        Raises:
            SpoolFull, SpoolError: the write failed or the name is taken; the part file is removed.
            ValueError: rows are missing.
        """
        layout = self.layout
        if self._row != layout.batch:
            raise ValueError(f"{self._row} of {layout.batch} rows written: the batch is not complete")
        try:
            if behind := self._boxes + self._bad_rows:
                self._checksum.update(memoryview(behind))
                pwrite(self._descriptor, behind, DATA_OFFSET + layout.image_bytes)
            first = header(layout, self._identity, self._lease, self._checksum.hexdigest())
            pwrite(self._descriptor, first, 0)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)  # before it has its name: a network file system writes back at close, and may fail
            publish_name(self._directory, self._part, self._final)
            self._created = False
        except OSError as error:
            raise self._failed(error) from error
        return Path(self._path)

    def abort(self) -> None:
        """Drop the part file. May be called at any time, and again; a published file stays."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        if self._created:  # else the name is another writer's
            self._created = False
            self._directory.unlink(self._part)

    def _failed(self, error: OSError) -> SpoolError:
        self.abort()
        if error.errno in _FULL:
            return SpoolFull(
                f"no room for a batch file of {self.layout.file_bytes} bytes: {error.strerror}, in "
                f"{os.path.dirname(self._path)}. Free space there, lower the quota, or choose another spool."
            )
        return SpoolError(
            f"a batch file cannot be written: {error.strerror or error}, {self._path}. "
            "Check that the spool exists and that its owner may write there."
        )
