"""Chrome traces of recorded runs must keep strictly to the Trace Event Format. No package has Perfetto's own importer.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Perfetto drops
spans of a thread that overlap without being nested.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ddlp.cli import main
from ddlp.observe import analyse, chrome_trace, read_epoch, read_run
from ddlp.recording.events import Joined, LeaseGiven, Published
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, WITH_GPUS, written

FIELDS = {  # phase: the fields that it needs beside name and pid
    "X": {"ts", "dur", "tid", "cat"}, "i": {"ts", "tid", "s"}, "C": {"ts", "args"}, "M": {"args"},
}  # fmt: skip


def moment(value: Any) -> bool:
    """Whether the value is a time in microseconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def faults(text: str) -> list[str]:
    """What in a trace violates the format."""

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    trace = json.loads(text, parse_constant=no_constant)
    found = [] if isinstance(trace.get("traceEvents"), list) else ["no traceEvents"]
    found += [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit"]
    threads, spans = set(), {}
    for event in trace["traceEvents"]:
        what = json.dumps(event)[:100]
        phase = event.get("ph")
        if phase not in FIELDS:
            found.append(f"phase of {what}")
            continue
        if missing := {"name", "pid", *FIELDS[phase]} - set(event):
            found.append(f"{sorted(missing)} missing in {what}")
            continue
        if not isinstance(event["name"], str) or not event["name"]:
            found.append(f"name of {what}")
        if not all(isinstance(event.get(field, 0), int) for field in ("pid", "tid")):
            found.append(f"pid or tid of {what}")
        if not all(moment(event.get(field, 0)) for field in ("ts", "dur")):
            found.append(f"time of {what}")
            continue
        if not isinstance(event.get("args", {}), dict):
            found.append(f"args of {what}")
        elif phase == "C" and not (event["args"] and all(map(moment, event["args"].values()))):
            found.append(f"counts of {what}")
        elif phase == "i" and event["s"] not in ("g", "p", "t"):
            found.append(f"scope of {what}")
        elif phase == "M" and event["name"] == "thread_name":
            threads.add((event["pid"], event["tid"]))
        elif phase == "X":
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"], what))
    for thread, those in spans.items():
        if thread not in threads:
            found.append(f"thread {thread} has no name")
        open_until: list[float] = []
        for begin, minus, what in sorted(those):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and begin - minus > open_until[-1] + 1e-6:
                found.append(f"overlap at {what}")
            open_until.append(begin - minus)
    return found


@pytest.mark.parametrize("run", ["wrr", "mte", "alone", "taken back", "lost", "broken off", "empty"])
@pytest.mark.some(3)
def test_recorded_runs_keep_to_the_format(recorded: Path, tmp_path: Path, run: str) -> None:
    assert main(["trace", str(recorded / run), "-o", str(tmp_path / "trace.json")]) == 0
    text = (tmp_path / "trace.json").read_text()
    assert faults(text) == []
    trace = read_run(recorded / run)[-1]
    events = json.loads(text)["traceEvents"]
    took = sum(e["dur"] for e in events if e["ph"] == "X" and e["cat"] == "training")
    assert took / 1e6 == pytest.approx(analyse(trace).stages["training"], abs=1e-6 * len(events))


def test_each_thread_has_a_track_and_each_event_a_mark(tmp_path: Path) -> None:
    trace = chrome_trace(read_epoch(written(tmp_path / "0000.jsonl", TWO_SIDES)))
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["engine d, worker 0", "host worker 0", "training thread", "transfer 0"]
    assert {names[e["tid"]] for e in events if e["ph"] == "X"} == set(names.values()) and faults(json.dumps(trace)) == []
    assert {e["name"] for e in events if e["ph"] == "C"} == {"ready batches", "spool, batches"}
    assert [e["name"] for e in events if e["ph"] == "i"] == ["d joined", "lease 2 taken back from d"]


def test_a_late_message_gives_an_engine_no_second_worker(tmp_path: Path) -> None:
    """By its 3 s, the second batch would have begun before the first was published."""
    events = [Joined("d", 0.0, 1, 4, 1), LeaseGiven("d", 1, 3, 0.0), LeaseGiven("d", 2, 2, 0.0),
              Published("d", 1, 3, 3.1, 3.0), Published("d", 2, 2, 6.0, 3.0)]  # fmt: skip
    trace = chrome_trace(read_epoch(written(tmp_path / "0000.jsonl", events, BEGAN)))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "engine"]
    assert {e["tid"] for e in spans} == {spans[0]["tid"]} and faults(json.dumps(trace)) == []
    assert sum(e["dur"] for e in spans) == pytest.approx(5.9e6)


def test_gpus_have_a_counter_each(tmp_path: Path) -> None:
    trace = chrome_trace(read_epoch(written(tmp_path / "0000.jsonl", WITH_GPUS)))
    found = [(e["ts"], e["args"]) for e in trace["traceEvents"] if e["name"] == "gpu0 H100, % of the time"]
    assert found == [(9e6, {"busy": 50}), (18e6, {"busy": 100})] and faults(json.dumps(trace)) == []


def test_where_it_can_t_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    for output, why in ((tmp_path / "missing" / "x.json", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main(["trace", str(tmp_path), "-o", str(output)]) == 1
        assert capsys.readouterr() == ("", f"ddlp: {output} can't be written: {why}. -o FILE chooses another place.\n")
