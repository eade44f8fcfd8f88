"""Brings batches into an accelerator's memory: copied, verified and finished on a stream beside the training's.

The callers are workers that made a batch, and fetchers that bring a device's batch. The training thread only orders its stream
after a batch's event. The memory that files are read into is used again and again, and is never handed out: the epilogue runs
here, and writes the result into other memory.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from csd_engine.batchfile.checksum import BLOCK_BYTES, digest
from csd_engine.batchfile.reader import Layout, check_sum, open_batch, promised_checksum
from ddlp.transfer.device_checksum import padded, sum_blocks
from ddlp.transfer.device_stream import DeviceStream, StreamEvent
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.file_readers import FileReader
from ddlp.transfer.prepared_batch import BatchState, PreparedBatch

__all__ = ["Fetched", "FileTransfer", "GpuTransfer"]

_ALIGNED = 4096  # bytes: direct reads need it
_TRIALS = 3  # reads of one file by each way, before one is chosen

Sample = tuple[np.ndarray, np.ndarray | None]
"""A sample's bytes, uint8 (height, width, channels), and its boxes, int32 (masks, 4)."""
Fetched = tuple[PreparedBatch, np.ndarray | None, Sample | None]
"""A batch that a device has made, its bad rows as `csd_engine.batchfile.reader.Batch` has them, and the sample asked for."""


class GpuTransfer:
    """Brings batches to a device. Any thread may use it. The epochs of a loader share it.

    Args:
        stream: of the device.
        open_ways: makes the readers for a spool's directory. It gets the directory, and whether files there may be mapped
            (`ddlp.transfer.mapped_batch`). Raises DDLPError if there is no reader.
    """

    def __init__(self, stream: DeviceStream, open_ways: Callable[[Path, bool], Sequence[FileReader]]) -> None:
        self.stream, self._open_ways = stream, open_ways
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._files: dict[tuple[int, bool], FileTransfer] = {}
        self._under_way: deque[tuple[StreamEvent, object]] = deque()  # memory that is still being copied

    @property
    def pinned(self) -> bool:
        """Whether batches should be made in page-locked memory."""
        return self.stream.pinned

    def open(self, directory: Path, mapped: bool) -> FileTransfer:
        """Return the transfer for files of a spool's directory. ``mapped``: they may be mapped.

        All directories on a file system share one, since an engine that is started again has another directory there.

        Raises:
            DDLPError: they can't be read as the user wants it.
            OSError: the directory is not there.
        """
        kind = os.stat(directory).st_dev, mapped
        with self._opening:
            if kind not in self._files:
                self._files[kind] = FileTransfer(self.stream, self._open_ways(directory, mapped))
            return self._files[kind]

    def bring(self, epilogue: Epilogue, images: Tensor, boxes: Tensor | None) -> PreparedBatch:
        """Put the copy and the epilogue of a batch on the stream.

        The batch is as `Epilogue` takes it, in this process's memory or on the device. Returns at once. Page-locked memory is
        kept until it has been copied. Images on the device must have been allocated on this stream, and nobody may write there
        any more.

        Raises `ddlp.transfer.device_stream.NoRoom` if the device has no room. The batch is unchanged then.
        """
        try:
            with self.stream.work():
                result = epilogue(images, boxes, self.stream.device)
                event = self.stream.event()
        except BaseException:
            self.stream.event().wait()  # a copy may still be under way
            raise
        with self._lock:
            while self._under_way and self._under_way[0][0].passed():
                self._under_way.popleft()
            self._under_way.append((event, (images, boxes)))
        return PreparedBatch(result, None, BatchState.ON_DEVICE, event)

    def put_rows(
        self, epilogue: Epilogue, batch: PreparedBatch, rows: Sequence[int], images: Tensor, boxes: Tensor | None
    ) -> None:
        """Write other samples into some rows of a finished batch that nobody uses yet. Blocks until that is done.

        The samples are as `Epilogue` takes them, in this process's memory.
        """
        try:
            with self.stream.work():
                batch.images[torch.tensor(rows, device=self.stream.device)] = epilogue(images, boxes, self.stream.device)
        finally:
            self.stream.event().wait()

    def settle(self) -> None:
        """Wait until no copy is under way. The memory of batches that were brought is free then."""
        with self._lock:
            marks, self._under_way = self._under_way, deque()
        for event, _ in marks:
            event.wait()

    def close(self) -> None:
        """Free all memory and threads. Nothing may be brought any more."""
        self.settle()
        with self._opening:
            files, self._files = self._files, {}
        for transfer in files.values():
            transfer.close()


