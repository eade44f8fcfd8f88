"""A sample's origin is that of the file that a reader would read, and none where a reader may not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from csd_engine.cache.origins import origins_at
from csd_engine.data.base import Places
from csd_engine.data.parts import PartFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, size in (("root/a", 3), ("root/b", 4), ("elsewhere", 5)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, ns=(10**18, 10**18 + size))
    return tmp_path / "root"


def test_files_below_the_roots_alone(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "elsewhere")
    (root / "in").symlink_to("a")
    os.mkfifo(root / "pipe")
    places = Places([str(root / name) for name in ("a", "out", "in", "gone", "pipe", "b")])
    assert origins_at(places).sizes.tolist() == [3, 5, 3, -1, 0, 4]
    found = origins_at(places, [str(root)])
    assert found.sizes.tolist() == [3, -1, 3, -1, -1, 4]
    assert found.mtimes_ns.tolist() == [10**18 + 3, 0, 10**18 + 3, 0, 0, 10**18 + 4]
    assert (found.names == origins_at(places).names).all()
    before = len(os.listdir("/proc/self/fd"))
    origins_at(places, [str(root)])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_that_is_held_open_is_the_one_that_is_read(root: Path) -> None:
    files = PartFiles(lambda number: str(root / "ab"[number]))
    offsets, sizes = np.array([0, 1]), np.array([1, 2])
    before = origins_at(files.places([0, 0], offsets, sizes))
    os.replace(root / "b", root / "a")
    assert origins_at(files.places([0, 0], offsets, sizes)).sizes.tolist() == before.sizes.tolist() == [3, 3]
    files.close()
    anew = PartFiles(lambda number: str(root / "ab"[number]))
    assert origins_at(anew.places([0, 0], offsets, sizes)).sizes.tolist() == [4, 4]
    assert len(set(before.names.tolist())) == 2  # the same file, two parts
    anew.close()
