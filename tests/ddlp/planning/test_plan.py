"""`ddlp plan` of set-ups whose epochs can be reckoned by hand: the host makes 4 batches a second, training takes 10."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.papers.rules import CACHEW_CODE, CACHEW_PAPER, FASTFLOW_CODE, FASTFLOW_PAPER
from ddlp import cli
from ddlp.planning.answers import answers, curve
from ddlp.planning.compared import compared
from ddlp.planning.decide import estimate
from ddlp.planning.described import checked, setup_of
from ddlp.planning.predict import SIMULATED, predict
from ddlp.planning.simulate import paper_epoch
from ddlp.schedule.strategies import STRATEGIES, Cpu, Wrr

HAND = {"step_s": 0.1, "host_rate": 4, "workers": 4, "batches": 1000, "engine": ["csd=2,host_cpu_s=0"]}
OPTIONS = ["--step-s", "0.1", "--host-rate", "4", "--workers", "4", "--batches", "200"]


def setup(**changes):
    return setup_of(checked(HAND | changes, "the options"))


def answered(question, **changes):
    options = {name: changes.pop(name) for name in ("pool", "cache_cost") if name in changes}
    return next(one for one in answers(setup(**changes), **options) if one.question == question)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_strategy_and_every_rule_has_a_row():
    rows = compared(setup(engine=["a=1,host_cpu_s=0", "b=3,host_cpu_s=0"]))
    assert [row.name for row in rows] == [
        *(name for name, one in STRATEGIES.items() if not one.decides),
        "mte, the paper's rules", "wrr, the paper's rules", "wrr, engines by ddlp",
        "wrr, engines by FastFlow, paper", "wrr, engines by FastFlow, code",
        "wrr, engines by Cachew, paper", "wrr, engines by Cachew, code",
    ]  # fmt: skip
    assert [row.name for row in compared(setup(engine=[]))] == ["cpu"]


def test_times_are_those_reckoned_by_hand():
    times = {row.name: row.epoch.seconds for row in compared(setup())}
    assert times["cpu"] == pytest.approx(250, rel=0.01) and times["csd"] == pytest.approx(500, rel=0.01)
    for name in ("mte", "wrr", "ordered", "wrr, engines by ddlp"):
        assert times[name] == pytest.approx(1000 / 6, rel=0.03), name
    assert times["wrr, the paper's rules"] == paper_epoch(1000, 0.25 + 0.1, 0.5, 0.1)[0]


def test_no_row_is_faster_than_its_bound_and_the_speed_is_the_cpus():
    for engines in (["a=0.5,4"], ["a=5,spool,2"], ["a=2,spool", "b=1"], ["a=30"]):
        found = setup(engine=engines, batch_bytes="1M", bandwidth="100M")
        rows = compared(found)
        for row in rows:
            assert row.speed == rows[0].epoch.seconds / row.epoch.seconds
            if row.bound_s is not None:
                assert row.bound_s * 0.999 < row.epoch.seconds < row.bound_s * 1.12, (engines, row)
        (wrr,) = (row for row in rows if row.name == "wrr")
        assert wrr.bound_s == pytest.approx(1000 * estimate(found.measured, found.engines).time_s)


def test_rules_choose_as_their_own_code():
    found = setup(engine=["a=1,host_cpu_s=0.01", "b=3,host_cpu_s=0.01"])
    chosen = {row.name.removeprefix("wrr, engines by "): row.engines for row in compared(found)}
    measured = found.measured
    for name, paths in (
        ("FastFlow, paper", FASTFLOW_PAPER.choose(measured)), ("FastFlow, code", FASTFLOW_CODE.choose(measured)),
        *((name, rule.choose(measured, lambda paths: estimate(measured, paths).time_s))
          for name, rule in (("Cachew, paper", CACHEW_PAPER), ("Cachew, code", CACHEW_CODE))),
    ):  # fmt: skip
        assert chosen[name] == tuple(path.source for path in paths)
    assert chosen["FastFlow, code"] == ("b",) and chosen["ddlp"] == ("a", "b")


@pytest.mark.parametrize("changes, limit", [
    ({"host_rate": 20}, "training"), ({}, "host"), ({"engine": ["csd=5,host_cpu_s=0"]}, "source"),
    ({"engine": ["csd=9,host_cpu_s=0,bytes=1M,bandwidth=5M"]}, "transfer"),
    ({"engine": ["csd=9,4,host_cpu_s=0,bytes=1M,room=2"]}, "spool"),
])  # fmt: skip
def test_the_stage_that_limits(changes, limit):
    assert predict(setup(**changes), Wrr).limit == limit


def test_energy_and_cost_by_hand():
    found = setup(host_watts="100:200", accelerator_watts=300, engine_watts=10, host_price=3.6, engine_price=1.8)
    alone, both = predict(found, Cpu), predict(found, Wrr)
    assert alone.energy_j == pytest.approx(alone.seconds * 500, rel=0.01)  # its workers are busy all the time
    assert both.energy_j == pytest.approx(both.seconds * 510, rel=0.02)
    assert alone.cost == pytest.approx(alone.seconds * 0.001) and both.cost == pytest.approx(both.seconds * 0.0015)


def test_long_epochs_are_scaled():
    short, long = (predict(setup(batches=batches), Wrr) for batches in (SIMULATED, 7 * SIMULATED))
    assert long.seconds == pytest.approx(7 * short.seconds) and long.waiting == short.waiting


def test_an_engine_that_leaves_and_comes_back():
    """Of 2 batches a second for the time that it is there."""
    away = predict(setup(leave=["csd@50"], join=["csd@100"]), Wrr)
    assert away.seconds == pytest.approx(50 + 50 + (1000 - 300 - 200) / 6, rel=0.03)
    later = predict(setup(join=["csd@500"], batches=10_000), Wrr)  # moved and scaled
    assert later.seconds == pytest.approx(500 + 8000 / 6, rel=0.03)


# -- the answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question, changes, rate", [
    ("a second device", {}, 8), ("a device twice as fast", {}, 8), ("twice the workers", {}, 10),
    ("twice the workers", {"processors": 6, "host_cpu_s": 1}, 7),  # five of them prepare
    ("a pool of 4", {}, 10), ("a pool of 2", {"pool": 2}, 8),
    ("uint8 instead of float32", {"engine": ["csd=2,float32,bytes=4M,bandwidth=4M,host_cpu_s=0"]}, 6),
    ("uint8 instead of float32", {"engine": ["csd=2,uint8,bytes=1M,bandwidth=4M,room=16,host_cpu_s=0"]}, 5),
    ("a cache", {"host_rate": 1, "cache_cost": 0.2}, 5), ("a cache", {}, 10),
])  # fmt: skip
def test_answers_are_those_reckoned_by_hand(question, changes, rate):
    one = answered(question, **changes)
    assert one.epoch.seconds == pytest.approx(1000 / rate, rel=0.03)
    today = predict(setup(**{name: value for name, value in changes.items() if name not in ("pool", "cache_cost")}), Wrr)
    assert one.saves == pytest.approx(1 - one.epoch.seconds / today.seconds) and one.by == "simulated"


def test_a_spool_without_room_for_float32():
    one = answered("uint8 instead of float32", engine=["csd=2,bytes=1M,bandwidth=4M,room=3"])
    assert one.epoch is None and one.text.endswith("As float32, four times the bytes, a batch would not fit into the spool.")


def test_the_fewest():
    workers, engines = answered("the fewest workers"), answered("the fewest engines")
    assert "With 8 workers on the host beside csd training does not wait" in workers.text  # 8 + 2
    assert "With 3 engines like csd training does not wait" in engines.text  # 4 + 3 x 2
    assert workers.by == engines.by == "estimated, then simulated"
    assert max(workers.epoch.waiting, engines.epoch.waiting) < 0.05
    assert "With no engine at all training does not wait" in answered("the fewest engines", host_rate=20).text
    few = answered("the fewest workers", processors=4, host_cpu_s=1)
    assert few.epoch is None
    assert few.text == "Even with as many workers as 4 processors can keep at work beside csd training waits: the host limits."
    narrow = answered("the fewest engines", host_bandwidth="1M", batch_bytes="1M")
    assert narrow.epoch is None and "Even with 64 engines like csd training waits" in narrow.text


def test_without_an_engine_the_other_questions_are_answered():
    found = {one.question: one.text for one in answers(setup(engine=[]))}
    assert list(found) == ["twice the workers", "a device", "a cache", "the fewest workers"]
    assert "--engine NAME=RATE" in found["a device"] and "With 10 workers on the host training" in found["the fewest workers"]


def test_added_engines_take_the_watts_and_the_price_of_the_first():
    priced = {"engine_watts": 10, "host_watts": 100, "engine_price": 1}
    one = answered("a pool of 4", **priced)
    assert one.epoch.energy_j == pytest.approx(one.epoch.seconds * 140)
    assert one.epoch.cost == pytest.approx(one.epoch.seconds * 4 / 3600)


def test_the_curve():
    points = curve(setup())
    assert [point.engines for point in points] == list(range(9))
    for point in points:
        assert point.bound_s == pytest.approx(1000 / min(10, 4 + 2 * point.engines))
        assert point.epoch.seconds == pytest.approx(point.bound_s, rel=0.04)
    assert curve(setup(engine=[])) == ()


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_table_answers_and_what_is_assumed(capsys):
    assert cli.main(["plan", *OPTIONS, "--engine", "csd0=2,spool", "--engine", "csd1=1", "--leave", "csd1@10"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert re.search(r"^cpu +none +50\.\d* s +1\.00x +50 s +60% +host$", said.out, re.MULTILINE)
    for one in ("from the options:", "csd1 leaves after 10 s", "wrr, engines by Cachew, code",
                "- With a pool of 4 engines like", "assumed: taking a batch of csd0"):  # fmt: skip
        assert one in said.out
    assert "n engines like" not in said.out and "of the 200 batches" not in said.out
    assert cli.main(["plan", *OPTIONS, "--batches", "3000", "--engine", "csd0=2", "--curve"]) == 0
    said = capsys.readouterr()
    assert "an epoch with n engines like csd0" in said.out and "simulated: 1,000 of the 3,000 batches" in said.out


def test_json_has_all_of_it(capsys):
    assert cli.main(["plan", *OPTIONS, "--engine", "csd0=2", "--strategy", "ordered", "--join", "csd0@3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategy"] == "ordered" and found["simulated_batches"] == 200 and len(found["curve"]) == 9
    assert found["setup"]["moves"] == [{"seconds": 3.0, "engine": "csd0", "joins": True}]
    assert {row["name"]: row["epoch"]["limit"] for row in found["rows"]}["cpu"] == "host"


@pytest.mark.parametrize("options, said", [
    ([], "nothing to predict was given. Give a recorded run (--from-run), or describe a set-up, at least --step-s and --host"),
    (["--step-s", "0.1"], "the host's rate is not known; give --host-rate"),
    ([*OPTIONS, "--workers", "many"], "the options: workers is 'many'; it must be a whole number of at least 1"),
    ([*OPTIONS, "--pool", "0"], "--pool is 0; give a number of engines, at least 1"),
    ([*OPTIONS, "--cache-cost", "6"], "--cache-cost is 6.0; give a part above 0 and at most 1"),
    ([*OPTIONS, "--setup", "nowhere.toml"], "nowhere.toml can't be read: No such file or directory"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_status_2(options, said, capsys):
    assert cli.main(["plan", *options]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("ddlp plan: ") and said in told.err and "Traceback" not in told.err


def test_the_documentation_shows_its_output(capsys):
    text = (Path(__file__).parents[3] / "docs/plan.md").read_text()
    shown = re.search(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^    ddlp (plan --step-s .*\\\n.*)$", text[: shown.start()], re.MULTILINE)
    assert cli.main(shlex.split(command.replace("\\\n", ""))) == 0
    assert capsys.readouterr().out == shown[1]


def test_the_help_teaches(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    said = capsys.readouterr().out
    assert "ddlp plan --from-run runs/first" in said and "--engine csd0=2.5,spool,4" in said