class FileTransfer:
    """Brings batch files of one file system to a device. Any thread may use it. Made by `GpuTransfer.open`.

    Args:
        stream: of the device.
        ways: the readers. A short measurement on the first file finds the fastest one; the others are closed.
    """

    def __init__(self, stream: DeviceStream, ways: Sequence[FileReader]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._choosing = threading.Lock()
        self._ways = list(ways)  # only one after the choice
        self._why = ""  # why that one was chosen
        self._slots: list[_Slot] = []  # not in use
        self._closed = False

    @property
    def remark(self) -> str:
        """How batches come, what was measured, and why it is slow; empty before the choice."""
        ways = self._ways
        return f"batches come by transfer={ways[0].name!r}{self._why}{ways[0].trouble}" if len(ways) == 1 else ""

    def read(
        self, epilogue: Epilogue, path: Path, identity: str, lease: int, layout: Layout, sample: int | None = None
    ) -> Fetched:
        """Read a batch from its file, verify it on the device and finish it there. Blocks until that is done.

        Args:
            epilogue: of the pipeline.
            path, identity, lease, layout: as `csd_engine.batchfile.reader.read_batch`.
            sample: bring this sample's bytes back as well.

        Raises:
            MissingBatch, DamagedBatch: as `read_batch`.
        """
        with open_batch(path, layout) as descriptor:
            promised = promised_checksum(descriptor, identity, lease, layout)
            way = self._chosen(path, descriptor, layout)
            slot = self._take(way, layout.data_bytes)
            try:
                kept = way.read(path, descriptor, slot.data, layout.data_bytes)
                with self._stream.work():
                    images, bad_rows, back = self._finish(epilogue, slot, layout, sample)
                    event = self._stream.event()
                event.wait()
                del kept
                check_sum(digest(slot.sum.numpy().view(np.uint32)), promised)
            except BaseException:
                self._stream.event().wait()  # work on the stream may still use the slot, or what was kept
                raise
            finally:
                self._give_back(slot)
        return PreparedBatch(images, None, BatchState.ON_DEVICE, event), bad_rows, back

    def _finish(
        self, epilogue: Epilogue, slot: _Slot, layout: Layout, sample: int | None
    ) -> tuple[Tensor, np.ndarray | None, Sample | None]:
        """Compute the sum and run the epilogue, on the stream. The result is handed out only if the sum is right."""
        size = layout.data_bytes
        whole = slot.data[: padded(size)]
        whole[size:].zero_()
        slot.sum.copy_(sum_blocks(whole), non_blocking=True)
        images = whole[: layout.image_bytes].view(layout.image_shape)
        boxes = None
        if layout.boxes:
            # cloned: numbers of four bytes must be aligned
            boxes = whole[layout.image_bytes : layout.bad_offset].clone().view(torch.int32).view(layout.batch, layout.boxes, 4)
        result = epilogue(images, boxes)
        if 0 <= result.data_ptr() - slot.data.data_ptr() < len(slot.data):
            result = result.clone()  # it is the slot's own memory
        back = None
        if sample is not None:
            # A copy, even if the device is this CPU: another batch will use the slot. The boxes were cloned.
            image = images[sample].to("cpu", copy=True).numpy()
            back = image, None if boxes is None else boxes[sample].cpu().numpy()
        bad_rows = None
        if layout.bad_rows:
            bad_rows = whole[layout.bad_offset : size].to("cpu", copy=True).numpy()
        return result, bad_rows, back

    def _take(self, way: FileReader, size: int) -> _Slot:
        with self._lock:
            slot = self._slots.pop() if self._slots else None
        if slot is None or len(slot.data) < padded(size):
            if slot is not None:
                self._forget(way, slot)
            slot = _Slot.make(padded(size), self._stream)
            self._prepare(way, slot)
        return slot

    def _give_back(self, slot: _Slot) -> None:
        with self._lock:
            if not self._closed:
                self._slots.append(slot)

    def _chosen(self, path: Path, descriptor: int, layout: Layout) -> FileReader:
        with self._choosing:
            if len(self._ways) > 1:
                seconds = self._measured(path, descriptor, layout)
                best = min(self._ways, key=lambda way: seconds[way.name])
                for way in self._ways:
                    if way is not best:
                        way.close()  # before its memory is freed
                rates = ", ".join(
                    f"{name} {layout.data_bytes / s / 1e9:.1f} GB/s" if s < math.inf else f"{name} failed"
                    for name, s in seconds.items()
                )
                self._why = f", the fastest for the first one ({rates})"
                self._ways = [best]
            return self._ways[0]

    def _measured(self, path: Path, descriptor: int, layout: Layout) -> dict[str, float]:
        """Seconds of each way's fastest read of this file. The ways take turns."""
        seconds: dict[str, float] = {}
        slots = [_Slot.make(padded(layout.data_bytes), self._stream) for _ in self._ways]
        pairs = list(zip(self._ways, slots, strict=True))
        try:
            for way, slot in pairs:
                self._prepare(way, slot)
            for way, slot in pairs * _TRIALS:
                began = time.monotonic()
                try:
                    kept = way.read(path, descriptor, slot.data, layout.data_bytes)
                except OSError:
                    seconds[way.name] = math.inf  # if all fail, the next read says what is wrong
                    continue
                self._stream.event().wait()
                del kept
                seconds[way.name] = min(seconds.get(way.name, math.inf), time.monotonic() - began)
        finally:
            self._stream.event().wait()
            for way, slot in pairs:
                self._forget(way, slot)
        return seconds

    def _prepare(self, way: FileReader, slot: _Slot) -> None:
        with self._stream.work():  # memory is registered with this thread's current GPU
            way.prepare(slot.data)

    def _forget(self, way: FileReader, slot: _Slot) -> None:
        with self._stream.work():
            way.forget(slot.data)

    def close(self) -> None:
        """Free all memory and threads. Nothing may be read any more."""
        with self._lock:
            self._closed = True
            self._slots.clear()
        with self._choosing:
            ways, self._ways = self._ways, []
        for way in ways:
            way.close()


@dataclass(frozen=True)
class _Slot:
    """Memory for one file at a time. ``data``: uint8 on the device; ``sum``: int32 on the host, the sum of its blocks."""

    data: Tensor
    sum: Tensor

    @staticmethod
    def make(size: int, stream: DeviceStream) -> _Slot:
        """Memory that no work on the stream uses any more: a direct read does not wait for the stream."""
        with stream.work():
            memory = torch.empty(size + _ALIGNED, dtype=torch.uint8, device=stream.device)
        stream.event().wait()
        begin = -memory.data_ptr() % _ALIGNED
        return _Slot(
            memory[begin : begin + size], torch.empty(BLOCK_BYTES // 4, dtype=torch.int32, pin_memory=stream.pinned)
        )
