"""`ddlp plan --from-run`: the recording's figures, and what is given beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from csd_engine.machine.computer import processors
from ddlp.cli import main
from ddlp.errors import DDLPError
from ddlp.observe import analyse, read_epoch, read_run
from ddlp.observe.measured_run import IMAGE_BYTES, measured_run
from ddlp.observe.play import Played
from ddlp.recording.events import EpochEnded, Exhausted, HostBatch, Joined, LeaseGiven, Published, Rested, Step
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, written


def test_figures_of_an_epoch_by_hand(tmp_path):
    """A host worker makes a batch in 4 s, 3 s of them on a CPU. The device's batch takes 6 s, and half a second to travel."""
    trace = read_epoch(written(tmp_path / "0000.jsonl", TWO_SIDES))
    found = measured_run(trace, batch_bytes=1e6)
    assert found.fields == {
        "step_s": pytest.approx((2.5 + 2.0 + 2.5 + 2.0) / 4),  # from getting a batch until asking for the next
        "workers": 1, "batches": 4, "host_rate": pytest.approx(1 / 4), "host_cpu_s": pytest.approx(3.0), "batch_bytes": 1e6,
        "engine": [{
            "name": "d", "rate": pytest.approx(1 / 6), "workers": 1, "room": 2, "bandwidth": pytest.approx(2e6),
            "host_cpu_s": pytest.approx(1.0),  # the time of its fetch
        }],
    }  # fmt: skip
    assert not any("224" in one for one in found.assumed) and any("(processors)" in one for one in found.assumed)
    assumed = measured_run(trace)
    assert assumed.fields["batch_bytes"] == 2 * IMAGE_BYTES and any("224 x 224" in one for one in assumed.assumed)
    bandwidth = assumed.fields["engine"][0]["bandwidth"]
    assert bandwidth == pytest.approx(2 * 2 * IMAGE_BYTES), "the batch's transfer time stays the same"
    noted = measured_run(read_epoch(written(tmp_path / "0001.jsonl", TWO_SIDES, BEGAN._replace(processors=1.5))))
    assert noted.fields["processors"] == 1.5 and not any("(processors)" in one for one in noted.assumed)


def test_the_recorded_epoch_stands_beside_the_predicted_ones(tmp_path, capsys):
    """By hand: from 0 to 17 s; training waited 4, 2.5, 0 and 1.5 s of these."""
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    found = measured_run(read_epoch(tmp_path / "0000.jsonl"))
    assert (found.strategy, found.played) == ("wrr", Played(4, 17.0, pytest.approx(8.0), {"d": 1}))
    setup = tmp_path / "setup.json"
    setup.write_text('{"batches": 8}')
    given = ["plan", "--from-run", str(tmp_path), "--setup", str(setup), "--engine", "other=1"]
    assert main([*given, "--json"]) == 0
    cpu, row, *_ = json.loads(capsys.readouterr().out)["rows"]
    assert (row["name"], row["engines"], row["bound_s"]) == ("wrr, as recorded", ["d"], None)
    assert row["seconds"] == pytest.approx(34.0) and row["waiting"] == pytest.approx(8 / 17), "twice as many batches"
    assert row["speed"] == pytest.approx(cpu["seconds"] / 34)
    assert main(given) == 0 and "wrr, as recorded" in capsys.readouterr().out


