"""The systemd unit, as systemd reads it, and the crontab line, as a crontab keeps it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sshd import Sshd

from ddlp.deploy.service import Service, supervisor_command, unit
from ddlp.deploy.shell import Shell

# Keeps the table in a file of the test's: a real one would be this user's own.
CRONTAB = """#!/bin/sh
case $1 in
  -l) [ -e "$HOME/table" ] || { echo "no crontab" >&2; exit 1; }; cat "$HOME/table" ;;
  -r) rm "$HOME/table" ;;
  -) cat > "$HOME/table" ;;
esac
"""


@pytest.mark.parametrize("user", [True, False])
def test_systemd_takes_the_unit(tmp_path: Path, user: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    home = tmp_path / "a home 100%"
    (tmp_path / "ddlp-csd0.service").write_text(unit("csd0", sys.executable, str(home), user=user))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "ddlp-csd0.service")], capture_output=True, text=True
    )
    assert "ddlp-csd0" not in done.stderr, done.stderr


def test_the_crontab_keeps_one_line_of_ours_and_all_others(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "crontab").write_text(CRONTAB)
    (tmp_path / "bin" / "crontab").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    server = make_sshd(f"SetEnv HOME={home} PATH={tmp_path}/bin:/usr/bin:/bin")
    table = home / "table"
    with Shell("board", server.options) as shell:
        service = Service(shell, "csd0", "/home/us er/.ddlp/csd0", "/usr/bin/python3", systemd=False)
        other = Service(shell, "csd00", "/home/us er/.ddlp/csd00", "/usr/bin/python3", systemd=False)
        line = f"@reboot {supervisor_command('/usr/bin/python3', '/home/us er/.ddlp/csd0')} --detach\n"
        assert service.enable(cron=True) and table.read_text() == line
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
