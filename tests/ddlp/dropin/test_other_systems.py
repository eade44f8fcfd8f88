"""macOS and Windows, simulated in other processes: one message, and then the same as torch's DataLoader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def printed(paths: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the output of each system is."""
    directory = tmp_path_factory.mktemp("systems")
    command = [sys.executable, str(HERE / "other_system.py"), str(directory), *paths[:6]]
    done = subprocess.run(command, cwd=HERE.parents[2], capture_output=True, text=True, timeout=120)
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
