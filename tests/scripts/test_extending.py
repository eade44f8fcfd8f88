"""docs/extending.md: the code of each recipe runs as it is printed there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forks import Forks

ROOT = Path(__file__).resolve().parents[2]


def code_of(heading: str) -> str:
    """The Python block under this heading."""
    section = (ROOT / "docs/extending.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return code


@pytest.fixture
def run(forks: Forks, tmp_path: Path) -> Callable[[str], str]:
    """Run the code in another process, and return what it prints."""

    def one(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DDLP_HOME": str(tmp_path)}
        done = forks.run(code=code, cwd=tmp_path, environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return one


def test_a_strategy(run: Callable[[str], str]) -> None:
    said = run(code_of("A strategy"))
    assert "strategy   tail first (given): both sides; of the batches that are ready" in said
    assert "epoch 0, tail first, checked: nothing found" in said and "not checked order: tail first promises none" in said
    assert "epoch 0, tail first: 64 samples" in said


def test_an_operator(run: Callable[[str], str]) -> None:
    assert run(code_of("An operator")) == "True\n"


def test_a_source(run: Callable[[str], str]) -> None:
    code = code_of("A source")
    assert len(code.splitlines()) <= 60
    said = run(code)
    assert "epoch 0, csd, checked: nothing found" in said
    assert "16 epoch 0, csd: 64 samples" in said and "0 by this host, 16 by devices" in said
