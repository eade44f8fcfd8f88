"""`python -m benchmarks.recording`: the cost of recording, measured with recording on and off by turns."""

import json

import pytest

from benchmarks import recording
from benchmarks.recording import Line, Result, aims, table
from tests.benchmarks.bench import bench


def test_a_short_run(small_sets, capsys, monkeypatch):
    monkeypatch.setattr(recording, "_TINY", 40)
    command = ["recording", "--data", str(small_sets), "--images", "24", "--batch", "4", "--rounds", "2", "--json"]
    assert bench(command) == 0
    out, err = capsys.readouterr()
    for line in json.loads(out)["lines"]:
        for name in ("cpu_plain", "cpu_recorded", "cpu_again", "wall_plain", "wall_recorded", "event_us"):
            assert len(line[name]) == 2, name
        assert line["events"] > 2 * 6 and min(line["cpu_plain"]) > 0  # each batch is prepared and trained on
    assert "wrr, batches of 1, round 2/2" in err


def test_an_unknown_strategy_is_said(capsys):
    assert bench(["recording", "--strategies", "fastest"]) == 2
    assert "ordered" in capsys.readouterr().err


def test_the_part_is_of_the_epochs_own_events():
    line = Line("cpu", 40, [10.0, 20.0, 15.0], [2.0, 1.0, 4.0], [2.1, 1.0, 3.8], [2.2, 1.1, 4.4], [2.0] * 3, [2.0] * 3)
    assert line.part == pytest.approx(40 * 15e-6 / 2.0)
    result = Result(640, 64, 1, [line])
    assert "+0.0 (-5.0 .. +5.0)" in table(result) and "+10.0 (+10.0 .. +10.0)" in table(result)
    assert "15.0 (10.0 .. 20.0)" in table(result) and "0.030%" in table(result)
    [aim] = aims(result)
    assert "reached" in aim.text and aim.measured == pytest.approx(0.01 / line.part)
