"""Reads a batch file's data into an accelerator's memory: by page-locked memory, by a mapping, or directly.

The data are verified in that memory, whichever way they came (`ddlp.transfer.gpu_transfer`).
"""

from __future__ import annotations

import mmap
import os
import queue
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.errors import MissingBatch
from ddlp.transfer.device_stream import DeviceStream, StreamEvent

if TYPE_CHECKING:
    from ddlp.transfer.gds.reader import GdsReader

__all__ = ["GpuDirectReader", "MappedReader", "PinnedReader", "FileReader"]

READERS = 8
BLOCK_BYTES = 4 << 20
_PLACES = 3  # files whose bytes are in page-locked memory: one for each fetcher, and one that is being copied


class FileReader:
    """Reads the data of batch files. Any thread may use it. Each way of reading is a subclass.

    Attributes:
        name: of the way.
    """

    name: str

    @property
    def trouble(self) -> str:
        """Why it is slow, to be told after its name; empty if no reason is known."""
        return ""

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
        raise NotImplementedError

    def close(self) -> None:
        """Free what the reader holds. Nothing may be read any more."""


class PinnedReader(FileReader):
    """Threads read a file's blocks into page-locked memory. One thread copies each block to the device while others are read.

    A file's blocks lie side by side, and only the thread that asked talks to the device: where each reader copied its own block
    and waited for it, the threads stood in each other's way (docs/gpu.md has the figures).

    Args:
        stream: of the device.
        readers: how many threads read.
        block_bytes: the size of a block.
    """

    name = "pinned"

    def __init__(self, stream: DeviceStream, readers: int = READERS, block_bytes: int = BLOCK_BYTES) -> None:
        self._stream, self._block_bytes = stream, block_bytes
        self._places: queue.SimpleQueue[_Place] = queue.SimpleQueue()
        for _ in range(_PLACES):
            self._places.put(_Place(torch.empty(0, dtype=torch.uint8), None))
        self._readers = ThreadPoolExecutor(readers, "ddlp-read")

    def read(self, path: Path, descriptor: int, buffer: Tensor, size: int) -> object:
        """As `FileReader`."""
        place = self._places.get()
        parts: list[Future[None]] = []
        try:
            memory = self._memory(place, size)
            bytes_of = memoryview(memory.numpy())
            blocks = [slice(start, min(start + self._block_bytes, size)) for start in range(0, size, self._block_bytes)]
            for block in blocks:
                parts.append(self._readers.submit(_read_all, descriptor, bytes_of[block], DATA_OFFSET + block.start))
            for block, part in zip(blocks, parts, strict=True):
                part.result()
                with self._stream.work():
                    buffer[block].copy_(memory[block], non_blocking=True)
            return None
        finally:
            wait(parts)  # for all, even if one has failed: they write to this memory
            place.copied = self._stream.event()
            self._places.put(place)

    def _memory(self, place: _Place, size: int) -> Tensor:
        """The place's memory when the device has copied what was there before."""
        if place.copied is not None:
            place.copied.wait()
        if len(place.memory) < size:
            place.memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._stream.pinned)
        return place.memory[:size]

    def close(self) -> None:
        """As `FileReader`."""
        self._readers.shutdown()


@dataclass
class _Place:
    """Page-locked memory of a file. ``copied``: the device has copied all that was read into it; None: nothing was."""

    memory: Tensor
    copied: StreamEvent | None


def _read_all(descriptor: int, place: memoryview, offset: int) -> None:
    done = 0
    while done < len(place):
        count = os.preadv(descriptor, [place[done:]], offset + done)
        if count == 0:
            raise MissingBatch("the file ended early")
        done += count


class MappedReader(FileReader):
    """The file is mapped, and the driver copies from the page cache through its own page-locked memory.

    It is used only where `ddlp.transfer.mapped_batch` lets files be mapped: if a mapped file is cut short, or a network file
    system loses it, the process ends (SIGBUS).
    """

    name = "mmap"

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream

    def read(self, path: Path, descriptor: int, buffer: Tensor, size: int) -> object:
        """As `FileReader`."""
        # Private and writable, as torch wants its memory. With MAP_POPULATE it would be copied at once, page by page.
        mapping = mmap.mmap(descriptor, DATA_OFFSET + size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        data = torch.frombuffer(mapping, dtype=torch.uint8, offset=DATA_OFFSET, count=size)
        with self._stream.work():
            buffer[:size].copy_(data, non_blocking=True)
        return data


class GpuDirectReader(FileReader):
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
