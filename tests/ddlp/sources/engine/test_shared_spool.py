"""What a host does in a spool whose path an engine has told it, whether the engine is honest or not."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from csd_engine.service.spool import Spool, host_directory, host_mark
from ddlp.process.system import boot
from ddlp.sources.engine import shared_spool
from ddlp.sources.engine.shared_spool import NotShared, share_spool
from ddlp.transfer import mapped_batch


class Engine:
    """The engine at the other end of a link. A `blind` one sees nothing that the host writes."""

    def __init__(self, spool: Path, sign: str, blind: bool = False) -> None:
        self.spool, self.welcome = spool, SimpleNamespace(spool=str(spool))
        self._sign, self._blind = sign, blind

    def look(self, file: str) -> Any:
        def digest(name: str) -> str:
            return hashlib.blake2b((self.spool / name).read_bytes(), digest_size=16).hexdigest()

        seen = digest(file) if file and not self._blind else ""
        return SimpleNamespace(digest=seen, own=self._sign, own_digest=digest(self._sign))


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_spool, "_PAUSES_S", (0.0,))
    spool = Spool(tmp_path / "spool", 1, 1, 0)
    yield spool
    spool.close()


def left(spool: Spool, name: str = "", mark: str | None = None, *files: str) -> Path:
    """A directory as a killed host process leaves it."""
    directory = spool.files / (name or host_directory(boot()))
    directory.mkdir()
    (directory / "lock").write_text(host_mark(directory.name) if mark is None else mark)
    for one in ("look", f"{'0' * 32}.npy", f"{'1' * 32}.manifest", "tmpabcd_123", *files):
        (directory / one).write_bytes(bytes(9))
    os.utime(directory, (0, 0))
    return directory


def test_what_a_killed_host_has_left_is_removed_once_both_see_the_spool(spool):
    dead, living = left(spool), left(spool)
    with open(living / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        upload = share_spool(Engine(spool.directory, spool.sign))
        assert not dead.exists() and living.exists()
        upload.close()
    assert list(spool.files.iterdir()) == [living]


def test_a_false_engine_has_nothing_removed(spool, tmp_path):
    """It names a user's directory that looks like a spool."""
    dead = left(spool)
    with pytest.raises(NotShared, match="does not see"):
        share_spool(Engine(spool.directory, spool.sign, blind=True))
    (spool.directory / "README").write_text("known to all")
    with pytest.raises(NotShared, match="another disk"):
        share_spool(Engine(spool.directory, "README"))
    assert len(list(dead.iterdir())) == 5 and os.listdir(spool.files) == [dead.name]


def test_what_is_not_ddlps_by_name_and_content_stays(spool, tmp_path):
    """Also if the engine sees the spool, because the engine may be another process on this computer."""
    elsewhere = left(spool)
    elsewhere = elsewhere.rename(tmp_path / elsewhere.name)
    results = left(spool, "results_2025")
    unmarked, other_mark = left(spool, "", ""), left(spool, "", host_mark("0a1b2c3d-0123456789abcdef"))
    (spool.files / elsewhere.name).symlink_to(elsewhere)
    with_model = left(spool, "", None, "model.pt")
    (with_model / "checkpoints").mkdir()
    os.utime(with_model, (0, 0))
    share_spool(Engine(spool.directory, spool.sign)).close()
    for one in (elsewhere, results, unmarked, other_mark):
        assert len(list(one.iterdir())) == 5
    assert sorted(os.listdir(with_model)) == ["checkpoints", "model.pt"]
    assert sorted(os.listdir(spool.files)) == sorted(
        one.name for one in (elsewhere, results, unmarked, other_mark, with_model)
    )


def test_a_link_in_the_place_of_the_spools_files_is_not_swept(spool, tmp_path):
    dead = left(spool)
    spool.files.rename(tmp_path / "files")
    spool.files.symlink_to(tmp_path / "files")
    share_spool(Engine(spool.directory, spool.sign)).close()
    assert dead.exists() and os.listdir(tmp_path / "files") == [dead.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_another_users_directories_stay(spool):
    dead = left(spool)
    os.chown(dead, 12345, 12345)
    share_spool(Engine(spool.directory, spool.sign)).close()
    assert dead.exists()


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_what_another_machine_may_have_made_is_left_alone(spool, tmp_path, monkeypatch, kind):
    """On a network file system, locks may be separate for each machine. On a disk they are this machine's."""
    mounts = tmp_path / "root/proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(f"21 1 8:1 / / rw - {kind} there:/all rw\n")
    monkeypatch.setattr(shared_spool, "may_map", partial(mapped_batch.may_map, root=tmp_path / "root"))
    ours, others = left(spool), left(spool, host_directory("01234567"))
    share_spool(Engine(spool.directory, spool.sign)).close()
    assert not ours.exists() and others.exists() == (kind == "nfs4")


def test_a_host_that_is_killed_leaves_what_the_next_one_removes(forks, spool):
    script = f"""
import os, signal
from pathlib import Path
from ddlp.sources.engine.dataset_upload import DatasetUpload
upload = DatasetUpload.shared(Path({str(spool.directory)!r}), {str(spool.directory)!r})
upload.show()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert forks.run(code=script, environment=os.environ).returncode == -signal.SIGKILL
    (dead,) = spool.files.iterdir()
    os.utime(dead, (0, 0))
    share_spool(Engine(spool.directory, spool.sign)).close()
    assert not list(spool.files.iterdir())
