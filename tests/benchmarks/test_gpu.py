"""The benchmarks of a GPU, run small with the CPU as the device: the same code, with real files, engines and models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, train
from benchmarks.train import Line, Result, aims, table
from ddlp.transfer.file_readers import PinnedReader
from ddlp.transfer.mapped_batch import may_map
from tests.benchmarks.bench import bench
from tests.engine_process import children


def engines():
    """(process id, its number of workers) of each engine that this process has started."""
    for pid in children(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "csd_engine" in words:
            yield pid, words[words.index("--workers") + 1]


def test_each_way_beside_its_bound(capsys, tmp_path):
    if not may_map(tmp_path):
        pytest.skip(f"{tmp_path} is on no file system that is mapped, or in a chroot, where that can't be told")
    small = ["--batch", "4", "--size", "64", "--rounds", "2", "--reads", "3", "--files", "2", "--spool", str(tmp_path)]
    saved = tmp_path / "figures.json"
    assert bench(["gpu", "--device", "cpu", *small, "--ways", "pinned", "mmap", "--aims", "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    figures = json.loads(saved.read_text())
    assert set(figures["rates"]) == {
        "copy from page-locked memory", "raw read", "pinned: read", "pinned: read, verified, finished", "mmap: read",
        "mmap: read, verified, finished",
    }  # fmt: skip
    assert all(len(rates) == 2 and min(rates) > 0 for rates in figures["rates"].values())
    assert "cpu; batches of 4, 0.1 MB each, in the page cache; GB/s" in out and "pinned: read: of a copy from" in out


def test_cold_each_read_is_of_a_file_that_was_forgotten(capsys, tmp_path, monkeypatch):
    """Five reads of two files: a file is dropped from the page cache before each of its reads, and at no other time."""
    files, forget, read = [], gpu._forget, PinnedReader.read

    def forgetting(path):
        files.append(("forgotten", path))
        forget(path)

    def reading(self, path, *others):
        files.append(("read", path))
        return read(self, path, *others)

    monkeypatch.setattr(gpu, "_forget", forgetting)
    monkeypatch.setattr(PinnedReader, "read", reading)
    small = ["--batch", "2", "--size", "32", "--rounds", "1", "--reads", "5", "--files", "2", "--spool", str(tmp_path)]
    assert bench(["gpu", "--device", "cpu", "--cold", *small, "--ways", "pinned"]) == 0
    assert "read from the disk" in capsys.readouterr().out
    warm_up_and_round, turns, with_the_way = 2, 4, 2
    assert sum(what == "forgotten" for what, _ in files) == warm_up_and_round * turns * 5
    assert sum(what == "read" for what, _ in files) == warm_up_and_round * with_the_way * 5
    for path in {path for _, path in files}:
        told = [what for what, of in files if of == path]
        assert ("read", "read") not in zip(told, told[1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_way_that_is_not_here_is_said(capsys):
    assert bench(["gpu", "--device", "cpu", "--batch", "2", "--size", "32", "--rounds", "1", "--reads", "1"]) == 0
    assert "gds: not here: " in capsys.readouterr().out
    assert bench(["gpu"]) == 1
    assert bench(["train"]) == 1
    assert capsys.readouterr().err.count("torch finds no GPU here") == 2


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
def test_epochs_of_a_model_beside_their_bound(capsys, small_sets, monkeypatch):
    for name in ("DDLP_ENGINE_CPUS", "DDLP_ENGINE_WORKERS"):
        monkeypatch.setenv(name, "")  # the bench sets it; monkeypatch restores it afterwards
        monkeypatch.delenv(name)
    epoch, seen = train._epoch, set()

    def watched(*arguments):
        rate = epoch(*arguments)
        seen.update(engines())
        return rate

    monkeypatch.setattr(train, "_epoch", watched)
    sizes = ["--batch", "2", "--batches", "16", "--rounds", "1", "--host-cpus", "1", "--engine-cpus", "1", "--workers", "0"]
    model = ["--device", "cpu", "--model", "shufflenet_v2_x0_5"]
    assert bench(["train", "--data", str(small_sets), *model, *sizes, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    lines = {line["name"]: line for line in figures["lines"]}
    assert list(lines) == ["DataLoader", "cpu", "mte", "wrr"]
    assert lines["cpu"]["csd"] == [0.0] and 0 < lines["mte"]["csd"][0] < 1
    assert all(line["rates"][0] > 0 and line["idle_ms"][0] > 0 for line in lines.values())
    # Without a worker, each batch is prepared between two steps.
    assert 0 < figures["idle_ms"][0] < lines["DataLoader"]["idle_ms"][0]
    assert figures["aims"][0]["what"] == "wrr, shufflenet_v2_x0_5: of the bound"
    ((pid, workers),) = seen  # one engine for all epochs, with a worker on each of its cores
    assert workers == "1" and pid not in dict(engines())


def test_the_bound_is_the_slower_of_training_and_both_sides_together():
    result = Result("a GPU", "a model", 8, 10, [0], [1], r_train=[100.0, 300.0], r_cpu=[150.0, 150.0], r_csd=[50.0, 50.0])
    result.idle_ms = [1.0, 1.0]
    assert result.bounds == [100.0, 200.0]
    baseline = Line("DataLoader", [50.0, 60.0], idle_ms=[9.0, 9.0])
    result.lines = [baseline, Line("wrr", [95.0, 190.0], [0.1, 0.2], [0.25, 0.5], [9.0, 9.0])]
    assert len(aims(result)) == 1  # training has to wait in the second round: no aim for idle time
    assert [aim.measured for aim in aims(result)] == [pytest.approx(0.95)]
    assert "0.950 (0.950 .. 0.950)" in table(result) and "15.0 (10.0 .. 20.0)" in table(result)


def test_where_training_is_the_bound_the_device_waits_for_no_batch():
    """Steps of 80 ms have 1 ms of idle time even if the batch is ready. 3 ms are 2 ms too many: a fortieth of a step."""
    rates = {"r_train": [100.0, 100.0], "r_cpu": [150.0, 150.0], "r_csd": [50.0, 50.0], "idle_ms": [1.0, 1.0]}
    result = Result("a GPU", "a model", 8, 10, [0], [1], **rates)
    result.lines = [Line("wrr", [100.0, 100.0], [0.0, 0.0], [0.25, 0.25], [3.0, 3.0])]
    aim = aims(result)[1]
    assert (aim.what, aim.measured) == ("wrr, a model: part of a step without waiting for a batch", pytest.approx(1 - 2 / 80))
    assert "MISSED" in aim.text
    assert "on a batch that lies there 1.00 (1.00 .. 1.00) ms" in table(result) and "3.00 (3.00 .. 3.00)" in table(result)


def test_the_device_is_idle_from_one_step_s_end_to_the_next_one_s_beginning(monkeypatch):
    """Time before the first step and after the last one does not count, nor the time while a step runs."""
    now = [0.0]
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])

    def passing(seconds):
        now[0] += seconds

    def batches():
        for wait_s in (7.0, 0.5, 1.0, 1.5):
            passing(wait_s)
            yield torch.zeros(1), torch.zeros(1)
        passing(6.0)

    rate, idle_ms = train._epoch(batches(), lambda images, labels: passing(2.0), 3, torch.device("cpu"))
    assert idle_ms == pytest.approx(1000)
    assert rate == pytest.approx(4 * 3 / 24)
