"""The checks of templates/pools: a real Slurm cluster and a real image, with a pool of engines in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import need

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")]


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_slurm():
    need("slurmctld")
    said = run("tests/templates/slurm_cluster.sh", "3")
    assert said.count("each once and with the host's bits") == 2 and said.count("nothing is left") == 2


def test_container():
    need("debootstrap")
    said = run(sys.executable, "-m", "scripts.container_check")
    assert said.count("each once and with the host's bits") == 2 and said.count("a pod ended") == 2
