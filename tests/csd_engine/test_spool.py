"""Who frees a removed batch file: whoever lets go of it last. And which directories are taken for a spool."""

from __future__ import annotations

from pathlib import Path

import pytest
from open_files import open_below

from csd_engine.batchwriter import PART_SUFFIX
from csd_engine.errors import SpoolError
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


@pytest.mark.parametrize("name", ["job-4711/result", "files/photo.jpg", "arrays/mine.npy", "thesis"])
def test_somebody_s_directory_is_refused_and_nothing_in_it_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    with pytest.raises(SpoolError, match=f"files that are not ddlp's: .*--spool, for example {tmp_path}/ddlp"):
        Spool(tmp_path, 100, 1 << 20, 0)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [name]
    Spool(tmp_path / "ddlp", 100, 1 << 20, 0).close()


def test_what_is_put_into_a_spool_later_stays(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 100, 1 << 20, 0)
    fill(spool, 0)
    mine = tmp_path / "job-4711" / "result"
    mine.parent.mkdir()
    mine.touch()
    spool.close()
    left = tmp_path / "job-3-0a1b2c3d"
    left.mkdir()
    spool = Spool(tmp_path, 100, 1 << 20, 0)
    assert mine.exists() and [path.name for path in tmp_path.glob("job-*")] == ["job-4711"]
    spool.close()
