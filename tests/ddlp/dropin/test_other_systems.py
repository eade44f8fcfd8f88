"""macOS and Windows, simulated in other processes: one message, and then the same as torch's DataLoader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forks import Forks


@pytest.fixture(scope="module")
def printed(paths: list[str], forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the output of each system is."""
    directory = tmp_path_factory.mktemp("systems")
    done = forks.run(module="tests.ddlp.dropin.other_system", arguments=[str(directory), *paths[:6]], environment=os.environ)
    assert done.returncode == 0, done.stderr + "".join(path.read_text() for path in directory.glob("*.stderr"))
    return directory


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_the_loader_does_what_torch_does(printed: Path, system: str, name: str) -> None:
    out, errors = ((printed / f"{system}.{kind}").read_text() for kind in ("stdout", "stderr"))
    lines = out[out.index("\n1\n") + 3 :].splitlines()  # one warning; its text is after what explain() prints
    sentence = f"{name} is not Linux, and ddlp prepares batches itself, and reaches devices, on Linux only"
    assert lines[0].startswith(f"ddlp: {sentence}; ") and "DDLPLoader works as torch's DataLoader does" in lines[0]
    assert [line.split(";")[0] for line in lines[1:3]] == [f"OtherSystem: {sentence}"] * 2
    commands = [f"1 ddlp {command}: {sentence}" for command in ("status", "deploy", "try", "analyse")]
    assert [line.split(";")[0] for line in lines[3:7]] == commands
    assert lines[7:] == ["ddlp"] and "Traceback" not in errors
