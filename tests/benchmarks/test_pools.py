"""`python -m benchmarks.pools`, run small with a real engine: its figures must agree with each other."""

from __future__ import annotations

import json

import pytest

from benchmarks.pools import Line, Result, aims, table
from tests.benchmarks.bench import bench


def test_a_short_run(capsys):
    assert bench(["pools", "--engines", "1", "--batches", "4", "--rounds", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (line,) = result["lines"]
    assert line["engines"] == 1 and all(len(line[name]) == 1 and line[name][0] > 0 for name in ("ours", "dataloader"))
    assert 0 < line["bound"][0] < 2.1 / result["host_s"]  # host and one engine as fast as it


def test_the_bound_is_each_rounds_own(capsys):
    result = Result(0.08, 0.08, 0.004, [Line(2, [40.0, 20.0], [38.0, 20.0], [30.0, 30.0])])
    assert result.lines[0].of_bound == [0.95, 1.0] and "0.975 (0.950 .. 1.000)" in table(result)
    (aim,) = aims(result)
    assert aim.measured == pytest.approx(0.975) and aim.text.endswith("reached")
    assert bench(["pools", "--engines", "0"]) == 1 and "numbers of 1 or more" in capsys.readouterr().err
