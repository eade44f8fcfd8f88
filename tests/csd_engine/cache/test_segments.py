"""A segment is read as it was written, or refused."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from csd_engine.cache.segments import ENTRY, Head, Sample, SegmentWriter, checksums, open_segment
from csd_engine.data.base import Origin
from csd_engine.errors import DamagedSegment
from csd_engine.machine.directory import Directory

SHELF = "0123456789abcdef" * 2
SIZES = ((3, 5), (64, 48), (1, 1), (17, 200))


def images(channels: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.integers(0, 256, (*size, channels), dtype=np.uint8) for size in SIZES]


def written(directory: Directory, channels: int = 3) -> str:
    writer = SegmentWriter(directory, SHELF, channels, 1 << 20)
    for number, image in enumerate(images(channels)):
        assert writer.keep([Sample(number, Origin(number + 100, number + 7, number + 9), image)], 0.25) == 1
    size = writer.publish()
    assert size == os.stat(os.path.join(directory.path, writer.name)).st_size
    return writer.name


@pytest.mark.parametrize("channels", (1, 3))
def test_it_is_read_as_written(tmp_path: Path, channels: int) -> None:
    directory = Directory(str(tmp_path))
    name = written(directory, channels)
    assert os.listdir(tmp_path) == [name]
    found = open_segment(directory, name, SHELF, channels)
    assert found.head.seconds == 1.0
    for number, (entry, image) in enumerate(zip(found.entries, images(channels), strict=True)):
        told = entry["source"], entry["name"], entry["size"], entry["mtime_ns"]
        assert told == (number, number + 100, number + 7, number + 9)
        assert (entry["height"], entry["width"]) == image.shape[:2]
        assert found.images(found.entries[number : number + 1])[0].tobytes() == image.tobytes()
    found.check()


@pytest.mark.parametrize("size", (1, 8, 1100, 16383))
def test_the_checksum_of_few_bytes_is_that_of_a_block_with_zeros(size: int) -> None:
    few = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    one, other = checksums([few, np.append(few, np.zeros((1 << 14) - size, np.uint8))])
    assert one == other


def test_safetensors_reads_it(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    name = written(Directory(str(tmp_path)))
    found = numpy.load_file(tmp_path / name)
    assert found["entries"].shape == (4, ENTRY.itemsize // 8)
    assert found["pixels"].tobytes().startswith(b"".join(image.tobytes() for image in images()))


def test_no_bit_can_flip_unseen(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    name = written(directory)
    content = (tmp_path / name).read_bytes()
    random = np.random.default_rng(5)
    places = [*range(0, 400, 7), *random.integers(0, len(content), 300).tolist(), len(content) - 1]
    pixels = sum(image.nbytes for image in images())
    for place in places:
        if 4096 + pixels <= place < 4096 + pixels + -pixels % 8:  # the zeros between pixels and entries, which nobody uses
            continue
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        (tmp_path / name).write_bytes(changed)
        with pytest.raises(DamagedSegment):
            open_segment(directory, name, SHELF, 3).check()
            pytest.fail(f"the byte {place}")


@pytest.mark.parametrize("size", (0, 7, 4095, 4096, 5000, -1))
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    directory = Directory(str(tmp_path))
    name = written(directory)
    os.truncate(tmp_path / name, size if size >= 0 else os.stat(tmp_path / name).st_size + 1)
    with pytest.raises(DamagedSegment):
        open_segment(directory, name, SHELF, 3)


@pytest.mark.parametrize(("entries", "pixels"), [(1 << 33, 64), (1 << 33, 1 << 40), (1 << 20, 1 << 20)])
def test_a_file_of_holes_takes_no_memory(tmp_path: Path, entries: int, pixels: int) -> None:
    """Its header promises more entries than any memory has, and its size is right: it is sparse."""
    directory = Directory(str(tmp_path))
    head = Head(SHELF, 3, pixels, entries, 1.0, "0" * 32)
    path = tmp_path / f"{0:016x}.safetensors"
    path.touch(0o600)
    os.truncate(path, head.file_bytes)
    with path.open("r+b") as stream:
        stream.write(head.to_bytes())
    tracemalloc.start()
    try:
        with pytest.raises(DamagedSegment, match="an entry lies outside its pixels"):
            open_segment(directory, path.name, SHELF, 3)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shelf, channels", ((SHELF[::-1], 3), (SHELF, 1)))
def test_anothers_is_refused(tmp_path: Path, shelf: str, channels: int) -> None:
    directory = Directory(str(tmp_path))
    with pytest.raises(DamagedSegment):
        open_segment(directory, written(directory), shelf, channels)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    name = written(directory)
    os.chmod(tmp_path / name, 0o666)
    with pytest.raises(DamagedSegment, match="others"):
        open_segment(directory, name, SHELF, 3)


def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    directory, image = Directory(str(tmp_path)), np.zeros((50, 10, 3), np.uint8)
    writer = SegmentWriter(directory, SHELF, 3, 4096 + 8 + 3 * (1500 + ENTRY.itemsize))
    assert [writer.keep([Sample(k, Origin(k, 1, 1), image)] * 2, 0.0) for k in range(4)] == [2, 1, 0, 0]
    assert writer.publish() <= 4096 + 8 + 3 * (1500 + ENTRY.itemsize)
    assert writer.keep([Sample(9, Origin(9, 1, 1), image)], 0.0) == 0


def test_nothing_is_left_of_an_empty_one_or_of_one_that_is_dropped(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    assert SegmentWriter(directory, SHELF, 3, 1 << 20).publish() == 0
    writer = SegmentWriter(directory, SHELF, 3, 1 << 20)
    writer.keep([Sample(0, Origin(1, 1, 1), np.zeros((5, 5, 3), np.uint8))], 0.0)
    writer.abort()
    assert os.listdir(tmp_path) == []
