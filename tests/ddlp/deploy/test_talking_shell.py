"""A device whose login shell prints something before every command, like an echo in ~/.bashrc."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddlp import cli
from tests.benchmarks.bench import bench
from tests.ddlp.deploy.local_device import Device, ddlp


@pytest.mark.slow  # test_shell.py: test_a_login_shell_that_talks_disturbs_nothing
def test_what_a_login_shell_says_is_nobody_s_answer(make_device: Callable[..., Device], capsys) -> None:
    device = make_device('ForceCommand echo "Orange Pi: 3 updates"; eval "$SSH_ORIGINAL_COMMAND"')
    told = ddlp(capsys, *device.arguments("--kernel", "cross"))  # no compiler, no kernel: no change either
    assert "does not work there" not in told and "both see the same" in told
    engine = device.engine()
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0") and device.engine() == engine
    said = ddlp(capsys, "doctor", "csd0")
    assert "both see the same" in said and "operators and decoders make the same pixels" in said and "lingering" not in said
    assert "operators and decoders make the same pixels, 0 differ." in ddlp(capsys, "parity", "csd0")
    assert bench(["engine", "csd0", "--rounds", "1", "--seconds", "0.1", "--batch", "4"]) == 0
    assert "bare Pillow loop" in capsys.readouterr().out
    assert ddlp(capsys, "stop", "csd0") == "csd0 is stopped\n"
    assert ddlp(capsys, "stop", "csd0") == "csd0 did not run\n"


ODD = r"""printf '\\033]0;title\\007' >&2; export PATH="$HOME/odd:$PATH"; eval "$SSH_ORIGINAL_COMMAND" """
PROGRAMS = {
    "nproc": "printf '9%.0s' $(seq 5000)\n", "uname": "printf '\\033[2JLinux'\n", "date": "printf '9%.0s' $(seq 5000)\n",
    "df": "printf '\\033[31m\\n1 2 3 %s\\n' \"$(printf '9%.0s' $(seq 5000))\"\n",
}  # fmt: skip


def test_a_device_that_lies_reaches_no_terminal(make_device: Callable[..., Device], capsys) -> None:
    """It prints escapes, and numbers of 5,000 digits, in the place of its answers. Each command ends in words."""
    device = make_device(f"ForceCommand {ODD}")
    (device.sshd.home / "odd").mkdir()
    for name, script in PROGRAMS.items():
        path = device.sshd.home / "odd" / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)
    for command in (device.arguments(), ["doctor", "csd0"], ["logs", "csd0"], ["status", "csd0"]):
        cli.main(command)
        printed = "".join(capsys.readouterr())
        assert printed and "\x1b" not in printed and "\x07" not in printed and "Traceback" not in printed, printed