def test_what_lies_between_two_batches_counts(tmp_path):
    """A worker takes half a second to its next batch, the device one, and training a quarter to get a batch that is ready."""
    events = [
        Joined("d", 0.0, 1, 9, 1),
        *(LeaseGiven("d", lease, 9 - lease, 0.0) for lease in range(3)),
        *(HostBatch(0, number, 4.5 * number, 4.5 * number + 4.0, 0.0, 3.0, "made") for number in range(3)),
        Rested("host", 0, 13.0, 20.0, False),
        HostBatch(0, 3, 20.0, 24.0, 0.0, 3.0, "made"),
        *(Published("d", lease, 9 - lease, 6.0 * (lease + 1), 5.0) for lease in range(3)),
        LeaseGiven("d", 3, 6, 19.0),  # the device had to wait for it
        Published("d", 3, 6, 25.0, 5.0),
        Step(0, "cpu", 2, 0.0, 4.25, 4.25, 0, 0, 0, 0),  # it was not ready
        Step(1, "cpu", 2, 10.0, 10.5, 10.5, 0, 0, 0, 0),
        Step(2, "cpu", 2, 16.0, 16.0, 16.0, 0, 0, 0, 0),
        Exhausted(30.0, 30.0),
    ]
    fields = measured_run(read_epoch(written(tmp_path / "0000.jsonl", events))).fields
    assert fields["host_rate"] == pytest.approx(1 / 4.5)
    assert fields["engine"][0]["rate"] == pytest.approx(1 / 6)
    assert fields["step_s"] == pytest.approx((5.75 + 5.5 + 14.0) / 3 + 0.25)


def test_a_device_without_a_batch_is_left_out_and_said(tmp_path):
    events = [event for event in TWO_SIDES if not isinstance(event, Published)]
    found = measured_run(read_epoch(written(tmp_path / "0000.jsonl", events)))
    assert found.fields["engine"] == [] and any(one.startswith("d published nothing") for one in found.assumed)


def test_an_epoch_without_a_step_is_refused(tmp_path):
    events = [event for event in TWO_SIDES if not isinstance(event, Step)]
    with pytest.raises(DDLPError, match="no training step is recorded whole"):
        measured_run(read_epoch(written(tmp_path / "0000.jsonl", events)))
    assert main(["plan", "--from-run", str(tmp_path)]) == 1


def test_a_real_run_is_planned_from_what_ddlp_analyse_says(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--from-run", str(recorded / "wrr"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    trace = read_run(recorded / "wrr")[-1]
    rates, measured = analyse(trace).rates, plan["setup"]["measured"]
    assert plan["source"] == str(recorded / "wrr" / "0001.jsonl") and plan["setup"]["batches"] == 30
    assert 0 < measured["host_batches_per_s"] <= 1.001 * rates.host / 2, "what lies between two batches counts too"
    (path,) = measured["paths"]
    assert 0 < path["batches_per_s"] < 1.5 * rates.devices[path["source"]] / 2
    assert measured["step_s"] >= 2 / rates.training  # handing over the batch is not waiting
    assert {row["name"] for row in plan["rows"]} >= {"cpu", "mte", "wrr", "ordered"}
    assumed = " ".join(plan["setup"]["assumed"])
    assert "224 x 224" in assumed and "processor of the host is free" not in assumed
    assert measured["host_processors"] == processors()


@pytest.mark.parametrize("run", ["mte", "alone", "taken back", "lost", "broken off"])
def test_every_kind_of_run_can_be_planned_from(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str):
    (tmp_path / "setup.json").write_text('{"host_rate": 50}')
    status = main(["plan", "--from-run", str(recorded / run), "--setup", str(tmp_path / "setup.json")])
    said = capsys.readouterr()
    if run == "broken off":  # it ended after a single batch
        assert status == 1 and "no training step is recorded whole" in said.err
    else:
        assert status == 0 and "\nassumed: " in said.out


def test_a_run_of_devices_alone_asks_for_the_hosts_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    events = [event for event in TWO_SIDES if type(event).__name__ != "HostBatch"]
    written(tmp_path / "0000.jsonl", events)
    assert main(["plan", "--from-run", str(tmp_path)]) == 2
    assert "the host's rate is not known; give host_rate" in capsys.readouterr().err


def test_the_end_of_a_recording_does_not_matter(tmp_path: Path):
    """The process was killed: its last step counts as far as it was recorded."""
    whole = measured_run(read_epoch(written(tmp_path / "a.jsonl", TWO_SIDES)))
    cut = [event for event in TWO_SIDES if not isinstance(event, EpochEnded)]
    assert measured_run(read_epoch(written(tmp_path / "b.jsonl", cut))) == whole
