"""The batch file: a reader gets what the writer wrote, and rejects everything else."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import subprocess

import numpy as np
import pytest

import csd_engine.batchfile.checksum
from csd_engine.batchfile import reader as batchfile
from csd_engine.batchfile import writer as batchwriter
from csd_engine.batchfile.checksum import BLOCK_BYTES, MULTIPLIER, Checksum
from csd_engine.batchfile.reader import DATA_OFFSET, Layout, file_name, identity, read_batch
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.errors import DamagedBatch, EngineError, SpoolError, SpoolFull
from csd_engine.machine.directory import Directory

NAME = "0123456789abcdef" * 2
LAYOUTS = [Layout(5, 7, 9, 3, 2), Layout(3, 224, 224, 3, 0), Layout(1, 1, 1, 1, 1), Layout(16, 64, 64, 3, 1)]
MARKED = [Layout(5, 7, 9, 3, 2, bad_rows=True), Layout(3, 17, 13, 3, bad_rows=True)]


@pytest.fixture(params=["kernel", "numpy"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(csd_engine.batchfile.checksum, "kernel", lambda: None)
    else:
        request.getfixturevalue("need_kernel")


def fill(directory, layout, lease=4):
    random = np.random.default_rng(1)
    images = random.integers(0, 256, layout.image_shape, dtype=np.uint8)
    boxes = random.integers(-9, 1 << 30, (layout.batch, layout.boxes, 4), dtype=np.int32) if layout.boxes else None
    writer = BatchWriter(Directory(str(directory)), NAME, lease, layout)
    for row in range(layout.batch):
        writer.write_rows(row, images[row : row + 1], None if boxes is None else boxes[row : row + 1])
    if layout.bad_rows:
        writer.mark_bad(1)
    return writer.publish(), images, boxes


@pytest.mark.parametrize("layout", LAYOUTS + MARKED)
def test_round_trip(tmp_path, layout):
    path, images, boxes = fill(tmp_path, layout)
    assert path.name == file_name(NAME, 4) and os.listdir(tmp_path) == [path.name]
    assert path.stat().st_size == layout.file_bytes
    batch = read_batch(path, NAME, 4, layout)
    assert np.array_equal(batch.images, images)
    assert batch.boxes is None if boxes is None else np.array_equal(batch.boxes, boxes)
    marks = None if batch.bad_rows is None else batch.bad_rows.tolist()
    assert marks == ([0, 1, *[0] * (layout.batch - 2)] if layout.bad_rows else None)
    own = np.zeros(layout.image_bytes, np.uint8)
    assert np.shares_memory(read_batch(path, NAME, 4, layout, own).images, own)
    assert np.array_equal(own.reshape(layout.image_shape), images)


def test_marks_are_asked_for(tmp_path):
    """A host that does not know `bad_rows` rejects such a file. An engine that does not know it refuses the job."""
    path, *_ = fill(tmp_path, MARKED[0])
    with pytest.raises(DamagedBatch, match="bytes"):
        read_batch(path, NAME, 4, LAYOUTS[0])
    assert Layout.parse(MARKED[0].to_data()) == MARKED[0] and "bad_rows" not in LAYOUTS[0].to_data()
    for value in (1, None, "yes"):
        with pytest.raises(EngineError, match="bad_rows"):
            Layout.parse({**LAYOUTS[0].to_data(), "bad_rows": value})


def test_the_real_safetensors_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path, images, boxes = fill(tmp_path, LAYOUTS[0])
    tensors = safetensors.load_file(path)
    assert np.array_equal(tensors["images"], images) and np.array_equal(tensors["boxes"], boxes)
    raw = path.read_bytes()
    assert raw[DATA_OFFSET : DATA_OFFSET + images.nbytes] == images.tobytes()


@pytest.mark.parametrize("layout", [Layout(2, 4, 5, 3), Layout(2, 2, 3, 3, 2, bad_rows=True)])
def test_any_flipped_bit_is_found(way, tmp_path, layout):
    path, *_ = fill(tmp_path, layout)
    raw = bytearray(path.read_bytes())
    positions = [*range(0, 600), DATA_OFFSET - 1, *range(DATA_OFFSET, layout.file_bytes)]
    for position in positions:
        raw[position] ^= 1 << position % 8
        path.write_bytes(raw)
        with pytest.raises(DamagedBatch):
            read_batch(path, NAME, 4, layout)
        raw[position] ^= 1 << position % 8
    path.write_bytes(raw)
    read_batch(path, NAME, 4, layout)


@pytest.mark.parametrize("boxes", [0, 1])
def test_swapped_blocks_truncation_and_mix_ups_are_found(way, tmp_path, boxes):
    layout = dataclasses.replace(LAYOUTS[3], boxes=boxes)
    path, *_ = fill(tmp_path, layout)
    raw = path.read_bytes()

    def rejected(content, match, name=NAME, lease=4, expected=layout):
        path.write_bytes(content)
        with pytest.raises(DamagedBatch, match=match):
            read_batch(path, name, lease, expected)

    first, second = DATA_OFFSET, DATA_OFFSET + BLOCK_BYTES
    blocks = raw[:first] + raw[second : second + BLOCK_BYTES] + raw[first:second] + raw[second + BLOCK_BYTES :]
    rejected(blocks, "checksum")
    rejected(raw[:-1], "bytes")
    rejected(raw + b"\0", "bytes")
    rejected(b"", "bytes")
    rejected(bytes(len(raw)), "header")
    rejected(b"[" * len(raw), "header")
    rejected(raw, "expected was", name="f" * 32)
    rejected(raw, "lease", lease=5)
    rejected(raw, "tensors", expected=dataclasses.replace(layout, height=32, width=128))
    path.unlink()
    with pytest.raises(DamagedBatch):
        read_batch(path, NAME, 4, layout)
    os.mkfifo(path)
    with pytest.raises(DamagedBatch):
        read_batch(path, NAME, 4, layout)


def test_nothing_is_written_over(tmp_path):
    layout = LAYOUTS[0]
    path, images, _ = fill(tmp_path, layout)
    with pytest.raises(SpoolError):
        BatchWriter(Directory(str(tmp_path)), NAME, 4, layout)
    writer = BatchWriter(Directory(str(tmp_path)), NAME, 5, layout)
    (tmp_path / file_name(NAME, 5)).write_bytes(b"another's")
    for row in range(layout.batch):
        writer.write_rows(row, images[row : row + 1], np.zeros((1, 2, 4), np.int32))
    with pytest.raises(SpoolError):
        writer.publish()
    assert (tmp_path / file_name(NAME, 5)).read_bytes() == b"another's"
    assert len(os.listdir(tmp_path)) == 2
    again = BatchWriter(Directory(str(tmp_path)), NAME, 6, layout)
    with pytest.raises(SpoolError):  # a second writer of the same lease leaves the first one's part alone
        BatchWriter(Directory(str(tmp_path)), NAME, 6, layout)
    assert len(os.listdir(tmp_path)) == 3
    again.abort()
    again.abort()
    assert len(os.listdir(tmp_path)) == 2


def test_without_hard_links(tmp_path, monkeypatch):
    def no_link(*_, **__):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(batchwriter.os, "link", no_link)
    path, images, _ = fill(tmp_path, LAYOUTS[0])
    assert np.array_equal(read_batch(path, NAME, 4, LAYOUTS[0]).images, images)
    assert os.listdir(tmp_path) == [path.name]
    writer = BatchWriter(Directory(str(tmp_path)), NAME, 7, LAYOUTS[0])
    (tmp_path / file_name(NAME, 7)).write_bytes(b"x")
    for row in range(5):
        writer.write_rows(row, images[row : row + 1], np.zeros((1, 2, 4), np.int32))
    with pytest.raises(SpoolError):
        writer.publish()
    assert (tmp_path / file_name(NAME, 7)).read_bytes() == b"x" and len(os.listdir(tmp_path)) == 2


def test_rows_come_in_order_and_complete(tmp_path):
    layout = LAYOUTS[1]
    row = np.zeros((1, 224, 224, 3), np.uint8)
    writer = BatchWriter(Directory(str(tmp_path)), NAME, 1, layout)
    for wrong in (lambda: writer.write_rows(1, row), lambda: writer.write_rows(0, row[:, 1:]), writer.publish):
        with pytest.raises(ValueError):
            wrong()
    writer.abort()
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_met_before_any_work(tmp_path):
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("mount is not permitted here")
    try:
        with contextlib.closing(Directory(str(tmp_path))) as directory, pytest.raises(SpoolFull, match="no room"):
            BatchWriter(directory, NAME, 1, LAYOUTS[1])
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_offsets_beyond_4_gib(tmp_path):
    layout = Layout(30000, 224, 224, 3, 1)
    assert layout.data_bytes == 30000 * (150528 + 16) and layout.file_bytes > 4 << 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batchwriter, "_reserve", os.ftruncate)  # sparse: no 4 GiB on the disk
        writer = BatchWriter(Directory(str(tmp_path)), NAME, 1, layout)
        writer._row = 29999
        writer.write_rows(29999, np.full((1, 224, 224, 3), 7, np.uint8), np.zeros((1, 1, 4), np.int32))
        with open(tmp_path / (file_name(NAME, 1) + ".part"), "rb") as stream:
            stream.seek(DATA_OFFSET + 29999 * layout.row_bytes - 1)
            assert stream.read(3) == b"\0\7\7"
        writer.abort()


def test_the_checksum_is_what_the_design_says(way):
    data = np.random.default_rng(2).integers(0, 256, 3 * BLOCK_BYTES + 1001, dtype=np.uint8).tobytes()
    words = np.frombuffer(data.ljust(4 * BLOCK_BYTES, b"\0"), "<u4").reshape(4, -1).astype(object)
    acc = words[0] * 0
    for block in words:
        acc = (acc * MULTIPLIER + block) % (1 << 32)

    expected = hashlib.blake2b(acc.astype("<u4").tobytes(), digest_size=16).hexdigest()
    for step in (1 << 30, 1, 4, 4093, BLOCK_BYTES, BLOCK_BYTES + 4):
        checksum = Checksum()
        for start in range(0, len(data), step if step > 1 else 977):
            checksum.update(memoryview(data)[start : start + (step if step > 1 else 977)])
        assert checksum.hexdigest() == expected
    assert MULTIPLIER % 2 == 1


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 9 * BLOCK_BYTES, 5 * BLOCK_BYTES + 77])
@pytest.mark.parametrize("missing", [0, 3, BLOCK_BYTES + 3])
def test_a_file_is_summed_as_it_is_read(way, tmp_path, size, missing):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    (tmp_path / "file").write_bytes(b"head" + data[: max(0, size - missing)])
    expected, read, place = Checksum(), Checksum(), bytearray(size)
    expected.update(data[: max(0, size - missing)])
    with open(tmp_path / "file", "rb", buffering=0) as stream:
        stream.seek(4)
        done = 0
        while count := read.read(stream.fileno(), memoryview(place)[done:]):
            done += count
    assert place[:done] == data[:done] and done == max(0, size - missing)
    assert read.hexdigest() == expected.hexdigest()


def test_a_file_that_cannot_be_read_says_so(way, tmp_path):
    for size in (100, 2 * BLOCK_BYTES):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(IsADirectoryError):
                Checksum().read(descriptor, memoryview(bytearray(size)))
        finally:
            os.close(descriptor)


def test_identity_depends_on_everything():
    base = ("a" * 32, "b" * 32, 1, 2, [(1, 0), (2, 0)])
    others = [
        ("c" * 32, *base[1:]),
        (base[0], "c" * 32, *base[2:]),
        (*base[:2], 3, *base[3:]),
        (*base[:3], 3, base[4]),
        (*base[:4], [(2, 0), (1, 0)]),
        (*base[:4], [(1, 0), (2, 1)]),
        (*base[:4], [(1, 0)]),
    ]
    assert len({identity(*one) for one in [base, *others]}) == 8


@pytest.mark.parametrize(
    "field, value", [("batch", 0), ("height", 1 << 20), ("channels", 5), ("boxes", -1), ("width", True)]
)
def test_a_hostile_layout_is_refused(field, value):
    data = {**LAYOUTS[0].to_data(), field: value}
    with pytest.raises(EngineError, match=field):
        Layout.parse(data)
    assert Layout.parse(LAYOUTS[0].to_data()) == LAYOUTS[0]


def test_a_receiver_hands_out_the_places_of_the_next_bytes(tmp_path):
    """Pieces end where they like: one may hold the end of the images, the boxes and the marks."""
    layout = Layout(5, 300, 250, 3, 2, bad_rows=True)
    writer = BatchWriter(Directory(str(tmp_path)), "0" * 32, 3, layout)
    images = np.random.default_rng(1).integers(0, 256, layout.image_shape, np.uint8)
    boxes = np.arange(40, dtype=np.int32).reshape(5, 2, 4)
    writer.write_rows(0, images, boxes)
    content = writer.publish().read_bytes()
    for step in (1 << 20, 100_000, 4097):
        receiver = batchfile.BatchReceiver("0" * 32, 3, layout)
        for at in range(0, len(content), step):
            piece = content[at : at + step]
            for space in receiver.spaces(len(piece)):
                space[:] = piece[: len(space)]
                piece = piece[len(space) :]
            receiver.filled(min(step, len(content) - at))
        batch = receiver.batch()
        assert np.array_equal(batch.images, images) and np.array_equal(batch.boxes, boxes) and not batch.bad_rows.any()
        with pytest.raises(DamagedBatch, match="longer"):
            receiver.spaces(1)
    receiver = batchfile.BatchReceiver("0" * 32, 3, layout)
    with pytest.raises(DamagedBatch, match="longer"):
        receiver.spaces(len(content) + 1)
    for space in receiver.spaces(5000):
        space[:] = b"x" * len(space)
    with pytest.raises(DamagedBatch, match="header"):
        receiver.filled(5000)
