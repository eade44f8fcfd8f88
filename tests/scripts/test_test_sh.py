"""scripts/test.sh: Ctrl-C reaches what it has started, and then it ends with status 130. If a check or a test fails, it fails.

Scripts replace what it runs. They log when they begin and end, and they end half a second after an interrupt.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.engine_process import until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/test.sh"
STUB = """#!/usr/bin/env bash
said=$(dirname "$0")/../said
for word in "$@"; do
  case $word in
    $STAYS)
      trap 'sleep 0.5; echo "ended $word" >>"$said"; exit 1' INT TERM
      echo "begun $word" >>"$said"
      for _ in {1..300}; do sleep 0.1; done ;;
  esac
done
"""


def stub(path: Path, stays: str) -> None:
    path.write_text(STUB.replace("$STAYS", stays))
    path.chmod(0o755)


def copy_script(place: Path) -> Path:
    """Copy test.sh into a new project with a finished environment."""
    for directory in ("scripts", "bin", "tmp"):
        (place / directory).mkdir()
    shutil.copy(SCRIPT, place / "scripts")
    (place / "scripts/setup_venv.sh").write_text("setup_venv() { VENV=$PWD PY=$PWD/bin/python; }\n")
    (place / ".ddlp-made").touch()
    for program in ("vermin", "codespell"):
        stub(place / "bin" / program, "nothing")
    return place / "scripts/test.sh"


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest", None])
def test_what_fails_is_a_failure(tmp_path: Path, failing: str | None) -> None:
    script = copy_script(tmp_path)
    (tmp_path / "bin/python").write_text(
        f'#!/bin/sh\n[ -z "$CI" ] || exit 9\n[ "$2" != {failing} ] || exit 3\necho "ran $(nice) $*"\n'
    )
    (tmp_path / "bin/python").chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "CI": "true"}  # there too, what is missing is skipped
    done = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == (0 if failing is None else 1)
    ran = {words[3]: int(words[1]) for line in done.stdout.splitlines() if (words := line.split())[0] == "ran"}
    assert set(ran) == {"ruff", "mypy", "pytest"} - {failing} - ({"mypy"} if failing == "ruff" else set())
    assert all((nice > os.nice(0)) == (name != "pytest") for name, nice in ran.items()), "the checks leave tests the processor"
    assert not list((tmp_path / "tmp").iterdir())


def test_arguments_are_pytests(tmp_path: Path) -> None:
    script = copy_script(tmp_path)
    (tmp_path / "bin/python").write_text('#!/bin/sh\necho "$*"; exit 5\n')
    (tmp_path / "bin/python").chmod(0o755)
    done = subprocess.run([script, "tests/a.py", "-k", "b c"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 5 and done.stdout.splitlines()[-1] == "-m pytest tests/a.py -k b c"


def test_ctrl_c_ends_what_runs_beside(tmp_path: Path) -> None:
    script_path = copy_script(tmp_path)
    stub(tmp_path / "bin/python", "pytest | mypy")
    said = tmp_path / "said"

    def lines() -> list[str]:
        return sorted(said.read_text().splitlines()) if said.exists() else []

    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    script = subprocess.Popen([script_path], start_new_session=True, env=environment, stdout=subprocess.DEVNULL)
    try:
        until(lambda: lines() == ["begun mypy", "begun pytest"], 30, "the beginning of both")
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(20) == 130
    finally:
        script.kill()
    assert lines() == ["begun mypy", "begun pytest", "ended mypy", "ended pytest"]
    assert not list((tmp_path / "tmp").iterdir())
