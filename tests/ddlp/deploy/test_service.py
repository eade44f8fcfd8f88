"""The systemd unit, checked by systemd; and which users linger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlp.deploy import spooldir
from ddlp.deploy.sandbox import TAKE, sandbox
from ddlp.deploy.service import Service, unit
from ddlp.deploy.shell import Shell
from tests.ddlp.deploy.local_device import SYSTEMD
from tests.ddlp.deploy.sshd import Sshd, programs
from tests.needs import need

LIMIT = {"account": 1.8, "root": 2.1, "user": 6.4}  # of 10, as systemd 252 rates it; docs/security.md has the numbers


def make(shell: Shell, home: str, python: str = "/usr/bin/python3", *, systemd: bool, name: str = "csd0") -> Service:
    return Service(shell, name, home, python, systemd, "/srv/spool", "x86_64")


def make_unit(tmp_path: Path, kind: str, home: str = "/srv/a home 100%", spool: str = "/srv/a spool 100%") -> Path:
    limits = sandbox(kind, home, spool, [sys.executable, "/srv/data"], "x86_64")
    path = tmp_path / "ddlp-csd0.service"
    path.write_text(unit("csd0", sys.executable, home, limits, user=kind == "user"))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    need("systemd-analyze")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("kind", LIMIT)
def test_systemd_takes_the_unit(tmp_path: Path, kind: str) -> None:
    path = make_unit(tmp_path, kind)
    assert "\nLimitNOFILE=16384\n" in path.read_text()
    done = analyze("verify", "--man=no", str(path))
    assert "ddlp-csd0" not in done.stderr, done.stderr


@pytest.mark.parametrize("kind", LIMIT)
def test_what_systemd_says_of_the_sandbox(tmp_path: Path, kind: str) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(make_unit(tmp_path, kind)))
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze judges no unit that is not loaded (before version 250)")
    found = re.search(r"Overall exposure level for ddlp-csd0.service: ([0-9.]+)", done.stdout)
    assert found is not None and float(found[1]) <= LIMIT[kind], done.stdout + done.stderr


def test_temporary_directories_stay_where_the_engine_needs_them() -> None:
    def private(spool: str = "/srv/spool", reads: str = "/srv/data", home: str = "/root/.ddlp/csd0") -> bool:
        return "\nPrivateTmp=yes\n" in sandbox("account", home, spool, [reads], "x86_64")

    assert private() and private("/tmpfs/spool")
    assert not private("/tmp/spool") and not private(reads="/var/tmp/data") and not private(reads="/tmp")
    assert not private(home="/tmp/a")


def test_the_cache_may_be_written() -> None:
    text = sandbox("account", "/h", "/s", [], "x86_64", "/a cache")
    assert '\nReadWritePaths="-/h/run" "-/s" "-/a cache"\n' in text and "PrivateTmp=yes" in text
    assert "PrivateTmp=no" in sandbox("account", "/h", "/s", [], "x86_64", "/tmp/cache")


def test_libraries_of_32_bit_arm_may_have_executable_stacks() -> None:
    found = {machine: sandbox("account", "/h", "/s", [], machine) for machine in ("x86_64", "aarch64", "armv7l")}
    assert [name for name, text in found.items() if "MemoryDenyWriteExecute" not in text] == ["armv7l"]


@pytest.mark.parametrize(("version", "filters"), [("232", False), ("257.9-1", True)])
def test_an_old_systemd_gets_no_list_of_system_calls(
    make_sshd: Callable[..., Sshd], tmp_path: Path, version: str, filters: bool
) -> None:
    """It does not know @system-service, and would kill the engine."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "may").write_text("polkit")
    stubs = {**SYSTEMD, "systemctl": f"[ $1 = --version ] && echo 'systemd {version} (x)' && echo +PAM\n{SYSTEMD['systemctl']}"}
    server = make_sshd(f"SetEnv HOME={home} PATH={programs(tmp_path / 'bin', **stubs)}:/usr/bin:/bin")
    with Shell("board", server.options) as shell:
        service = make(shell, f"{home}/csd0", systemd=True)
        (home / "csd0").mkdir()
        assert service.enable() and not service.enable()
    text = (home / ".config/systemd/user/ddlp-csd0.service").read_text()
    assert ("\nSystemCallFilter=" in text) is filters
    assert "\nNoNewPrivileges=yes\n" in text and text.endswith("\n[Install]\nWantedBy=default.target\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
def test_what_is_ours_in_a_spool_is_given_to_the_engines_user(tmp_path: Path) -> None:
    theirs = ["files/0123abcd-0123456789abcdef", "notes", "job-1", "files/notes"]
    ours = ["job-1-0123abcd", "manifests/" + "0" * 32, "arrays/" + "1" * 32 + ".npy", ".lock", "ddlp-spool"]
    for name in [*theirs, *ours]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "here-0123456789abcdef").symlink_to("notes")
    script = f"spool={tmp_path}\n{spooldir.GIVE}give nobody && give nobody"
    assert subprocess.run(["sh", "-c", script]).returncode == 0
    given = {str(one.relative_to(tmp_path)) for one in [tmp_path, *tmp_path.rglob("*")] if one.lstat().st_uid != 0}
    assert given == {".", "files", "manifests", "arrays", "here-0123456789abcdef", *ours}


@pytest.mark.parametrize("holds", ["", "mine"])
def test_an_empty_cache_is_given_to_the_engines_user(tmp_path: Path, holds: str) -> None:
    (tmp_path / "a cache").mkdir()
    if holds:
        (tmp_path / "a cache" / holds).touch()
    others = 'id() { :; }\nchown() { echo "$*"; }\nstat() { echo ddlp-engine; }\n'  # the user is there, and has the rest
    script = f"{others}{TAKE}home={tmp_path} spool={tmp_path}/spool cache='{tmp_path}/a cache'\ntake_account x"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if holds else f"ddlp-engine: {tmp_path}/a cache\n")


@pytest.mark.parametrize(
    ("may", "before", "lingers"),
    [
        ("polkit", False, True), ("sudo", False, True), ("nothing", False, False), ("polkit", True, True),
        ("nothing", True, True),
    ],
)  # fmt: skip
@pytest.mark.some(3)
def test_an_ordinary_user_is_made_to_linger_or_it_is_told(
    make_sshd: Callable[..., Sshd], tmp_path: Path, may: str, before: bool, lingers: bool
) -> None:
    home = tmp_path / "home"
    (home / "csd 0").mkdir(parents=True)
    (home / "may").write_text(may)
    if before:
        (home / "lingers").touch()
    server = make_sshd(f"SetEnv HOME={home} PATH={programs(tmp_path / 'bin', **SYSTEMD)}:/usr/bin:/bin")
    with Shell("board", server.options) as shell:
        service = make(shell, f"{home}/csd 0", systemd=True)
        for changed in (True, False):
            assert service.enable() is changed
            assert service.not_lingering() == ("" if lingers else "user")
            assert (home / "lingers").exists() is lingers
        assert make(shell, f"{home}/csd 0", systemd=False).not_lingering() == ""
