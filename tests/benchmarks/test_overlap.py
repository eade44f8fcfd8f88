"""`python -m benchmarks.overlap`, run small: its figures must agree with each other."""

import dataclasses
import json
import os
import time

import pytest
import torch

from benchmarks.bare import engine_batch
from benchmarks.data import loader
from benchmarks.overlap import PEERS, Line, Result, aims, table
from csd_engine.batchfile.writer import BatchWriter
from ddlp.translate.portable import portable
from tests.benchmarks.bench import bench


@pytest.mark.slow  # test_host.py has a short run in each
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
def test_a_short_run(small_sets, capsys, monkeypatch):
    for name in ("DDLP_ENGINE_CPUS", "DDLP_ENGINE_SLOWDOWN"):  # the bench sets them; monkeypatch restores them afterwards
        monkeypatch.setenv(name, "")
    status = bench([
        *("overlap", "--data", str(small_sets), "--batches", "24", "--batch", "4", "--rounds", "1"),
        *("--seconds", "0.5", "--strategies", "csd", "wrr", "--json"),
    ])  # fmt: skip
    out, err = capsys.readouterr()
    assert status == 0, err
    result = json.loads(out)
    lines = {line["name"]: line for line in result["lines"]}
    assert set(lines) == {"DataLoader, 0 workers", "DataLoader, 1 worker", "csd", "wrr"}
    assert result["slowdown"] > 1 and result["r_cpu"][0] > result["r_csd"][0] > 0
    assert result["output"] == "float32" and 0 < result["h_s"][0]
    assert len(result["r_cpu"]) == len(result["r_csd"]) == 1 + len(lines)  # measured before all contenders and after each
    accelerator = 4 / result["accelerator_s"]
    assert len(result["speeds"]) == len(result["r_cpu"]) and len(result["h_speeds"]) == 1
    for line in lines.values():
        ((host, engine),) = line["speeds"]
        assert 20 < host < 100_000 and 20 < engine < 100_000  # preparations of one of these samples per second
    assert lines["csd"]["csd_batches"] == [24] and 0 <= lines["wrr"]["csd_batches"][0] < 24
    assert all(line["rates"][0] <= accelerator for line in lines.values())


@pytest.mark.parametrize("work", ["__init__", "write_rows"])
def test_a_bare_engine_is_slow_at_its_files_as_well(small_sets, tmp_path, monkeypatch, work):
    """A slowed worker is slow at files too. Else the bound would be of a device with a fast processor for part of the work."""
    found = portable(loader(small_sets / "110kb", "imagenet1", 4), torch.uint8, torch.channels_last)
    make = engine_batch(found, 4, str(tmp_path), 3.0)
    make(0)
    inner, calls = getattr(BatchWriter, work), []

    def slowly(*arguments):
        calls.append(0)
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        inner(*arguments)

    monkeypatch.setattr(BatchWriter, work, slowly)
    began = time.monotonic()
    make(1)
    assert calls and time.monotonic() - began >= 3 * 0.05 * len(calls)
    assert not list(tmp_path.iterdir())


def test_too_few_batches_is_said(capsys):
    assert bench(["overlap", "--batches", "3"]) == 1
    assert "take 100 or more" in capsys.readouterr().err


def result_of(lines, **changed):
    """The core was twice as fast when the second rate was measured. The engine's core was equally fast throughout."""
    figures = {"r_cpu": [10.0, 20.0, 11.0], "r_csd": [1.0, 2.0, 3.0], "speeds": [(1.0, 1.0), (2.0, 1.0), (1.0, 1.0)]}
    figures |= {"h_s": [0.001] * 3, "h_speeds": [(1.0, 1.0)] * 3, "lines": lines, **changed}
    return Result(20, 5, "uint8", 3.0, 0.01, **figures)


def test_the_table_gives_median_and_spread():
    line = Line("wrr", [12.0, 11.0, 22.0], [(1.0, 1.0), (1.0, 1.0), (2.0, 1.0)], [3, 4, 5])
    text = table(result_of([line]))
    assert (
        "12 (11 .. 22)" in text and "12 (12 .. 22)" in text and "1.000 (0.917 .. 1.000)" in text and "10 (10 .. 20)" not in text
    )


def test_a_bound_is_of_cores_as_fast_as_the_contender_had_them():
    result = result_of([])
    assert result.bare((1.0, 1.0)) == (10.0, 2.0) and result.bare((3.0, 0.5)) == (30.0, 1.0)
    assert result.bound((3.0, 0.5)) == 31
    assert dataclasses.replace(result, accelerator_s=5 / 7).bound((3.0, 0.5)) == 7
    float32 = dataclasses.replace(result, output="float32", h_s=[0.2, 0.1, 0.2], h_speeds=[(1.0, 1.0), (2.0, 1.0), (1.0, 1.0)])
    assert float32.bound((1.0, 1.0)) == pytest.approx(10 * (1 - 0.2 * 2) + 2)
    assert float32.bound((2.0, 1.0)) == pytest.approx(20 * (1 - 0.1 * 2) + 2)  # converting is faster then, too


def test_gain_is_over_the_best_dataloader_on_a_core_as_fast():
    lines = [Line(PEERS[0], [10.0], [(1.0, 1.0)]), Line(PEERS[1], [12.5], [(1.0, 1.0)]), Line("wrr", [50.0], [(2.0, 1.0)], [3])]
    result = result_of(lines, r_cpu=[20.0, 20.0], r_csd=[8.0, 8.0], speeds=[(1.0, 1.0)] * 2)
    of_bound, gain = aims(result)
    assert of_bound.measured == pytest.approx(50 / 48)
    assert gain.measured == pytest.approx((50 / 25) / ((40 + 8) / 25)) and "2.00" in gain.what
    assert [aim.what for aim in aims(dataclasses.replace(result, accelerator_bound=True))] == [of_bound.what]
