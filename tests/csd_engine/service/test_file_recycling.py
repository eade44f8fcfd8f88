"""Which removed files are used again: those that no process has open or mapped, as the Linux kernel says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from csd_engine.batchfile.publishing import PART_SUFFIX
from csd_engine.batchfile.reader import Layout, read_batch
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.machine.directory import Directory, Entry
from csd_engine.service import file_recycling
from csd_engine.service.file_recycling import RecycledFiles

NAME = "ab" * 16
BYTES = 1 << 14


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory on a file system that supports write leases, wherever the temporary directory is."""
    with tempfile.TemporaryDirectory(prefix="ddlp-test-", dir="/dev/shm") as found:
        yield Path(found)


def removed(kept: RecycledFiles, directory: Path, number: int) -> int:
    """Remove one more file; returns its inode."""
    path = directory / f"batch-{number}"
    path.write_bytes(bytes([number]) * BYTES)
    kept.put(Entry(Directory(str(directory)), path.name), BYTES)
    assert not path.exists()
    return next(directory.glob(f"spare-{number + 2}-*")).stat().st_ino  # the file system's check took the first name


def given(kept: RecycledFiles, directory: Path) -> int | None:
    """The inode of the file that is given, or None if there is none."""
    path = directory / "begun"
    if not kept.give(Entry(Directory(str(directory)), path.name)):
        assert not path.exists()
        return None
    inode = path.stat().st_ino
    path.rename(directory / f"given-{inode}")
    return inode


def mapped(directory: Path, number: int) -> torch.Tensor:
    """Map the file as a host does: private, without an open descriptor."""
    path = next(directory.glob(f"spare-{number + 2}-*"))
    return torch.from_file(str(path), shared=False, size=BYTES, dtype=torch.uint8)


def test_the_one_that_was_removed_first_is_given_first(directory: Path) -> None:
    kept = RecycledFiles(Directory(str(directory)))
    assert given(kept, directory) is None
    inodes = [removed(kept, directory, number) for number in range(3)]
    assert (len(kept), kept.bytes) == (3, 3 * BYTES)
    assert [given(kept, directory) for _ in range(4)] == [*inodes, None]
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_file_that_is_mapped_is_not_given_before_it_is_dropped(directory: Path) -> None:
    kept = RecycledFiles(Directory(str(directory)))
    inode = removed(kept, directory, 0)
    batch = mapped(directory, 0)
    assert given(kept, directory) is None
    part = batch[5:9]
    del batch
    assert given(kept, directory) is None
    del part
    assert given(kept, directory) == inode


def test_a_file_that_is_open_is_not_given(directory: Path) -> None:
    kept = RecycledFiles(Directory(str(directory)))
    inode = removed(kept, directory, 0)
    with open(next(directory.glob("spare-*")), "rb"):
        assert given(kept, directory) is None
    assert given(kept, directory) == inode


def test_a_file_that_a_forked_process_has_mapped_is_not_given(directory: Path) -> None:
    kept = RecycledFiles(Directory(str(directory)))
    inode = removed(kept, directory, 0)
    batch = mapped(directory, 0)
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.read(hear, 1)
        os._exit(0)
    os.close(hear)
    try:
        del batch
        assert given(kept, directory) is None
    finally:
        os.close(tell)
        os.waitpid(pid, 0)
    assert given(kept, directory) == inode


def test_a_batch_that_its_user_keeps_is_removed_once_six_others_were(directory: Path) -> None:
    """The user's pages stay unchanged; the other files are given."""
    kept = RecycledFiles(Directory(str(directory)))
    removed(kept, directory, 0)
    batch = mapped(directory, 0)
    inodes = [removed(kept, directory, number) for number in range(1, 6)]
    assert given(kept, directory) is None and len(kept) == 6
    inodes.append(removed(kept, directory, 6))
    assert [given(kept, directory) for _ in range(7)] == [*inodes, None]
    assert not list(directory.glob("spare-*")) and bool((batch == 0).all())


def test_where_the_kernel_does_not_tell_none_is_given(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An overlay file system says so even of a mapped file.
    monkeypatch.setattr(file_recycling, "_is_unused", lambda directory, name: True)
    kept = RecycledFiles(Directory(str(directory)))
    for number in range(8):
        removed(kept, directory, number)
        assert len(kept) == min(number + 1, 6) == len(list(directory.glob("spare-*")))
        assert given(kept, directory) is None
    kept.clear()
    assert not list(directory.iterdir()) and kept.bytes == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount an overlay")
def test_an_overlay_file_system_is_detected(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    mount = f"mount -t overlay overlay -o {options} {tmp_path}/merged || exit 77"
    look = (
        "from csd_engine.machine.directory import Directory; from csd_engine.service.file_recycling import _write_leases_work; "
        f"print(_write_leases_work(Directory({str(tmp_path / 'merged')!r}), 'trial'))"
    )
    command = ["unshare", "-m", "sh", "-c", f'{mount}; exec "$0" -c "$1"', sys.executable, look]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no overlay can be mounted here: {found.stderr.strip()}")
    assert found.stdout == "False\n" and not list((tmp_path / "upper").iterdir())


@pytest.mark.parametrize("before", [0, 100, 1 << 20])
def test_a_file_that_is_written_over_is_as_a_new_one(tmp_path: Path, before: int) -> None:
    layout = Layout(3, 16, 20, 3, boxes=2)
    draws = np.random.default_rng(0)
    images, boxes = draws.integers(0, 256, layout.image_shape, dtype=np.uint8), draws.integers(0, 9, (3, 2, 4), dtype=np.int32)
    files = []
    for name, begun in (("new", False), ("over", True)):
        place = tmp_path / name
        place.mkdir()
        writer = BatchWriter(Directory(str(place)), NAME, 4, layout)
        if begun:
            part = next(place.iterdir())
            writer.abort()
            part.write_bytes(draws.bytes(before))
            writer = BatchWriter(Directory(str(place)), NAME, 4, layout, begun)
            assert part.name.endswith(PART_SUFFIX) and part.read_bytes()[:4096] == bytes(4096)
        writer.write_rows(0, images, boxes)
        files.append(writer.publish())
    assert files[0].read_bytes() == files[1].read_bytes()
    assert np.array_equal(read_batch(files[1], NAME, 4, layout).images, images)
