"""`record=` of an epoch that torch's own workers prepare: the same events as of ddlp's own, for the same readers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from ddlp import DDLPLoader
from ddlp.cli import main
from ddlp.observe import analyse, read_run
from ddlp.observe.analysis import CPU, WAITING
from ddlp.recording.events import Exhausted, HostBatch, Rested, Step

BATCHES, BATCH, SLEEP_S = 24, 2, 0.002

pytestmark = pytest.mark.usefixtures("hard_limit")


class Sleeps(Dataset[Any]):
    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLEEP_S)
        return torch.tensor(index)


class Bad(Sleeps):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("no such sample")
        return super().__getitem__(index)


def epoch(run: Path, workers: int, **options: Any) -> tuple[Any, Any]:
    """An epoch whose step sleeps; its recording and its analysis."""
    loader = DDLPLoader(Sleeps(), BATCH, num_workers=workers, record=run, **options)
    for _ in loader:
        time.sleep(0.001)
    trace = read_run(run)[-1]
    assert trace.whole and trace.left_out == 0
    return trace, analyse(trace)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_each_batch_is_there(tmp_path: Path, workers: int) -> None:
    trace, found = epoch(tmp_path, workers)
    began = trace.began
    assert (began.batches, began.batch_size, began.workers, began.strategy) == (BATCHES, BATCH, max(1, workers), "cpu")
    assert began.prepared_by == ("torch's workers" if workers else "training thread")
    steps, made = trace.of(Step), trace.of(HostBatch)
    assert [step.position for step in steps] == [batch.position for batch in made] == list(range(BATCHES))
    assert all(a.asked_at <= a.got_at <= a.handed_at <= b.asked_at for a, b in zip(steps, steps[1:], strict=False))
    slept = 0.999 * BATCH * SLEEP_S  # less the digits that are not written
    assert all(b.ended_at - b.began_at >= slept and b.ended_at <= s.got_at for s, b in zip(steps, made, strict=True))
    assert all(b.cpu_s > 0 for b in made) and len(trace.of(Exhausted)) == 1
    last = [rest.number for rest in trace.of(Rested) if rest.last]
    assert sorted(last) == list(range(workers))
    for worker in range(workers):  # batches and rests follow upon each other, without a gap
        mine = [(b.began_at, b.ended_at) for b in made if b.worker == worker]
        mine += [(r.began_at, r.ended_at) for r in trace.of(Rested) if r.number == worker]
        assert all(a[1] == b[0] for a, b in zip(sorted(mine), sorted(mine)[1:], strict=False))
    assert found.batches == {"cpu": BATCHES, "csd": 0} and found.samples == BATCHES * BATCH
    assert found.rates.host and found.bound_s and found.rates.host <= max(1, workers) / SLEEP_S


@pytest.mark.parametrize("workers", [0, 2])
def test_all_seconds_are_accounted_for(tmp_path: Path, workers: int) -> None:
    trace, found = epoch(tmp_path, workers)
    assert sum(found.seconds.values()) == pytest.approx(found.wall_s, rel=0.01)
    names = {resource.name: resource for resource in found.resources}
    assert ("host workers" in names) == bool(workers)
    for resource in found.resources:
        assert abs(resource.unaccounted_s) <= 0.02 * resource.wall_s
    if workers:
        assert names["host workers"].busy_s >= BATCHES * BATCH * SLEEP_S


def test_what_the_training_thread_prepares_is_its_work_and_no_waiting(tmp_path: Path) -> None:
    _, found = epoch(tmp_path, 0)
    slept = BATCHES * BATCH * SLEEP_S
    (thread,) = [resource for resource in found.resources if resource.name == "training thread"]
    assert found.seconds[CPU] >= slept and f"{WAITING} for {CPU}" not in found.seconds
    assert thread.busy_s >= slept and found.limit == CPU
    assert found.verdict.itself and [one.name for one in found.verdict.remedies] == ["num_workers=2"]


def test_pipelines_that_do_not_travel_are_offered_no_device(tmp_path: Path) -> None:
    _, found = epoch(tmp_path, 1)
    assert not found.verdict.itself and not any("device" in one.name for one in found.verdict.remedies)


def test_its_readers_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epoch(tmp_path, 0)
    assert main(["analyse", str(tmp_path)]) == 0
    assert "rates: host " in (text := capsys.readouterr().out) and "\n  host " in text
    assert main(["plan", "--from-run", str(tmp_path), "--json"]) == 0
    setup = json.loads(capsys.readouterr().out)["setup"]
    assert setup["measured"]["host_batches_per_s"] > 0 and setup["measured"]["host_cpu_s_per_batch"] > 0
    assert any("does not travel" in one for one in setup["assumed"])
    assert any("num_workers=0" in one for one in setup["assumed"])
    assert main(["trace", str(tmp_path)]) == main(["report", str(tmp_path)]) == 0


def test_workers_that_persist_and_an_epoch_that_is_broken_off(tmp_path: Path) -> None:
    loader = DDLPLoader(Sleeps(), BATCH, num_workers=1, persistent_workers=True, record=tmp_path)
    list(loader)
    next(iter(loader))
    list(loader)
    whole, broken_off, again = read_run(tmp_path)
    assert [len(trace.of(Step)) for trace in (whole, broken_off, again)] == [BATCHES, 1, BATCHES]
    assert all(trace.whole for trace in (whole, broken_off, again))
    assert [trace.began.epoch for trace in (whole, broken_off, again)] == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_fails(tmp_path: Path, workers: int) -> None:
    loader = DDLPLoader(Bad(), BATCH, num_workers=workers, record=tmp_path)
    iterator, got, failed = iter(loader), 0, 0
    while True:
        try:
            next(iterator)
            got += 1
        except StopIteration:
            break
        except ValueError:
            failed += 1
    trace = read_run(tmp_path)[0]
    assert (got, failed) == (BATCHES - 1, 1) and trace.whole
    assert [step.position for step in trace.of(Step)] == [k for k in range(BATCHES) if k != 2]


def test_a_resumed_epoch_keeps_its_positions(tmp_path: Path) -> None:
    first = DDLPLoader(Sleeps(), BATCH)
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    loader = DDLPLoader(Sleeps(), BATCH, num_workers=1, record=tmp_path)
    loader.load_state_dict(first.state_dict())
    list(loader)
    assert [step.position for step in read_run(tmp_path)[0].of(Step)] == list(range(5, BATCHES))
