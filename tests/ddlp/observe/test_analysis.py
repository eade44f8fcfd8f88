"""The analyser on hand-written epochs of whole seconds, and its commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlp.cli import main
from ddlp.observe import analyse, read_epoch
from ddlp.observe.analysis import CPU, CSD, READ, SPOOL, START, TRAINING, TRANSFER
from ddlp.recording.events import (
    EpochBegan,
    EpochEnded,
    Exhausted,
    Fetched,
    HostBatch,
    Joined,
    LeaseGiven,
    Lost,
    Published,
    Rested,
    Step,
)
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, written


def found(path: Path, events: list, began: EpochBegan = BEGAN):
    return analyse(read_epoch(written(path / "0000.jsonl", events, began)))


def test_every_second_has_its_place(tmp_path):
    analysis = found(tmp_path, TWO_SIDES)
    assert analysis.wall_s == 18 and analysis.batches == {"cpu": 3, "csd": 1} and analysis.samples == 8
    assert analysis.seconds == pytest.approx(
        {
            TRAINING: 2 + 2 + 2 + 2, TRANSFER: 0.5 + 0.5,
            # A quarter of each wait for a host batch counts as reading.
            "waiting for read": 0.25 * (4 + 2.5 + 1.5), "waiting for host": 0.75 * (4 + 2.5 + 1.5),
            "waiting for csd": 0, "waiting for transfer": 0, "waiting for start": 0,
            "before and after": 1.0,
        }
    )  # fmt: skip
    # The second lease is at work from 8.5 s, when the first is published, until it is taken back.
    assert analysis.stages == pytest.approx(
        {READ: 3, CPU: 9, CSD: 6 + 4.5, TRANSFER: 1 + 1, TRAINING: 8, "waiting": 8}
    )
    resources = {r.name: (r.lanes, r.busy_s, r.waiting_s, r.idle_s) for r in analysis.resources}
    assert resources == {
        "host workers": (1, 12.0, 3.0, 3.0),
        "engine": (1, 10.5, 1.5, 6.0),  # 1 s without a lease, 0.5 s over its own figure; 1 s not yet there, 5 s done
        "transfer": (1, 1.0, 8.5, 8.5),
        "training thread": (1, 9.0, 8.0, 1.0),
    }
    assert all(abs(r.unaccounted_s) < 1e-9 for r in analysis.resources)
    assert analysis.overlap[CPU] == pytest.approx({CPU: 12, CSD: 1.5 + 4 + 2, TRANSFER: 0.5 + 0.5, TRAINING: 3.5})
    assert analysis.overlap[TRAINING][TRAINING] == pytest.approx(8) and analysis.overlap[CSD][TRANSFER] == pytest.approx(2)
    assert analysis.limit == CPU and "num_workers" in analysis.advice
    assert analysis.bound_s == pytest.approx(4 / (1 / 4 + 1 / 6))
    assert analysis.counts["leases taken back"] == 1 and analysis.counts["leases given"] == 2


def test_of_a_device_that_ranks_share_each_has_a_part(tmp_path):
    events = [e._replace(ranks=2) if isinstance(e, Joined) else e for e in TWO_SIDES]
    analysis = found(tmp_path, events)
    assert analysis.rates.devices == {"d": pytest.approx(2 / 6 / 2)}
    assert analysis.bound_s == pytest.approx(8 / (2 / 4 + 2 / 6 / 2))


def step(position: int, side: str, asked: float, got: float, held: int = 0) -> Step:
    return Step(position, side, 2, asked, got, got, 0, 0, 0, held)


def test_waiting_before_a_batch_is_begun_is_whose_work_goes_on(tmp_path):
    analysis = found(tmp_path, [
        Joined("d", 0.0, 1, 2, 1),
        LeaseGiven("d", 1, 3, 0.0), Published("d", 1, 3, 2.0, 2.0), Fetched(0, "d", 1, 3, 2.0, 2.5, 3.0, ""),
        HostBatch(0, 0, 4.0, 6.0, 0.0, 2.0, "dropped"),
        HostBatch(0, 1, 7.0, 8.0, 0.0, 1.0, "made"),
        step(1, "cpu", 0.0, 8.0), Exhausted(8.0, 8.0), EpochEnded(8.0, 0),
    ])  # fmt: skip
    waits = {n.removeprefix("waiting for "): s for n, s in analysis.seconds.items() if n.startswith("waiting")}
    assert waits == {READ: 0, CPU: 3, CSD: 2, TRANSFER: 1, START: 2}


def test_a_late_file_is_waited_for_by_stages(tmp_path):
    events = [
        Joined("d", 0.0, 1, 2, 1),
        LeaseGiven("d", 1, 0, 1.0), Published("d", 1, 0, 4.0, 3.0), Fetched(0, "d", 1, 0, 5.0, 6.0, 7.0, ""),
        step(0, "csd", 0.0, 7.0), Exhausted(8.0, 8.0), EpochEnded(8.0, 0),
    ]  # fmt: skip
    analysis = found(tmp_path, events)
    assert analysis.seconds["waiting for csd"] == 3 and analysis.seconds["waiting for transfer"] == 3
    assert analysis.seconds["waiting for start"] == 1 and analysis.limit == START


def test_a_full_spool_is_named(tmp_path):
    events = [Joined("d", 0.0, 1, 1, 1), HostBatch(0, 0, 0.0, 1.0, 0, 1, "made"), step(0, "cpu", 0.0, 1.0, 1)]
    for k in range(1, 9):
        events += [HostBatch(0, k, float(k), k + 1.0, 0, 1, "made"), step(k, "cpu", k + 0.1, k + 1.0, 1)]
    device = [LeaseGiven("d", 1, 20, 0.0), Published("d", 1, 20, 1.0, 1.0), LeaseGiven("d", 2, 21, 8.9)]
    end = [Exhausted(9.1, 9.1), EpochEnded(9.2, 0)]
    assert found(tmp_path, [*events, *device, *end]).limit == SPOOL
    assert found(tmp_path, [*(e._replace(held=0) if isinstance(e, Step) else e for e in events), *device, *end]).limit == CPU


def test_a_lost_device(tmp_path):
    analysis = found(tmp_path, [
        Joined("d", 1.0, 2, 4, 1), LeaseGiven("d", 1, 3, 1.0), LeaseGiven("d", 2, 2, 1.0), Lost("d", 3.0, "killed"),
        Joined("d", 5.0, 2, 4, 1), LeaseGiven("d", 3, 3, 5.0), Published("d", 3, 3, 8.0, 3.0), EpochEnded(10.0, 0),
    ])  # fmt: skip
    engine = next(r for r in analysis.resources if r.name == "engine")
    assert (engine.lanes, engine.busy_s, engine.idle_s + engine.waiting_s) == (2, 2 * 2 + 3, 20 - 7)
    assert analysis.counts["devices lost"] == 1 and "killed" in analysis.notes[0]


def test_an_epoch_without_a_batch(tmp_path):
    analysis = found(tmp_path, [Rested("host", 0, 0.0, 1.0, True), Exhausted(0.5, 0.5), EpochEnded(1.0, 0)])
    assert analysis.bound_s is None and analysis.images_per_s == 0 and sum(analysis.seconds.values()) < 1.01


def test_the_verdict_is_on_the_steps_after_the_first(tmp_path, capsys):
    # The first batch comes after 9 s. Then a step takes 2 s and the wait for the next batch 1 s; the host makes a batch in 2 s.
    steps = [step(0, "cpu", 0.0, 9.0), *(step(k, "cpu", 8.0 + 3 * k, 9.0 + 3 * k) for k in range(1, 30))]
    made = [HostBatch(0, k, 3.0 * k, 3.0 * k + 2, 0.0, 2.0, "made") for k in range(30)]
    analysis = found(tmp_path, [*made, *steps, Exhausted(98.0, 99.0), EpochEnded(99.0, 0)])
    verdict = analysis.verdict
    assert (verdict.batches, verdict.waited, verdict.start_s) == (30, pytest.approx(29 / 89), 9.0)
    assert verdict.period_s == pytest.approx(89 / 30) and verdict.step_s == pytest.approx(2.0) and not verdict.replayed
    remedies = {one.name: one.at_most for one in verdict.remedies}
    assert remedies == pytest.approx({"num_workers=2": 89 / 60, "a device as fast as this host": 89 / 60})
    assert main(["analyse", str(tmp_path)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("verdict: "))
    assert line == f"verdict: {verdict}" and "waits for data 33 % of the time" in line and "9 s, comes on top" in line
    of_device = [one._replace(side="csd") for one in steps]  # the host's workers make nothing that training uses
    ended = [Exhausted(98.0, 99.0), EpochEnded(99.0, 0)]
    assert not found(tmp_path, [Joined("d", 0.0, 1, 2, 1), *of_device, *ended]).verdict.remedies


def test_the_commands(tmp_path, capsys):
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    written(tmp_path / "0001.jsonl", TWO_SIDES, BEGAN._replace(epoch=1))
    assert main(["analyse", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "epoch 1, wrr: 18.00 s" in said and "limit: host" in said and "--all" in said
    assert main(["analyse", str(tmp_path), "--all", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both[0]["verdict"]["text"].startswith("Too few batches")
    assert [one["epoch"] for one in both] == [0, 1] and both[0]["resources"][0]["unaccounted_s"] == 0
    assert main(["trace", str(tmp_path)]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    assert json.loads((tmp_path / "0001.trace.json").read_text())["traceEvents"]
    assert main(["analyse", str(tmp_path / "nothing")]) == 1
    assert "record=" in capsys.readouterr().err
