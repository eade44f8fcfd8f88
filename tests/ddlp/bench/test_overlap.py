"""The benchmark measures what it says: run small, its figures held against each other."""

import dataclasses
import json
import os

import pytest

from ddlp.bench.overlap import PEERS, Line, Result, aims, table
from ddlp.cli import main


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
def test_a_short_run(small_sets, capsys, monkeypatch):
    for name in ("DDLP_ENGINE_CPUS", "DDLP_ENGINE_SLOWDOWN"):  # the bench sets them; this has them as before afterwards
        monkeypatch.setenv(name, "")
    cpus = sorted(os.sched_getaffinity(0))
    status = main([
        *("bench", "overlap", "--data", str(small_sets), "--batches", "24", "--batch", "4", "--rounds", "1"),
        *("--seconds", "0.5", "--strategies", "csd", "wrr", "--slowdown", "3", "--host-cpu", str(cpus[0])),
        *("--csd-cpu", str(cpus[1]), "--json"),
    ])  # fmt: skip
    out, err = capsys.readouterr()
    assert status == 0, err
    result = json.loads(out)
    lines = {line["name"]: line for line in result["lines"]}
    assert set(lines) == {"DataLoader, 0 workers", "DataLoader, 1 worker", "csd", "wrr"}
    assert result["slowdown"] == 3 and result["r_cpu"][0] > result["r_csd"][0] > 0
    assert result["output"] == "float32" and 0 < result["h_s"][0] < 1 / result["r_cpu"][0]  # a part of preparing it
    prepared = 24 * 4 / (result["r_cpu"][0] * (1 - result["h_s"][0] * result["r_csd"][0]) + result["r_csd"][0])
    assert result["bound_s"][0] == pytest.approx(max(prepared, 24 * result["accelerator_s"]))
    assert lines["csd"]["csd_batches"] == [24] and 0 <= lines["wrr"]["csd_batches"][0] < 24
    assert all(line["seconds"][0] >= 24 * result["accelerator_s"] for line in lines.values())


def test_too_few_batches_is_said(capsys):
    assert main(["bench", "overlap", "--batches", "3"]) == 1
    assert "take 200 or more" in capsys.readouterr().err


def test_the_table_gives_median_and_spread():
    line = Line("wrr", [2.0, 1.0, 4.0], [0.5, 1.0, 0.25], [3, 4, 5])
    result = Result(20, 5, "uint8", 0.01, 3.0, [10.0, 12.0, 11.0], [1.0, 2.0, 3.0], [0.001] * 3, False, [1.0, 1.1, 0.9], [line])
    text = table(result)
    assert "2.00 (1.00 .. 4.00)" in text and "0.500 (0.250 .. 1.000)" in text and "11 (10 .. 12)" in text


def test_gain_is_held_against_the_rates_of_that_run():
    lines = [Line(PEERS[0], [10.0]), Line(PEERS[1], [8.0]), Line("wrr", [4.0], [0.9], [3])]
    result = Result(10, 10, "uint8", 0.0, 1.0, [20.0], [8.0], [0.001], False, [100 / 28], lines)
    of_bound, gain = aims(result)
    assert of_bound.measured == 0.9
    assert gain.measured == pytest.approx((8 / 4) / ((20 + 8) / (100 / 8)))  # DataLoader's best made 100 samples in 8 s
    assert [aim.what for aim in aims(dataclasses.replace(result, accelerator_bound=True))] == [of_bound.what]
