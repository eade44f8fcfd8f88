"""How the file of a removed batch is used again, and which directories may be a spool."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from csd_engine.batchfile.publishing import PART_SUFFIX
from csd_engine.errors import SpoolError
from csd_engine.machine.directory import Entry
from csd_engine.machine.sizes import free_bytes
from csd_engine.service.spool import Spool


def spare_files(spool: Spool) -> list[Path]:
    return sorted(spool.directory.glob("spare-*"))


def fill(spool: Spool, number: int) -> Entry:
    job = next(iter(spool.directory.glob("job-*")), None)
    file = spool.job_file(spool.make_job_directory().name if job is None else job.name, f"{number}.safetensors")
    begun = Path(str(path(file)) + PART_SUFFIX)
    assert spool.begin_batch(file, 4096) == begun.exists()
    begun.write_bytes(b"x" * 4096)
    begun.rename(path(file))
    return file


def path(file: Entry) -> Path:
    return Path(file.directory.path, file.name)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_removed_batch_is_gone_and_its_file_kept_where_hosts_map_them_only(tmp_path: Path, mapped: bool) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped)
    inodes = set()
    for number in range(20):
        file = fill(spool, number)
        inodes.add(path(file).stat().st_ino)
        begun = Path(str(path(file)) + PART_SUFFIX)
        begun.touch()
        spool.remove_batch(file, 4096)
        assert not path(file).exists() and not begun.exists()
        assert len(spare_files(spool)) == (1 if mapped else 0) and (spool.batches, spool.bytes) == (0, 0)
    assert not mapped or len(inodes) == 1
    spool.begin_batch(file._replace(name="never was there"), 4096)
    spool.remove_batch(file._replace(name="never was there"), 4096)
    spool.close()
    assert not spare_files(spool)


def test_batches_and_spare_files_together_keep_within_the_quota(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 8, 7 * 4096, 0, mapped=True)
    batches = [fill(spool, number) for number in range(7)]
    for file in batches:
        spool.remove_batch(file, 4096)
    assert len(spare_files(spool)) == 7
    spool.begin_batch(file._replace(name="a larger one"), 3 * 4096)
    assert len(spare_files(spool)) == 4
    spool.quota_batches = 3
    spool.begin_batch(file._replace(name="a small one"), 1)
    assert len(spare_files(spool)) == 1
    spool.close()


def test_where_the_disk_is_nearly_full_spare_files_make_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped=True)
    spool.remove_batch(fill(spool, 0), 4096)
    assert not spool.shortage(4096) and spare_files(spool)
    spool.reserve_bytes = 2 * free_bytes(tmp_path)
    assert "nearly full" in spool.shortage(4096)
    assert not spare_files(spool)
    spool.close()


def test_spare_files_that_a_killed_engine_left_are_removed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped=True)
    left = tmp_path / "spool" / "spare-3-0a1b2c3d"
    mine = tmp_path / "spool" / "spare-3"
    spool.close()
    left.touch()
    mine.touch()
    Spool(tmp_path / "spool", 100, 1 << 20, 0).close()
    assert mine.exists() and not left.exists()


def test_a_spool_whose_directory_is_gone_is_closed_without_a_word(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 100, 1 << 20, 0, mapped=True)
    file = fill(spool, 0)
    spool.remove_batch(file, 4096)
    shutil.rmtree(tmp_path / "spool")
    spool.begin_batch(file, 4096)
    spool.close()


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
