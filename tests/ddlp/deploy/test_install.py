"""`--install pip` for a system's Python that cannot make a virtual environment: the user reads pip's own messages.

pip is a fake: a pip older than 23.0.1, or Debian's, is not available here.
"""

from __future__ import annotations

import dataclasses
import shlex
import venv
from pathlib import Path

import numpy as np
import pytest

from ddlp.deploy.install import install_pip
from ddlp.deploy.shell import CommandFailed, Shell
from ddlp.deploy.survey import Python, survey
from tests.ddlp.deploy.local_device import Device

NO_NETWORK = "ERROR: Could not find a version that satisfies the requirement pyzmq"
MARKED = "error: externally-managed-environment\n\n× This environment is externally managed"


def install(
    device: Device, first: str, second: str = "no such option: --break-system-packages", *, name: str = "zmq", machine: str = ""
) -> list[str]:
    """Install a module with a fake pip that fails with these messages; an empty one: success. Returns its command lines."""
    python, calls = device.sshd.home / "python3", device.sshd.home / "calls"
    python.write_text(
        f"#!/bin/sh\necho \"$*\" >> {calls}\nsaid={shlex.quote(first)}\n"
        f"case $* in *--break-system-packages*) said={shlex.quote(second)} ;; esac\n"
        '[ -z "$said" ] || { echo "$said" >&2; exit 1; }\n'
    )  # fmt: skip
    python.chmod(0o755)
    there = Python(str(python), (3, 9, 2), {"numpy": "1.24.2", "PIL": "9.4.0", name: None}, jpeg=True, pip=True)
    with Shell("board", device.sshd.options) as shell:
        try:
            found = dataclasses.replace(device.look(), python=there, machine=machine)
            install_pip(shell, found, lambda _: None)
        finally:
            lines = Path(calls).read_text().splitlines()
            calls.unlink()
    given = {"zmq": "pyzmq", "obstore": "--only-binary=obstore obstore"}[name]
    assert all(line.startswith("-m pip install") and line.endswith(f"--user {given}") for line in lines[:1])
    return lines


def test_what_pip_says_is_told(device: Device) -> None:
    with pytest.raises(CommandFailed, match="Could not find a version") as caught:
        install(device, NO_NETWORK)
    assert "no such option" not in str(caught.value) and "See that it has a network" in str(caught.value)


def test_the_systems_packages_are_left_alone_only_where_pip_wants_to_be_told(device: Device) -> None:
    assert len(install(device, "")) == 1
    plain, told = install(device, MARKED, "")
    assert "--break-system-packages" in told and "--break-system-packages" not in plain
    with pytest.raises(CommandFailed, match="Could not find a version"):
        install(device, MARKED, NO_NETWORK)


def test_obstore_is_not_compiled_on_a_device(device: Device) -> None:
    assert len(install(device, "", name="obstore")) == 1
    none = "ERROR: No matching distribution found for obstore"
    with pytest.raises(CommandFailed, match=f"pip install obstore failed on board: {none}") as caught:
        install(device, none, name="obstore", machine="armv7l")
    assert "Where PyPI has no obstore for this Python on armv7l, leave the --root URL out" in str(caught.value)


def test_what_pip_has_put_beside_an_interpreter_that_was_given_is_found(device: Device) -> None:
    theirs, ours = device.sshd.home / "theirs", device.home / "venv"
    for bare in (theirs, ours):
        venv.create(bare, symlinks=True)  # as "python -m venv" does

    def found() -> Python | None:
        with Shell("board", device.sshd.options) as shell:
            return survey(shell, "~/.ddlp/csd0", str(device.spool), [], str(theirs / "bin/python")).python

    before = found()
    assert before is not None and before.path == str(theirs / "bin/python") and before.missing == ("numpy", "PIL", "zmq")
    (packages,) = ours.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(str(Path(np.__file__).parents[1]))  # as pip would have installed numpy there
    after = found()
    assert after is not None and after.path == str(ours / "bin/python") and not after.missing
