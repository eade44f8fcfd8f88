"""The systemd unit, as systemd reads it, the crontab line, as a crontab keeps it, and who lingers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlp.deploy.service import Service, supervisor_command, unit
from ddlp.deploy.shell import Shell
from tests.ddlp.deploy.local_device import SYSTEMD, Device
from tests.ddlp.deploy.sshd import Sshd, programs, python_path

# Keeps the table in a file of the test's: a real one would be this user's own.
CRONTAB = """\
case $1 in
  -l) [ -e "$HOME/table" ] || { echo "no crontab" >&2; exit 1; }; cat "$HOME/table" ;;
  -r) rm "$HOME/table" ;;
  -) cat > "$HOME/table" ;;
esac
"""


@pytest.mark.parametrize("user", [True, False])
def test_systemd_takes_the_unit(tmp_path: Path, user: bool) -> None:
    home = tmp_path / "a home 100%"
    text = unit("csd0", sys.executable, str(home), user=user)
    assert "\nLimitNOFILE=16384\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    (tmp_path / "ddlp-csd0.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "ddlp-csd0.service")], capture_output=True, text=True
    )
    assert "ddlp-csd0" not in done.stderr, done.stderr


def test_the_crontab_keeps_one_line_of_ours_and_all_others(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    programs(tmp_path / "bin", crontab=CRONTAB)
    home = tmp_path / "home"
    home.mkdir()
    server = make_sshd(f"SetEnv HOME={home} PATH={tmp_path}/bin:/usr/bin:/bin")
    table = home / "table"
    with Shell("board", server.options) as shell:
        service = Service(shell, "csd0", "/home/us er/.ddlp/csd0", "/usr/bin/python3", systemd=False)
        other = Service(shell, "csd00", "/home/us er/.ddlp/csd00", "/usr/bin/python3", systemd=False)
        assert service.enable(cron=True)
        line = table.read_text()
        assert line.startswith("@reboot ") and line.count("\n") == 1
        assert line.endswith(f"; {supervisor_command('/usr/bin/python3', '/home/us er/.ddlp/csd0')} --detach\n")
        assert not service.enable(cron=True) and table.read_text() == line
        service.disable()
        assert not table.exists()
        table.write_text("# mine\n5 * * * * date\n")
        assert service.enable(cron=True) and other.enable(cron=True)
        moved = Service(shell, "csd0", "/home/us er/.ddlp/csd0", "/opt/python", systemd=False)
        assert moved.enable(cron=True) and table.read_text().count("@reboot") == 2 and "/opt/python" in table.read_text()
        moved.disable()
        other.disable()
        assert table.read_text() == "# mine\n5 * * * * date\n"
        table.unlink()
        assert not service.enable(cron=False) and not table.exists()


def test_at_boot_a_disk_that_is_mounted_a_little_later_is_waited_for(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    """As cron's shell runs the line: the first sleep is the time in which HOME comes."""
    home = tmp_path / "a home"
    mount = f'mkdir -p "{home}/current" && echo "$*" >> {tmp_path}/slept\n'
    path = f"PATH={programs(tmp_path / 'bin', crontab=CRONTAB, sleep=mount, python=f'echo $* > {tmp_path}/ran')}:/usr/bin:/bin"
    server = make_sshd(f"SetEnv HOME={tmp_path} {path}")
    with Shell("board", server.options) as shell:
        assert Service(shell, "csd0", str(home), "python", systemd=False).enable(cron=True)
        line = (tmp_path / "table").read_text().removeprefix("@reboot ")
        assert shell.run(line, timeout_s=60).status == 0
    assert (tmp_path / "slept").read_text() == "5\n"
    assert (tmp_path / "ran").read_text() == f"-m csd_engine.supervisor {home} --detach\n"


@pytest.mark.parametrize(
    ("may", "before", "lingers", "ours"),
    [
        ("polkit", False, True, True), ("sudo", False, True, True), ("nothing", False, False, False),
        ("polkit", True, True, False), ("nothing", True, True, False),
    ],
)  # fmt: skip
def test_an_ordinary_user_is_made_to_linger_or_it_is_told(
    make_sshd: Callable[..., Sshd], tmp_path: Path, may: str, before: bool, lingers: bool, ours: bool
) -> None:
    home = tmp_path / "home"
    (home / "csd 0").mkdir(parents=True)
    (home / "may").write_text(may)
    if before:
        (home / "lingers").touch()
    server = make_sshd(f"SetEnv HOME={home} PATH={programs(tmp_path / 'bin', **SYSTEMD)}:/usr/bin:/bin")
    with Shell("board", server.options) as shell:
        service = Service(shell, "csd0", f"{home}/csd 0", "/usr/bin/python3", systemd=True)
        for changed in (True, False):
            assert service.enable(cron=False) is changed
            assert service.not_lingering() == ("" if lingers else "user")
            assert service.made_linger() == ("user" if ours else "")
            assert (home / "lingers").exists() is lingers
        assert Service(shell, "csd0", f"{home}/csd 0", "/usr/bin/python3", systemd=False).not_lingering() == ""
        (home / "lingers").unlink(missing_ok=True)
        assert service.made_linger() == ""


def test_a_cron_that_is_there_and_one_that_runs(make_device: Callable[..., Device], tmp_path: Path) -> None:
    device = make_device(f"SetEnv HOME={tmp_path}/sshd0/home {python_path(programs(tmp_path / 'bin', crontab=CRONTAB))}")
    names = {path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm")}
    assert device.look().cron == ("running" if names & {"cron", "crond"} else "installed")
    crond = shutil.copy(shutil.which("sleep") or "", tmp_path / "crond")
    with subprocess.Popen([crond, "60"]) as process:
        try:
            assert device.look().cron == "running"
            (tmp_path / "bin" / "crontab").rename(tmp_path / "bin" / "busybox")
            (tmp_path / "bin" / "crontab").symlink_to("busybox")
            assert device.look().cron == "busybox"
        finally:
            process.kill()
