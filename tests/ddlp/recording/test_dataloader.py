"""`MeasuredDataLoader`: torch's own DataLoader to the bit, and what is measured of it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ddlp.cli import main
from ddlp.errors import DDLPError
from ddlp.observe import MeasuredDataLoader, analyse, read_run
from ddlp.recording.events import Exhausted, HostBatch, Step

BATCHES, BATCH, SPIN_S = 12, 2, 0.002

pytestmark = pytest.mark.usefixtures("hard_limit")


class Draws(Dataset[Any]):
    """Its samples draw from the global generators, and one loads by a DataLoader of its own."""

    started = -1

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is None or info.dataset is self, "the user's own data set"
        nested = next(iter(DataLoader(range(3), 3))) if index == 3 else torch.arange(3)
        return index, torch.rand(3), random.random(), np.random.rand(2), nested, self.started


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.rand(2) for _ in range(7)])


class Spins(Dataset[Any]):
    """Each sample takes `SPIN_S` of processor time."""

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Any:
        if index == BATCHES * BATCH:
            raise ValueError("no such sample")
        until = time.thread_time() + SPIN_S
        while time.thread_time() < until:
            pass
        return torch.tensor(index)


def start(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.started = worker


def epochs(kind: type, dataset: Any, **options: Any) -> tuple[Any, Any]:
    """Two epochs' batches as bytes, and torch's next number."""
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    given = {} if isinstance(dataset, Stream) else {"shuffle": True}
    loader = kind(dataset, **{"batch_size": BATCH, **given, **options})
    seen = [[parts(batch) for batch in loader] for _ in range(2)]
    return seen, torch.rand(1).item()


def parts(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else [torch.as_tensor(one).tolist() for one in batch]


@pytest.mark.parametrize("options", [
    {}, {"num_workers": 1, "worker_init_fn": start}, {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "generator": None, "drop_last": True, "prefetch_factor": 1}, {"batch_size": None, "num_workers": 1},
])  # fmt: skip
@pytest.mark.parametrize("dataset", [Draws, Stream])
@pytest.mark.some(3)
def test_it_is_torchs_own_to_the_bit(dataset: type, options: Any) -> None:
    given = {name: value for name, value in options.items() if name != "worker_init_fn" or dataset is Draws}
    assert epochs(MeasuredDataLoader, dataset(), **given) == epochs(DataLoader, dataset(), **given)


def measured(run: Path | None, workers: int, dataset: Any = None, **options: Any) -> MeasuredDataLoader:
    loader = MeasuredDataLoader(dataset or Spins(), BATCH, num_workers=workers, record=run, **options)
    for _ in loader:
        time.sleep(0.001)
    return loader


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_and_its_processor_time_are_recorded(tmp_path: Path, workers: int) -> None:
    report = measured(tmp_path, workers).report()
    (trace,) = read_run(tmp_path)
    began = trace.began
    assert (began.strategy, began.batches, began.batch_size, began.workers) == ("dataloader", BATCHES, BATCH, max(1, workers))
    assert began.prepared_by == ("torch's workers" if workers else "training thread")
    assert trace.whole and trace.left_out == 0 and len(trace.of(Exhausted)) == 1
    steps, made = trace.of(Step), trace.of(HostBatch)
    assert [step.position for step in steps] == [batch.position for batch in made] == list(range(BATCHES))
    spun = 0.999 * BATCH * SPIN_S  # less the digits that are not written
    assert all(spun <= batch.cpu_s and spun <= batch.ended_at - batch.began_at for batch in made)
    assert (report.strategy, report.epoch, report.samples, report.batches_cpu) == ("dataloader", 0, BATCHES * BATCH, BATCHES)
    assert report.host_cpu_s >= BATCHES * spun and report.workers == workers and report.processors
    assert report.rate_cpu and report.rate_cpu <= max(1, workers) / SPIN_S and 0 < report.waiting_s <= report.seconds


def test_its_readers_take_it_and_the_plan_has_it_as_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(tmp_path, 2)
    trace = read_run(tmp_path)[0]
    assert analyse(trace).strategy == "dataloader"
    assert main(["analyse", str(tmp_path)]) == 0 and "epoch 0, dataloader: " in capsys.readouterr().out
    given = ["plan", "--from-run", str(tmp_path), "--engine", "csd=5"]
    assert main([*given, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    first, row = plan["rows"][:2]
    took_s = trace.of(Exhausted)[0].asked_at - trace.of(Step)[0].asked_at
    assert (first["name"], row["name"], row["engines"]) == ("cpu", "dataloader, as recorded", [])
    assert row["seconds"] == pytest.approx(took_s)
    waited_s = sum(step.got_at - step.asked_at for step in trace.of(Step))
    assert row["waiting"] == pytest.approx(waited_s / took_s)
    assert row["speed"] == pytest.approx(first["seconds"] / took_s)
    figures = plan["setup"]["measured"]
    assert figures["host_batches_per_s"] > 0 and figures["host_cpu_s_per_batch"] >= 0.999 * BATCH * SPIN_S
    assert any("torch's own DataLoader" in one for one in plan["setup"]["assumed"])
    assert main(given) == 0 and "\ndataloader, as recorded " in capsys.readouterr().out
    assert main(["trace", str(tmp_path)]) == main(["report", str(tmp_path)]) == 0


def test_workers_that_persist_and_an_epoch_that_is_broken_off(tmp_path: Path) -> None:
    loader = measured(tmp_path, 1, persistent_workers=True)
    kept: Any = loader._iterator
    workers = list(kept._workers)
    next(iter(loader))
    list(loader)
    assert loader._iterator is kept and kept._workers == workers
    whole, broken_off, again = read_run(tmp_path)
    assert [[step.position for step in trace.of(Step)] for trace in (whole, broken_off, again)] == [
        list(range(BATCHES)), [0], list(range(BATCHES)),
    ]  # fmt: skip
    assert [trace.began.epoch for trace in (whole, broken_off, again)] == [0, 1, 2] and again.whole
    assert loader._life.last.process_cpu_s > 0, "the end of this epoch was noted"
    assert loader.report().epoch == 2 and loader._life.total().samples == (2 * BATCHES + 1) * BATCH


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_fails_raises_in_its_place(tmp_path: Path, workers: int) -> None:
    order: Any = [0, BATCHES * BATCH, 1]
    iterator = iter(MeasuredDataLoader(Spins(), 1, sampler=order, num_workers=workers, record=tmp_path))
    assert next(iterator).tolist() == [0]
    with pytest.raises(ValueError, match="no such sample"):
        next(iterator)
    assert next(iterator).tolist() == [1] and next(iterator, None) is None
    assert len(read_run(tmp_path)[0].of(Step)) == 2


def test_without_a_recording_nothing_is_written_and_without_an_epoch_there_is_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = MeasuredDataLoader(Spins(), BATCH)
    with pytest.raises(DDLPError, match="no epoch has begun"):
        loader.report()
    list(loader)
    assert loader.report().samples == BATCHES * BATCH and not list(tmp_path.iterdir())


def test_a_dropped_loader_leaves_no_worker() -> None:
    """As DataLoader's: nothing keeps an iterator whose workers persist."""
    loader = measured(None, 1, persistent_workers=True)
    kept: Any = loader._iterator
    (process,) = kept._workers
    del loader, kept
    process.join(60)
    assert process.exitcode is not None
