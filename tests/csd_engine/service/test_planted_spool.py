"""A spool that another user has prepared, or changes while the engine runs: the engine touches no file outside of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from csd_engine.errors import SpoolError
from csd_engine.prepare.large_image_lock import LargeImageLock
from csd_engine.protocol import codec as say
from csd_engine.service.spool import MARK, Spool
from tests.engine_process import refused_start, until, wait_for

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


def open_and_close(directory: Path) -> None:
    Spool(directory, 100, 1 << 20, 0).close()


@as_root
def test_an_engine_does_not_start_in_another_users_directory(home):
    spool = home / "spool"
    spool.mkdir()
    spool.chmod(0o1777)
    os.chown(spool, STRANGER, STRANGER)
    said = refused_start(home, home)
    assert f"belongs to another user (uid {STRANGER})" in said and "--spool" in said and not list(spool.iterdir())


@pytest.mark.parametrize(
    ("mode", "group", "advice"),
    [
        (0o777, None, "chmod o-w"),
        (0o775, STRANGER, "chmod g-w"),
        (0o775, None, ""),  # the engine's own group
        (0o1777, None, ""),  # like a tmpfs: nobody can replace another user's files
        (0o700, STRANGER, ""),
    ],
)
def test_who_may_write_to_a_spool(tmp_path, mode, group, advice):
    if group is not None and os.geteuid() != 0:
        pytest.skip("needs root, to give files to another group")
    tmp_path.chmod(mode)
    os.chown(tmp_path, -1, -1 if group is None else group)
    if not advice:
        open_and_close(tmp_path)
        return
    with pytest.raises(SpoolError, match=f"may write to it.*{advice}.*--spool"):
        open_and_close(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o775, 0o2775, 0o1777])
def test_hosts_of_another_group_may_be_let_into_its_files(tmp_path, mode):
    open_and_close(tmp_path)
    files = tmp_path / "files"
    if os.geteuid() == 0:
        os.chown(files, -1, STRANGER)
    files.chmod(mode)
    open_and_close(tmp_path)
    files.chmod(0o777)
    with pytest.raises(SpoolError, match="all users may write"):
        open_and_close(tmp_path)


@pytest.mark.parametrize("name", [".lock", MARK, "files", "manifests", "arrays", "job-1-0a1b2c3d", "spare-1-0a1b2c3d"])
@pytest.mark.parametrize("there", [True, False])
def test_links_in_a_spool_lead_nowhere(tmp_path, name, there):
    elsewhere, spool = tmp_path / "elsewhere", tmp_path / "spool"
    spool.mkdir()
    if there and name in (".lock", MARK):
        elsewhere.write_text("years of work")
    elif there:
        elsewhere.mkdir()
        (elsewhere / "0a").write_text("years of work")
    (spool / name).symlink_to(elsewhere)

    def use() -> None:
        made = Spool(spool, 100, 1 << 20, 0)
        try:
            made.kept("manifests")
            made.kept("arrays")
        finally:
            made.close()

    if name.startswith(("job", "spare")):
        use()
    else:
        with pytest.raises(SpoolError):
            use()
    assert elsewhere.exists() == there
    if there:
        assert "years of work" in (elsewhere if elsewhere.is_file() else elsewhere / "0a").read_text()
        assert elsewhere.is_file() or os.listdir(elsewhere) == ["0a"]


@as_root
@pytest.mark.parametrize("name", ["files", "manifests", "arrays", MARK])
def test_what_another_user_has_made_in_a_spool_is_refused(tmp_path, name):
    tmp_path.chmod(0o1777)
    path = tmp_path / name
    if name == MARK:
        path.touch()
        (tmp_path / "thesis").write_text("years of work")
    else:
        path.mkdir()
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(SpoolError, match="another user|not ddlp's"):
        spool = Spool(tmp_path, 100, 1 << 20, 0)
        try:
            spool.kept(name)
        finally:
            spool.close()


def test_a_link_of_ones_own_may_lead_to_the_spool(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "disk")
    open_and_close(tmp_path / "spool")
    assert (tmp_path / "disk" / MARK).exists()
    if os.geteuid() == 0:
        os.chown(tmp_path / "spool", STRANGER, STRANGER, follow_symlinks=False)
        with pytest.raises(SpoolError, match="another user's link"):
            open_and_close(tmp_path / "spool")


def test_the_lock_of_large_images_makes_no_file_elsewhere(tmp_path):
    (tmp_path / ".large").symlink_to(tmp_path / "elsewhere")
    LargeImageLock(str(tmp_path / ".large"), 1, 1 << 30).acquire(2)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("swapped", ["a link", "another directory"])
def test_a_job_directory_that_is_swapped(start, recipe, home, swapped):
    """The engine creates, reads and removes nothing elsewhere, and goes on."""
    engine, link, events, job = recipe.at_work(start)
    (directory,) = engine.spool.glob("job-*")
    elsewhere = home / "elsewhere"

    def swap() -> None:
        directory.rename(home / "kept")
        elsewhere.mkdir()
        if swapped == "a link":
            directory.symlink_to(elsewhere)
        else:
            elsewhere.rename(directory)

    recipe.lease(job, 0)
    path = job.path(wait_for(events, say.Published))
    swap()
    (directory / path.name).write_text("years of work")
    job.release(0)
    until(lambda: not (home / "kept" / path.name).exists(), what="the removal of the engine's own file")
    recipe.lease(job, 1, 4)
    until(lambda: list((home / "kept").glob("*.1.safetensors")), what="a batch in the engine's own directory")
    link.close()
    until(lambda: not os.listdir(home / "kept"), what="the job's end")
    assert (directory / path.name).read_text() == "years of work" and os.listdir(directory) == [path.name]
    (directory / path.name).unlink()
    directory.unlink() if directory.is_symlink() else directory.rmdir()
    assert "Traceback" not in engine.log


def test_one_that_is_swapped_before_a_worker_has_opened_it(start, recipe, home):
    engine, link, events, job = recipe.at_work(start)
    (directory,) = engine.spool.glob("job-*")
    directory.rename(home / "kept")
    (home / "elsewhere").mkdir()
    directory.symlink_to(home / "elsewhere")
    recipe.lease(job, 0)
    assert "job's directory" in wait_for(events, say.Failed).reason
    link.close()
    assert engine.end() == 0
    assert not os.listdir(home / "elsewhere") and not os.listdir(home / "kept")
    directory.unlink()
