"""Page-locked memory of the pinned way: used again when the device has copied it, and no more written to after a failure."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.errors import MissingBatch
from ddlp.transfer import file_readers
from ddlp.transfer.device_stream import DeviceStream
from ddlp.transfer.file_readers import PinnedReader

SIZE = 20_000
PLACES = file_readers._PLACES


class Behind(DeviceStream):
    """A device that is late: it has copied nothing before `caught_up` is set."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.caught_up = threading.Event()

    def event(self) -> Any:
        return self

    def wait(self) -> None:
        assert self.caught_up.wait(30)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "batch"
    path.write_bytes(bytes(DATA_OFFSET) + bytes(k % 251 for k in range(SIZE)))
    found = os.open(path, os.O_RDONLY)
    yield found
    os.close(found)


def read(reader: PinnedReader, descriptor: int) -> Tensor:
    buffer = torch.zeros(SIZE, dtype=torch.uint8)
    reader.read(Path("batch"), descriptor, buffer, SIZE)
    return buffer


def test_memory_is_used_again_when_the_device_has_copied_it(descriptor: int) -> None:
    stream = Behind()
    reader = PinnedReader(stream, readers=2, block_bytes=3000)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(PLACES):
            assert read(reader, descriptor).tolist() == [k % 251 for k in range(SIZE)]
        another = thread.submit(read, reader, descriptor)
        time.sleep(0.3)
        assert not another.done()
        stream.caught_up.set()
        assert another.result(30).tolist() == [k % 251 for k in range(SIZE)]
    reader.close()


def test_a_failure_is_told_when_nobody_writes_to_the_memory_any_more(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = [], []

    def slow(descriptor: int, place: memoryview, offset: int) -> None:
        if offset == DATA_OFFSET:
            raise MissingBatch("the file ended early")
        begun.append(offset)
        time.sleep(0.3)
        over.append(offset)

    monkeypatch.setattr(file_readers, "_read_all", slow)
    reader = PinnedReader(DeviceStream(torch.device("cpu")), readers=3, block_bytes=5000)
    for _ in range(PLACES + 1):  # the places come back too
        with pytest.raises(MissingBatch, match="the file ended early"):
            read(reader, descriptor)
        assert len(over) == len(begun) > 0
    reader.close()
