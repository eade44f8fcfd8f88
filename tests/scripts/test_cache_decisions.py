"""scripts/cache_decisions.py: all that can be kept is tried, and the choice is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("setup", "ways"),
    (pytest.param("files, crops, room for all", 2, marks=pytest.mark.slow), ("objects, crops, room for a fifth", 3)),
)
def test_a_set_up(setup: str, ways: int) -> None:
    """Only of objects files are kept. So few images tell nothing about the times."""
    pytest.importorskip("obstore")
    command = [sys.executable, "-m", "scripts.cache_decisions", "--only", setup, "--images", "16", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    line, last = done.stdout.splitlines()
    assert re.match(rf"{setup}: off \d.*it chose (off|pixels|files), (right|WRONG)", line)
    assert line.count(" s for 10 epochs") == 1 and len(re.findall(r"(?:off|pixels|files) \d+\.\d\d", line)) == ways
    assert last in ("1 of 1 choices are right", "0 of 1 choices are right")
