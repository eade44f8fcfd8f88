"""The bed of `scripts.auto_check` and `scripts.plan_check`, with real engines: what a goal changes, what a recording tells."""

from __future__ import annotations

from pathlib import Path

from ddlp.planning.described import setup_of
from scripts.auto_check import GOALS, GOALS_SETUP, train


def test_energy_within_a_slowdown_is_neither_the_fastest_nor_the_cheapest(tmp_path: Path) -> None:
    """The second engine brings a tenth more and takes too much power; without any engine it would take twice as long."""
    goal = "energy, at most 25 % slower"
    ran = train(GOALS_SETUP, "auto", 250, str(tmp_path), goal=goal)
    seconds, joules = ({names: figures[which] for names, figures in ran["estimates"].items()} for which in range(2))
    assert min(seconds, key=seconds.__getitem__) == "engine0 engine1", "the decision if time counts"
    assert min(joules, key=joules.__getitem__) == "", "the decision without a constraint"
    slowdown = GOALS[goal].max_slowdown
    assert ran["engines"] == ["engine0"] and slowdown is not None
    assert seconds["engine0"] <= (1 + slowdown) * seconds["engine0 engine1"] < seconds[""]
    assert 0 < ran["from_engines"][1] < 250, "both sides have made batches"
    assert not list(tmp_path.glob("engines"))


def test_a_recorded_epoch_becomes_a_setup(tmp_path: Path) -> None:
    ran = train("third", "wrr", 250, str(tmp_path), record=True)
    setup = setup_of(ran["figures"])
    (engine,) = setup.engines
    assert setup.batches == 250 and engine.source == "engine0" and engine.batches_per_s is not None
    assert 0 < setup.host_rate < 1 / 0.012 and 0 < engine.batches_per_s < 1 / 0.036, "they sleep at least so long"
    assert len(list((tmp_path / "run").iterdir())) == 1, "the first epoch alone"
