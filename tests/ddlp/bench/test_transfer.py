"""The benchmark of the transfer, run small, as a user would."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_short_run():
    command = [sys.executable, "-m", "ddlp", "bench", "transfer", "--batch", "64", "--size", "64", "--batches", "3"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = {line["name"]: line for line in json.loads(done.stdout)}
    assert set(lines) == {"bare read", "through the spool", "over the socket"}
    file_mb = (4096 + 64 * 64 * 64 * 3) / 1e6
    for line in lines.values():
        assert 0 < line["median_s"] <= line["worst_s"]
        assert abs(line["mb_per_s"] * line["median_s"] - file_mb) < 1e-6
    table = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT).stdout
    assert "over the socket" in table and "engine CPU ms" in table
