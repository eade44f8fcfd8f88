"""scripts/test.sh: Ctrl-C reaches what it has started, and then it ends with status 130. If a part fails, it fails.

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
    stub(place / "scripts/csd_emulator.sh", "nothing")
    for program in ("vermin", "codespell"):
        stub(place / "bin" / program, "nothing")
    return place / "scripts/test.sh"


@pytest.mark.parametrize("failing", ["mypy", "tests/ddlp/schedule", "tests/benchmarks", "--ignore=tests/benchmarks", None])
def test_a_part_that_fails_is_a_failure(tmp_path: Path, failing: str | None) -> None:
    script = copy_script(tmp_path)
    (tmp_path / "bin/python").write_text(
        f'#!/bin/sh\n[ -z "$CI" ] || exit 3\necho "$*" | grep -q -e "[ ]{failing}" && exit 3\necho "ran $(nice) $*"\n'
    )
    (tmp_path / "bin/python").chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "CI": "true"}  # there too, what is missing is skipped
    done = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == (0 if failing is None else 1)
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert len(ran) == 15 - (failing is not None)  # torch, ruff, mypy and twelve calls of pytest: the others still run
    yields = [line for line in ran if int(line.split()[1]) > os.nice(0)]
    parts = ("board", "ddlp/deploy", "ddlp/faults", "csd_engine ")
    races = [line for line in ran if any(f" tests/{part}" in line for part in parts)]
    assert len(yields) == 3 - (failing in ("mypy", "tests/ddlp/schedule")) and len(races) == 4 and not {*yields} & {*races}


@pytest.mark.parametrize("installed", [True, False])
def test_the_first_parts_run_while_the_rest_is_installed(tmp_path: Path, installed: bool) -> None:
    """pip takes what it is given here until three parts have begun. If it fails, no other part begins."""
    script = copy_script(tmp_path)
    (tmp_path / "scripts/setup_venv.sh").write_text(
        "setup_venv() {\n  VENV=$PWD PY=$PWD/bin/python; [ $1 = dali ] || return 0\n"
        '  until [ "$(grep -c tests/ began)" = 3 ]; do sleep 0.05; done 2>/dev/null\n'
        f"  echo 'pip is done'; echo installed >>began; exit {int(not installed)}\n}}\n"
    )
    (tmp_path / "bin/python").write_text('#!/bin/sh\necho "$*" >>began\n')
    (tmp_path / "bin/python").chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    environment.pop("DDLP_CONSTRAINTS", None)
    done = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    began = (tmp_path / "began").read_text().splitlines()
    calls = [line for line in began if "pytest" in line or line == "installed"]
    parts = [line.partition("--durations=10 ")[2].partition(" --ignore")[0] for line in calls]
    assert {*parts[:3]} == {f"-m not slow tests/{part}" for part in ("ddlp/faults", "ddlp/deploy", "board")}
    assert parts[3] == "" and len(parts) == (13 if installed else 4)
    assert done.returncode == (not installed) and "pip is done" in done.stdout and not list((tmp_path / "tmp").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="what runs beside are boards, which only root can make")
@pytest.mark.parametrize(
    ("in_the_making", "words"),
    [(True, ["up"]), (False, ["mypy", "tests/board"])],
    ids=["while the systems are made", "while the tests run"],
)
def test_what_runs_beside_has_ended(tmp_path: Path, in_the_making: bool, words: list[str]) -> None:
    script_path = copy_script(tmp_path)
    stub(tmp_path / "scripts/csd_emulator.sh", "up" if in_the_making else "nothing")
    stub(tmp_path / "bin/python", "tests/board | mypy")
    said = tmp_path / "said"

    def lines() -> list[str]:
        return sorted(said.read_text().splitlines()) if said.exists() else []

    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    script = subprocess.Popen([script_path], start_new_session=True, env=environment, stdout=subprocess.DEVNULL)
    try:
        until(lambda: lines() == [f"begun {word}" for word in words], 20, f"the beginning of {words}")
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(20) == 130
    finally:
        script.kill()
    assert lines() == [f"{what} {word}" for what in ("begun", "ended") for word in words]
    assert not list((tmp_path / "tmp").iterdir())
