"""`python -m scripts.chaos`: a short run finds nothing, and a run finds a planted bug."""

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
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
    return done.returncode, done.stdout


def test_half_a_minute_of_it_finds_nothing():
    """A busy computer is slow, so only an epoch of ten minutes counts as hanging."""
    status, told = chaos("--seed", "5", "--minutes", "0.5", "--patience", "600")
    assert status == 0 and "nothing lost, doubled or wrong" in told, told[-4000:]


def test_a_planted_bug_is_found():
    """The other bugs take some rounds to find: docs/chaos.md has their commands."""
    status, told = chaos("--seed", "1", "--rounds", "1", "--patience", "600", "--plant", "double-delivery")
    assert status == 1 and "4 doubled" in told, told[-4000:]


def test_every_bug_can_be_planted():
    assert sorted(PLANTED) == ["double-delivery", "forgotten-reclaim", "skipped-checksum"]


def test_its_names(capsys):
    assert main(["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == [*(fault.name for fault in FAULTS), *ENDINGS] and len(set(names)) == len(names)
    assert main(["--only", "earthquake"]) == 2 and "no fault is called anything like earthquake" in capsys.readouterr().err
