"""Brings a published batch into memory: from the spool if host and device share one, else over the engine's socket."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from csd_engine.batchfile.reader import Batch, BatchReceiver, Layout, read_batch
from csd_engine.errors import DamagedBatch, EngineGone, MissingBatch
from ddlp.sources.engine.link import JobHandle
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.gpu_transfer import Fetched, FileTransfer
from ddlp.transfer.mapped_batch import map_batch
from ddlp.transfer.prepared_batch import PreparedBatch

__all__ = ["BatchFetcher", "in_memory"]

T = TypeVar("T")

_PAUSES_S = (0.0, 0.02, 0.08, 0.2)  # before each further try; after these the socket is faster
_MAPPED_BYTES = 512 << 10  # a smaller file is copied faster than it is mapped, and by one call
_LATE = 3  # after so many late files in a row, no file is waited for any more


class BatchFetcher:
    """Fetches the batches of one job. Any thread may read.

    A network file system may show a new file late. NFS may take up to a minute, since it remembers that there was no such file.
    The fetcher looks for such a file for a third of a second, and then fetches the batch over the socket, so that the device's
    work is not lost.

    Args:
        handle: the open job.
        shared: whether this host sees the spool.
        mapped: whether the spool's files may be mapped instead of read, see `ddlp.transfer.mapped_batch`.
        say: called with a remark when files come late, with the count so far, and when the way into the GPU is chosen.
        wanted: tells whether a lease's batch is still of use. If the host was first, the file has been removed and is not late.
        gpu_transfer: brings files into a GPU's memory for `land`; None without a GPU, or if this host does not see the spool.
    """

    def __init__(
        self,
        handle: JobHandle,
        shared: bool,
        say: Callable[[str], None],
        mapped: bool = False,
        wanted: Callable[[int], bool] = lambda lease: True,
        gpu_transfer: FileTransfer | None = None,
    ) -> None:
        self._handle = handle
        self._shared = shared
        self._mapped = mapped
        self._say = say
        self._wanted = wanted
        self._gpu_transfer = gpu_transfer
        self._lock = threading.Lock()
        self._late = 0  # files in a row that had to be fetched over the socket
        self._late_ever = 0
        self._landing_remark = ""  # the last one that was told
        self._sealed_remark = ""

    def read(
        self, path: Path, identity: str, lease: int, layout: Layout, memory: Callable[[], np.ndarray]
    ) -> Batch:
        """Return the verified batch. Its images are in ``memory()``, or in the mapped file.

        Raises:
            DamagedBatch: the file is missing, or is not the expected batch.
            EngineGone: the engine was lost, or the job was closed, during the fetch.
        """
        return self._fetch(
            path,
            lease,
            lambda: self._from_file(path, identity, lease, layout, memory),
            lambda: self._over_the_socket(identity, lease, layout, memory()),
        )

    def _from_file(
        self, path: Path, identity: str, lease: int, layout: Layout, memory: Callable[[], np.ndarray]
    ) -> Batch:
        mapped = self._mapped and layout.file_bytes >= _MAPPED_BYTES
        mapped_batch = map_batch(path, identity, lease, layout) if mapped else None
        return read_batch(path, identity, lease, layout, memory()) if mapped_batch is None else mapped_batch

    def land(
        self,
        epilogue: Epilogue,
        path: Path,
        identity: str,
        lease: int,
        layout: Layout,
        sample: int | None,
        memory: Callable[[], np.ndarray],
    ) -> Fetched:
        """Return the verified batch as `FileTransfer.read` does; as bytes in ``memory()``, if it came over the socket.

        Raises as `read`.
        """

        def from_file() -> Fetched:
            assert self._gpu_transfer is not None  # this host sees the spool
            return self._gpu_transfer.read(epilogue, path, identity, lease, layout, sample)

        batch = self._fetch(
            path,
            lease,
            from_file,
            lambda: in_memory(self._over_the_socket(identity, lease, layout, memory()), sample),
        )
        if self._gpu_transfer is not None and (remark := self._gpu_transfer.remark) != self._landing_remark:
            self._landing_remark = remark
            self._say(remark)
        return batch

    def _fetch(self, path: Path, lease: int, from_file: Callable[[], T], from_socket: Callable[[], T]) -> T:
        if not self._shared:
            return from_socket()
        for pause_s in (None, *_PAUSES_S):
            if pause_s is not None:
                if self._late >= _LATE or not self._handle.open:
                    break
                time.sleep(pause_s)
                _refresh(path.parent)
            try:
                batch = from_file()
            except MissingBatch as error:
                missing = error
                if not self._wanted(lease):
                    raise
            else:
                self._late = 0
                return batch
        try:
            late = from_socket()
        except (DamagedBatch, EngineGone):
            raise missing from missing.__cause__  # it is not late, it is lost
        with self._lock:
            self._late += 1
            self._late_ever += 1
            self._say(
                f"the spool's file system shows new files late: {self._late_ever} batches were fetched over the socket "
                "instead; transfer='stream' fetches all so"
            )
        return late

    def _over_the_socket(self, identity: str, lease: int, layout: Layout, images: np.ndarray) -> Batch:
        receiver = BatchReceiver(identity, lease, layout, images)
        try:
            if self._handle.fetch_sealed(lease, receiver, layout.file_bytes):
                return receiver.batch()
            if (remark := self._handle.sealed_remark) != self._sealed_remark:
                self._sealed_remark = remark
                self._say(remark)
            receiver = BatchReceiver(identity, lease, layout, images)
            with contextlib.closing(self._handle.parts(lease, layout.file_bytes)) as parts:  # type: ignore[type-var]
                for part in parts:
                    receiver.take(part)
            return receiver.batch()
        except DamagedBatch as error:
            raise DamagedBatch(
                f"the batch of lease {lease}, sent by the engine, cannot be used: {error}. The batch is prepared again "
                "elsewhere; if this repeats, check the disk of the device's spool."
            ) from error


def in_memory(batch: Batch, sample: int | None) -> Fetched:
    """Return a batch of bytes in this process's memory, its bad rows, and the sample asked for, which stays a part of it."""
    images, boxes, bad_rows = batch
    its = None if sample is None else (images[sample], None if boxes is None else boxes[sample])
    return PreparedBatch(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes)), bad_rows, its


def _refresh(directory: Path) -> None:
    """Have a network file system's client ask its server what is in the directory."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.listdir(descriptor)
        finally:
            os.close(descriptor)
