"""Ctrl-C of scripts/test.sh: what runs beside it is told, and the script ends after that, with 130.

What it runs is replaced by scripts that say when they begin and when they end, half a second after they were interrupted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from engine_process import until

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


@pytest.mark.skipif(os.geteuid() != 0, reason="what runs beside are boards, which only root can make")
@pytest.mark.parametrize(
    ("in_the_making", "words"),
    [(True, ["up"]), (False, ["real_processes", "tests/board"])],
    ids=["while the systems are made", "while the tests run"],
)
def test_what_runs_beside_has_ended(tmp_path: Path, in_the_making: bool, words: list[str]) -> None:
    for directory in ("scripts", "bin", "tmp"):
        (tmp_path / directory).mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "scripts/setup_venv.sh").write_text("setup_venv() { VENV=$PWD PY=$PWD/bin/python; }\n")
    stub(tmp_path / "scripts/csd_emulator.sh", "up" if in_the_making else "nothing")
    stub(tmp_path / "bin/python", "tests/board | real_processes")
    stub(tmp_path / "bin/vermin", "nothing")
    said = tmp_path / "said"

    def lines() -> list[str]:
        return sorted(said.read_text().splitlines()) if said.exists() else []

    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    command = [tmp_path / "scripts/test.sh"]
    script = subprocess.Popen(command, start_new_session=True, env=environment, stdout=subprocess.DEVNULL)
    try:
        until(lambda: lines() == [f"begun {word}" for word in words], 20, f"the beginning of {words}")
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(20) == 130
    finally:
        script.kill()
    assert lines() == [f"{what} {word}" for what in ("begun", "ended") for word in words]
    assert not list((tmp_path / "tmp").iterdir())
