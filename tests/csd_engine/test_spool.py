"""Who frees a removed batch file: whoever lets go of it last."""

from __future__ import annotations

from pathlib import Path

import pytest
from open_files import open_below

from csd_engine.batchwriter import PART_SUFFIX
from csd_engine.spool import Spool, free_bytes


def removed_and_open(directory: Path) -> int:
    """Files of ours below the directory that have no name any more."""
    return sum(one.endswith(" (deleted)") for one in open_below(directory))


def fill(spool: Spool, number: int) -> Path:
    job = next(iter(spool.directory.glob("job-*")), None) or spool.make_job_directory()
    path = job / f"{number}.safetensors"
    path.write_bytes(b"x" * 4096)
    return path


@pytest.mark.parametrize("mapped", [False, True])
def test_a_removed_batch_has_no_name_and_stays_open_for_hosts_that_map_it_only(tmp_path: Path, mapped: bool) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped)
    for number in range(20):
        path = fill(spool, number)
        begun = Path(str(path) + PART_SUFFIX)
        begun.touch()
        spool.remove_batch(path)
        assert not path.exists() and not begun.exists()
    assert removed_and_open(tmp_path) == (6 if mapped else 0)
    spool.remove_batch(tmp_path / "never was there")
    spool.remove_job(path.parent.name)
    assert removed_and_open(tmp_path) == 0
    spool.close()


def test_where_the_disk_is_nearly_full_removed_batches_are_freed_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped=True)
    spool.remove_batch(fill(spool, 0))
    assert not spool.shortage(4096) and removed_and_open(tmp_path) == 1
    spool.reserve_bytes = 2 * free_bytes(tmp_path)
    assert "nearly full" in spool.shortage(4096)
    assert removed_and_open(tmp_path) == 0
    spool.close()


def test_nothing_stays_open_when_the_spool_is_closed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped=True)
    spool.remove_batch(fill(spool, 0))
    spool.close()
    assert removed_and_open(tmp_path) == 0
