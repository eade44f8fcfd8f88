"""A mapped batch file: checked like one that is read, and the caller's changes to the batch do not reach the file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import transforms

from csd_engine.batchfile.reader import Layout, read_batch
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.errors import DamagedBatch, MissingBatch
from csd_engine.machine.directory import Directory
from ddlp.data.images import ImageArrays
from ddlp.loader import DDLPLoader
from ddlp.sources.engine import fetch as fetching
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
from ddlp.transfer.mapped_batch import map_batch, may_map
from tests.open_files import open_below

NAME = "0123456789abcdef" * 2
LAYOUT = Layout(5, 17, 13, 3, 2)  # odd sizes and masks, so that the boxes begin at no round address


def written(directory: Path, layout: Layout = LAYOUT) -> Path:
    draws = np.random.default_rng(0)
    writer = BatchWriter(Directory(str(directory)), NAME, 4, layout)
    for row in range(layout.batch):
        boxes = draws.integers(0, 9, (1, layout.boxes, 4), dtype=np.int32) if layout.boxes else None
        writer.write_rows(row, draws.integers(0, 256, (1, *layout.image_shape[1:]), dtype=np.uint8), boxes)
    if layout.bad_rows:
        writer.mark_bad(3)
    return Path(writer.publish())


MARKED = Layout(5, 17, 13, 3, 2, bad_rows=True)


@pytest.mark.parametrize("layout", [LAYOUT, Layout(3, 224, 224, 3), Layout(1, 1, 1, 1), MARKED])
def test_is_what_reading_gives(tmp_path: Path, layout: Layout) -> None:
    path = written(tmp_path, layout)
    mapped, read = map_batch(path, NAME, 4, layout), read_batch(path, NAME, 4, layout)
    assert mapped is not None
    assert np.array_equal(mapped.images, read.images)
    assert (mapped.boxes is None) == (read.boxes is None)
    assert (mapped.bad_rows is None) == (read.bad_rows is None) == (layout is not MARKED)
    assert mapped.bad_rows is None or mapped.bad_rows.tolist() == [0, 0, 0, 1, 0]
    if read.boxes is not None and mapped.boxes is not None:
        assert mapped.boxes.dtype == np.int32 and np.array_equal(mapped.boxes, read.boxes)


def test_what_is_done_to_the_batch_does_not_reach_the_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    mapped = map_batch(path, NAME, 4, LAYOUT)
    assert mapped is not None
    images = torch.from_numpy(mapped.images)
    images.add_(1)
    assert path.read_bytes() == before
    assert np.array_equal(images.numpy(), read_batch(path, NAME, 4, LAYOUT).images + 1)


def test_stays_when_the_file_is_gone(tmp_path: Path) -> None:
    path = written(tmp_path)
    read, mapped = read_batch(path, NAME, 4, LAYOUT), map_batch(path, NAME, 4, LAYOUT)
    path.unlink()
    assert mapped is not None and np.array_equal(mapped.images, read.images)


def test_a_batch_that_is_kept_keeps_no_descriptor(tmp_path: Path) -> None:
    path = written(tmp_path)
    kept = [map_batch(path, NAME, 4, LAYOUT) for _ in range(3)]
    assert None not in kept and not open_below(tmp_path)
    with open(path, "rb"):
        assert open_below(tmp_path) == [str(path)]  # an open descriptor would be seen here


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    places = [0, 9, 60, 4096, 4096 + 5 * 17, len(whole) - 1]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(DamagedBatch):
            map_batch(path, NAME, 4, LAYOUT)
    for size in (0, 100, 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(MissingBatch):
            map_batch(path, NAME, 4, LAYOUT)
    path.write_bytes(whole)
    for name, lease in ((NAME[::-1], 4), (NAME, 5)):
        with pytest.raises(DamagedBatch):
            map_batch(path, name, lease, LAYOUT)
    path.unlink()
    with pytest.raises(MissingBatch):
        map_batch(path, NAME, 4, LAYOUT)
    assert not open_below(tmp_path)


@pytest.mark.parametrize(("kind", "mapped"), [("ext4", True), ("tmpfs", True), ("nfs4", False), ("fuse.sshfs", False)])
def test_only_file_systems_of_this_machine_are_mapped(tmp_path: Path, kind: str, mapped: bool) -> None:
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    assert not may_map("/spool/x", tmp_path)  # nothing is known about this file system
    mounts.write_text(f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:42 / /spool rw - {kind} there:/spool rw\n")
    assert may_map("/spool/x", tmp_path) is mapped


def _mappings_of_batches(spool: Path) -> int:
    return sum(str(spool) in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("least", [0, fetching._MAPPED_BYTES])
def test_an_embedded_engines_batches_are_mapped_until_they_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """Small batches are read instead."""
    monkeypatch.setattr(fetching, "_MAPPED_BYTES", least)
    if not may_map(tmp_path):
        pytest.skip(f"{tmp_path} is on no file system that is mapped, or in a chroot, where that can't be told")
    images = np.random.default_rng(1).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)
    loader = DDLPLoader(ImageArrays(images, range(64), transforms.ToTensor()), 4, strategy="csd", output="uint8",
                        memory_format=torch.channels_last, spool=str(tmp_path))  # fmt: skip
    batches = list(loader)
    assert loader.report().batches_csd == 16
    assert _mappings_of_batches(tmp_path) == (0 if least else 16)
    for batch, labels in batches:
        batch.add_(1)  # the caller may change it
        assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), images[labels] + 1)
    del batches, batch
    assert _mappings_of_batches(tmp_path) == 0


def test_files_are_written_over_and_no_batch_that_anybody_still_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three epochs, with batches that the caller keeps, and one that only a forked process holds."""
    monkeypatch.setattr(fetching, "_MAPPED_BYTES", 0)
    if not may_map(tmp_path):
        pytest.skip(f"{tmp_path} is on no file system that is mapped, or in a chroot, where that can't be told")
    images = np.random.default_rng(1).integers(0, 256, (96, 8, 8, 3), dtype=np.uint8)
    loader = DDLPLoader(ImageArrays(images, range(96), transforms.ToTensor()), 4, shuffle=True, seed=1, strategy="csd",
                        output="uint8", memory_format=torch.channels_last, spool=str(tmp_path))  # fmt: skip

    def right(batch: torch.Tensor, labels: torch.Tensor) -> bool:
        return np.array_equal(batch.permute(0, 2, 3, 1).numpy(), images[labels])

    engine, kept, files = acquire(EmbeddedOptions(spool=str(tmp_path))), [], set()
    tell, hear = os.pipe(), os.pipe()
    try:
        for epoch in range(3):
            for number, (batch, labels) in enumerate(loader):
                assert right(batch, labels)
                if number % 5 == 1:
                    kept.append((batch, labels))
                if (epoch, number) == (0, 3) and (child := os.fork()) == 0:
                    os.close(tell[1])
                    os.read(tell[0], 1)
                    os.write(hear[1], b"yes" if right(batch, labels) else b"no")
                    os._exit(0)
            assert loader.report().batches_csd == 24
            for folder, _, _ in os.walk(engine.directory):  # the engine removes the epoch's own meanwhile
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
                    files |= {(one.name, one.inode()) for one in found if one.name.startswith("spare-")}
        assert all(right(*one) for one in kept) and len(kept) == 15
        os.write(tell[1], b".")
        assert os.read(hear[0], 3) == b"yes"
        # 72 batches use few files: those for prefetching, those that are kept, and the last six that were dropped.
        assert 0 < len({inode for _, inode in files}) < len(files)
    finally:
        for end in (*tell, *hear):
            os.close(end)
        os.waitpid(child, 0)
        engine.release()


def test_where_files_are_not_mapped_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap 8192 bytes from file: No such device (19)")

    path = written(tmp_path)
    monkeypatch.setattr(torch, "from_file", refused)
    assert map_batch(path, NAME, 4, LAYOUT) is None
    monkeypatch.setattr(fetching, "_MAPPED_BYTES", 0)
    way = fetching.BatchFetcher(None, True, print, mapped=True)  # type: ignore[arg-type]
    memory = np.empty(LAYOUT.image_shape, np.uint8)
    found = way.read(path, NAME, 4, LAYOUT, lambda: memory)
    assert np.shares_memory(found.images, memory)
    assert np.array_equal(memory, read_batch(path, NAME, 4, LAYOUT).images)
