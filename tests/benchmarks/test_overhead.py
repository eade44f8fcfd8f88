"""`python -m benchmarks.overhead`, run small; every strategy delivers every batch."""

import json
import sys
from argparse import Namespace

import pytest

from benchmarks import overhead
from benchmarks.overhead import Line, Result, aims, rules, run
from ddlp.schedule.strategies import STRATEGIES
from tests.benchmarks.bench import bench


@pytest.mark.slow  # test_host.py has a short run in each
def test_a_short_run(capsys, monkeypatch):
    monkeypatch.setattr(overhead, "_IDLE_S", 0.3)
    command = ["overhead", "--batches", "60", "--rounds", "1", "--json"]
    assert bench([*command, "--loaders", "cpu", "wrr"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(line["what"], line["strategy"]) for line in result["lines"]] == [
        *(("rules", name) for name in STRATEGIES), ("loader", "cpu"), ("loader", "wrr"),
        ("recorded", "cpu"), ("recorded", "wrr"),
    ]  # fmt: skip
    assert all(len(line["us"]) == len(line["mib"]) == 1 for line in result["lines"])
    assert len(result["bare_us"]) == 4 and min(map(min, result["bare_us"])) > 0 and len(result["idle"]) == 1


def test_the_work_for_a_batch_does_not_grow_with_the_epoch():
    """Counts function calls, not time."""
    for name in STRATEGIES:
        short, long = (_calls(name, n) for n in (500, 2000))
        assert long < 1.3 * short, name


def _calls(name: str, n: int) -> float:
    """Function calls per batch, built-in functions included."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        rules(name, n)
    finally:
        sys.setprofile(before)
    return count / n


def test_an_unknown_strategy_is_said(capsys):
    assert run(Namespace(strategies=["wrr"], loaders=["fastest"], batches=[1000], rounds=5)) == 2
    assert "ordered" in capsys.readouterr().err


def test_the_aims_are_below_the_bound_flat_and_no_more_memory():
    def measured(us: float, mib: float) -> dict[str, bool]:
        lines = [Line("rules", "wrr", n, [10.0], [0.0]) for n in (1000, 100_000)]
        lines.append(Line("rules", "wrr", 1_000_000, [us], [mib]))
        return {aim.what.partition(":")[0].split()[0]: aim.text.endswith("reached") for aim in aims(Result(100.0, lines=lines))}

    assert measured(10.5, 4.0) == {"rules": True, "a": True, "memory": True}
    assert measured(13.0, 4.0) == {"rules": True, "a": False, "memory": True}
    assert measured(101.0, 40.0) == {"rules": False, "a": False, "memory": False}


def test_flat_is_what_the_rounds_say_each_for_itself():
    """The core slows down to half between two turns: the medians alone would be 10 and 20."""
    turns = {100_000: [10.0, 10.0, 20.0], 1_000_000: [10.0, 20.0, 20.0]}
    lines = [Line("rules", "wrr", length, us, [0.0]) for length, us in turns.items()]
    (flat,) = (aim for aim in aims(Result(100.0, lines=lines)) if aim.what.startswith("a batch's time"))
    assert flat.measured == 1.0
