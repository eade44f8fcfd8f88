"""templates/pools/slurm.sh on a real Slurm cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.needs import need

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")]


def test_a_job_and_one_that_is_cancelled():
    need("slurmctld")
    command = [Path(__file__).with_name("slurm_cluster.sh"), "3"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("each once and with the host's bits") == 2 and done.stdout.count("nothing is left") == 2
