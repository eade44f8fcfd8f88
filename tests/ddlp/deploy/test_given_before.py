"""A second `ddlp deploy` keeps the interpreter, port and address of the first, unless it is given others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import PIL
import pytest

from ddlp.deploy.findings import Level
from ddlp.deploy.prove import check_port
from ddlp.devices import address_book as book
from tests.ddlp.deploy.local_device import Device, ddlp
from tests.engine_process import until
from tests.ports import free_port


def _bare(device: Device, capsys, *more: str) -> book.DeviceRecord:
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0", *more)
    arguments = json.loads((device.home / "engine.json").read_text())["arguments"]
    assert arguments[arguments.index("--listen") + 1] == f"tcp://0.0.0.0:{device.port}"
    return book.load("csd0")


def test_the_interpreter_that_was_given_holds(device: Device, capsys) -> None:
    python = device.sshd.home / "their python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ddlp(capsys, *device.arguments("--python", str(python)))
    for more in ([], ["--upgrade"]):
        assert _bare(device, capsys, *more).python == str(python)
    python.unlink()
    told = ddlp(capsys, "deploy", "--name", "csd0", status=1)
    assert f"{python} does not run" in told and "--python /path/to/python3" in told
    ddlp(capsys, "deploy", "--name", "csd0", "--python", "python3")
    assert _bare(device, capsys).python == str(Path(sys.executable).with_name("python3"))


def _venv(directory: Path) -> tuple[Path, Path]:
    """Make an environment with the tests' packages. Returns its interpreter and its packages' directory."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return directory / "bin" / "python", packages


@pytest.mark.slow
def test_an_engine_with_packages_that_were_replaced_is_restarted(device: Device, capsys) -> None:
    python, packages = _venv(device.sshd.home / "venv")
    ddlp(capsys, *device.arguments("--python", str(python)))
    engine = device.engine()
    ddlp(capsys, "doctor", "csd0")
    (packages / "replaced.pth").write_text("import PIL.Image; PIL.__version__ = '99.0'\n")
    told = ddlp(capsys, "doctor", "csd0", status=1)
    assert f"pillow {PIL.__version__} -> 99.0" in told and "Do this first: ddlp stop csd0 && ddlp start csd0" in told
    told = ddlp(capsys, "deploy", "--name", "csd0")
    assert f"restarted, since packages there were replaced (pillow {PIL.__version__} -> 99.0)" in told
    assert device.engine() != engine and _bare(device, capsys).versions["pillow"] == "99.0"


@pytest.mark.slow
def test_the_port_and_the_address_that_were_given_hold(device: Device, capsys) -> None:
    """A proxy in front of the device forwards another port, and is closed at first."""
    gate = free_port()
    given = f"tcp://127.0.0.1:{gate}"
    told = ddlp(capsys, *device.arguments("--address", given), status=1)
    assert "is closed, though the engine runs" in told and book.load("csd0").address == ""
    told = ddlp(capsys, "doctor", "csd0", status=1)
    assert f"no engine at {given}: port {gate} of 127.0.0.1 is closed" in told and "a firewall" in told
    assert "(These are options of: ddlp deploy --name csd0)" in told
    forward = ["ssh", *device.sshd.options, "-N", "-L", f"127.0.0.1:{gate}:127.0.0.1:{device.port}", "board"]
    with subprocess.Popen(forward) as ssh:
        try:
            until(lambda: check_port(given).level is Level.OK, 30, "the gate to open")
            told = ddlp(capsys, "doctor", "csd0", status=1)
            assert "Do this first: Run it again: ddlp deploy --name csd0" in told
            for _ in range(2):
                assert _bare(device, capsys).address == given
            ddlp(capsys, "doctor", "csd0")
        finally:
            ssh.terminate()
