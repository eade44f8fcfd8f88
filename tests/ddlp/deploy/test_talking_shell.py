"""A device that prints escapes and absurd numbers in the place of its answers."""

from __future__ import annotations

from collections.abc import Callable

from ddlp import cli
from tests.ddlp.deploy.local_device import Device

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
