"""Reads a batch file's data into an accelerator's memory: by page-locked memory, by a mapping, or directly.

The data are verified in that memory, whichever way they came (`ddlp.transfer.gpu_transfer`).
"""

from __future__ import annotations

import mmap
import os
import queue
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.errors import MissingBatch
from ddlp.transfer.device_stream import DeviceStream, StreamEvent

if TYPE_CHECKING:
    from ddlp.transfer.gds.reader import GdsReader

__all__ = ["GpuDirectReader", "MappedReader", "PinnedReader", "FileReader"]

READERS = 16
BLOCK_BYTES = 4 << 20


class FileReader(Protocol):
    """Reads the data of batch files. Any thread may use it."""

    name: str

    @property
    def trouble(self) -> str:
        """Why it is slow, to be told after its name; empty if no reason is known."""

    def prepare(self, buffer: Tensor) -> None:
        """Prepare for many reads into this uint8 tensor on the device."""

    def forget(self, buffer: Tensor) -> None:
        """Undo `prepare`: nothing is read into this tensor any more."""

    def read(self, path: Path, descriptor: int, buffer: Tensor, size: int) -> object:
        """Read ``size`` bytes of an open batch file's data to the buffer's beginning. On return that is done, or on the stream.

        Returns:
            What must be kept until the stream has done it.

        Raises:
            MissingBatch: the file ended early.
            OSError: it can't be read.
        """

    def close(self) -> None:
        """Free what the reader holds. Nothing may be read any more."""


class PinnedReader:
    """Threads read into page-locked blocks. Each block is copied to the device while others are read.

    Args:
        stream: of the device.
        readers: how many threads, and blocks, there are.
        block_bytes: the size of a block.
    """

    name = "pinned"
    trouble = ""

    def __init__(self, stream: DeviceStream, readers: int = READERS, block_bytes: int = BLOCK_BYTES) -> None:
        self._stream, self._block_bytes = stream, block_bytes
        self._blocks: queue.SimpleQueue[tuple[Tensor, StreamEvent | None]] = queue.SimpleQueue()
        for _ in range(readers):
            self._blocks.put((torch.empty(block_bytes, dtype=torch.uint8, pin_memory=stream.pinned), None))
        self._readers = ThreadPoolExecutor(readers, "ddlp-read")

    def prepare(self, buffer: Tensor) -> None:
        """As `FileReader`."""

    forget = prepare

    def read(self, path: Path, descriptor: int, buffer: Tensor, size: int) -> object:
        """As `FileReader`."""
        parts = [
            self._readers.submit(self._part, descriptor, start, buffer[start : min(start + self._block_bytes, size)])
            for start in range(0, size, self._block_bytes)
        ]
        wait(parts)  # for all, even if one has failed: they write to the buffer
        for part in parts:
            part.result()
        return None

    def _part(self, descriptor: int, start: int, place: Tensor) -> None:
        block, event = self._blocks.get()
        try:
            if event is not None:
                event.wait()  # it is still being copied
            memory = block[: len(place)]
            _read_all(descriptor, memoryview(memory.numpy()), DATA_OFFSET + start)
            with self._stream.work():
                place.copy_(memory, non_blocking=True)
                event = self._stream.event()
        finally:
            self._blocks.put((block, event))

    def close(self) -> None:
        """As `FileReader`."""
        self._readers.shutdown()


def _read_all(descriptor: int, place: memoryview, offset: int) -> None:
    done = 0
    while done < len(place):
        count = os.preadv(descriptor, [place[done:]], offset + done)
        if count == 0:
            raise MissingBatch("the file ended early")
        done += count


class MappedReader:
    """The file is mapped, and the driver copies from the page cache through its own page-locked memory.

    It is used only where `ddlp.transfer.mapped_batch` lets files be mapped: if a mapped file is cut short, or a network file
    system loses it, the process ends (SIGBUS).
    """

    name = "mmap"
    trouble = ""

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream

    def prepare(self, buffer: Tensor) -> None:
        """As `FileReader`."""

    forget = prepare

    def read(self, path: Path, descriptor: int, buffer: Tensor, size: int) -> object:
        """As `FileReader`."""
        # Private and writable, as torch wants its memory. With MAP_POPULATE it would be copied at once, page by page.
        mapping = mmap.mmap(descriptor, DATA_OFFSET + size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        data = torch.frombuffer(mapping, dtype=torch.uint8, offset=DATA_OFFSET, count=size)
        with self._stream.work():
            buffer[:size].copy_(data, non_blocking=True)
        return data

    def close(self) -> None:
        """As `FileReader`."""


class GpuDirectReader:
    """Reads past the host: the SSD's controller writes into the GPU's memory (GPUDirect Storage)."""

    def __init__(self, reader: GdsReader) -> None:
        self._reader = reader
        self.name = "gds" if reader.through == "cufile" else "gds: kvikio without cuFile"

    @property
    def trouble(self) -> str:
        """As `FileReader`."""
        why = self._reader.not_registered
        return f"; slower than it could be, since cuFile could not register the memory ({why})" if why else ""

    def prepare(self, buffer: Tensor) -> None:
        """As `FileReader`."""
        self._reader.register(buffer)

    def forget(self, buffer: Tensor) -> None:
        """As `FileReader`."""
        self._reader.deregister(buffer)

    def read(self, path: Path, descriptor: int, buffer: Tensor, size: int) -> object:
        """As `FileReader`."""
        if self._reader.read(path, buffer, DATA_OFFSET, size) < size:
            raise MissingBatch("the file ended early")
        return None

    def close(self) -> None:
        """As `FileReader`."""
        self._reader.close()
