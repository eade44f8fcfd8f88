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
    assert len(result["r_cpu"]) == len(result["r_csd"]) == 1 + len(lines)  # before all and after each
    accelerator = 4 / result["accelerator_s"]
    for k, line in enumerate(result["lines"]):
        r_cpu, r_csd = ((result[name][k] + result[name][k + 1]) / 2 for name in ("r_cpu", "r_csd"))
        prepared = r_cpu * (1 - result["h_s"][0] * r_csd) + r_csd
        assert line["bounds"] == [pytest.approx(min(prepared, accelerator))]
    assert lines["csd"]["csd_batches"] == [24] and 0 <= lines["wrr"]["csd_batches"][0] < 24
    assert all(line["rates"][0] <= accelerator for line in lines.values())


def test_too_few_batches_is_said(capsys):
    assert main(["bench", "overlap", "--batches", "3"]) == 1
    assert "take 100 or more" in capsys.readouterr().err


def result_of(lines, **changed):
    figures = {"r_cpu": [10.0, 12.0, 11.0], "r_csd": [1.0, 2.0, 3.0], "h_s": [0.001] * 3, "lines": lines, **changed}
    return Result(20, 5, "uint8", 3.0, 0.01, **figures)


def test_the_table_gives_median_and_spread():
    text = table(result_of([Line("wrr", [20.0, 10.0, 40.0], [40.0, 10.0, 160.0], [3, 4, 5])]))
    assert "20 (10 .. 40)" in text and "0.500 (0.250 .. 1.000)" in text and "11 (10 .. 12)" in text


def test_gain_is_held_against_the_rates_of_that_run():
    lines = [Line(PEERS[0], [10.0]), Line(PEERS[1], [12.5]), Line("wrr", [25.0], [27.0], [3])]
    result = result_of(lines, r_cpu=[20.0, 20.0], r_csd=[8.0, 8.0], h_s=[0.001])
    of_bound, gain = aims(result)
    assert of_bound.measured == pytest.approx(25 / 27)
    assert gain.measured == pytest.approx((25 / 12.5) / ((20 + 8) / 12.5)) and "2.00" in gain.what
    assert [aim.what for aim in aims(dataclasses.replace(result, accelerator_bound=True))] == [of_bound.what]
