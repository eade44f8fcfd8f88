"""`python -m benchmarks.memory`, run small."""

import json

import pytest

from tests.benchmarks.bench import bench


@pytest.mark.slow  # it watches whole training programs
def test_memory(capsys, small_sets):
    arguments = ["--data", str(small_sets), "--batch", "4", "--workers", "1", "--steps", "3", "--step-s", "0.4"]
    assert bench(["memory", *arguments, "--rounds", "1", "--json"]) == 0
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert [line["processes"] for line in lines.values()] == [2, 1, 3]  # one worker; no worker; the engine and its worker
    for line in lines.values():
        assert 50 < line["median_mb"][0] <= line["peak_mb"][0] and 0 <= line["unmapped_mb"][0] < line["peak_mb"][0]
