"""Which directories `ddlp deploy` uses as its own, and which it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlp.devices import address_book as book
from tests.ddlp.deploy.local_device import Device, ddlp, epoch, everything


@pytest.mark.slow
def test_a_home_that_is_somebody_s_directory_is_refused_before_anything_is_changed(device: Device, capsys) -> None:
    home = device.sshd.home / "stuff"
    for name in ("thesis", "venv/x", "keys/x", "run/x", "engines/mine/x"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("years of work")
    before = everything(device.sshd.home)
    told = ddlp(capsys, *device.arguments("--home", str(home)), status=1)
    assert f"{home} holds files that are not ddlp's: " in told and f"--home {home}/ddlp" in told
    told = ddlp(capsys, "deploy", "board", *device.sshd.options, "--name", "csd0", "--home", str(home), "--uninstall")
    assert f"{home} stays as it is" in told and everything(device.sshd.home) == before
    device.home = home / "ddlp"
    ddlp(capsys, *device.arguments("--home", str(device.home)))
    ddlp(capsys, "deploy", "--name", "csd0", "--uninstall")
    assert everything(device.sshd.home) == before


def test_a_spool_that_is_somebody_s_directory_is_refused_before_anything_is_changed(device: Device, capsys, base: Path) -> None:
    for name in ("job-4711", "files"):
        (device.spool / name).mkdir()
        (device.spool / name / "thesis").write_text("years of work")
    told = ddlp(capsys, *device.arguments(), status=1)
    assert "holds files that are not ddlp's: job-4711" in told and f"--spool {device.spool}/ddlp" in told
    assert everything(device.sshd.home) == [] and not book.directory("csd0").exists()
    own = ["--spool", f"{device.spool}/ddlp", "--host-spool", f"{device.spool_here}/ddlp"]
    ddlp(capsys, *device.arguments(*own))
    assert epoch(device, csd="csd0", strategy="csd") and device.report.batches_csd
    ddlp(capsys, "deploy", "--name", "csd0", "--uninstall")
    assert everything(device.spool) == ["files", "files/thesis", "job-4711", "job-4711/thesis"]
