"""A test that wants what the machine lacks: skipped, written down and run again; with CI set it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
from tests.needs import need

@pytest.fixture(scope="module")
def browser():
    need("ssh", "systemd-analyze")

@pytest.mark.parametrize("page", ["the first", "[second]"])
def test_pages(browser, page):
    pass

def test_other():
    pytest.skip("for another reason: apt-get install nothing")
"""


def test_skipped_then_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    lacking, programs = tmp_path / "lacking", tmp_path / "programs"
    programs.mkdir()

    def run(*arguments: str, **variables: str) -> str:
        """Return pytest's last lines, and its exit status."""
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "DDLP_LACKING")}
        environment.update(PATH=str(programs), PYTHONPATH=str(ROOT), **variables)
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-raP", "--rootdir=.", "-o", "addopts=", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
        return f"{done.stdout}\nexit status {done.returncode}"

    what = "this machine lacks ssh, systemd-analyze: apt-get install openssh-client systemd"
    said = run("test_it.py", DDLP_LACKING=str(lacking))
    assert what in said and "3 skipped" in said and said.endswith("exit status 0"), said
    lines = [line.split("\t") for line in lacking.read_text().splitlines()]
    assert lines == [["openssh-client systemd", f"test_it.py::test_pages[{page}]"] for page in ("the first", "[second]")]
    again = tmp_path / "again"
    again.write_text("".join(f"{test}\n" for _, test in lines))
    said = run(f"@{again}", CI="1")
    assert what in said and "2 errors" in said and said.endswith("exit status 1"), said
    for program in ("ssh", "systemd-analyze"):
        (programs / program).touch(0o755)
    said = run(f"@{again}", CI="1")
    assert "2 passed" in said and said.endswith("exit status 0"), said
