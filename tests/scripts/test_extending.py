"""docs/extending.md: the code of each recipe runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def code_of(heading: str) -> str:
    """The Python block under this heading."""
    section = (ROOT / "docs/extending.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return code


def run(code: str, directory: Path) -> str:
    """What it prints, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DDLP_HOME": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_strategy(tmp_path: Path) -> None:
    said = run(code_of("A strategy"), tmp_path)
    assert "strategy   tail first (given): both sides; of the batches that are ready" in said
    assert "epoch 0, tail first, checked: nothing found" in said and "not checked order: tail first promises none" in said
    assert "epoch 0, tail first: 64 samples" in said


def test_an_operator(tmp_path: Path) -> None:
    assert run(code_of("An operator"), tmp_path) == "True\n"


def test_a_source(tmp_path: Path) -> None:
    code = code_of("A source")
    assert len(code.splitlines()) <= 60
    said = run(code, tmp_path)
    assert "epoch 0, csd, checked: nothing found" in said
    assert "16 epoch 0, csd: 64 samples" in said and "0 by this host, 16 by devices" in said
