"""`python -m scripts.chaos`: a bug that is planted is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddlp.process.platforms import other_system
from scripts.chaos.command import main
from scripts.chaos.faults import FAULTS
from scripts.chaos.planted import PLANTED
from scripts.chaos.training import ENDINGS

pytestmark = pytest.mark.skipif(other_system() is not None, reason="engines run on Linux alone")
ROOT = Path(__file__).resolve().parents[2]


def chaos(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "scripts.chaos", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    return done.returncode, done.stdout


def test_a_planted_bug_is_found():
    """The host takes what it reads, whatever its checksum."""
    status, told = chaos("--seed", "1", "--minutes", "2", "--only", "file flipped", "--plant", "skipped-checksum")
    assert status == 1 and "wrong bits" in told, told[-4000:]


def test_every_bug_can_be_planted():
    assert sorted(PLANTED) == ["double-delivery", "forgotten-reclaim", "skipped-checksum"]


def test_its_names(capsys):
    assert main(["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == [*(fault.name for fault in FAULTS), *ENDINGS] and len(set(names)) == len(names)
    assert main(["--only", "earthquake"]) == 2 and "no fault is called anything like earthquake" in capsys.readouterr().err
