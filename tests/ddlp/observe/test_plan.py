"""`ddlp plan` of set-ups whose epochs can be reckoned by hand: the host makes 4 batches a second, training takes 10."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from ddlp import cli
from ddlp.auto.decide import decide, estimate
from ddlp.observe.plan import SIMULATED, Row, predict, rows
from ddlp.observe.setup import Setup, checked, setup_of
from ddlp.schedule.strategies import STRATEGIES, Wrr

CSD = {"name": "csd", "rate": 2, "host_cpu_s": 0}
HAND = {"step_s": 0.1, "host_rate": 4, "workers": 4, "batches": 1000, "engine": [CSD]}


def setup(**changes):
    return setup_of(checked(HAND | changes, "the file"))


def wrr(found: Setup) -> Row:
    return predict(found, Wrr, found.measured.paths)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_strategy_has_a_row():
    assert [row.name for row in rows(setup())] == list(STRATEGIES)
    assert [row.name for row in rows(setup(engine=[]))] == ["cpu"]


def test_times_are_those_reckoned_by_hand():
    times = {row.name: row.seconds for row in rows(setup())}
    assert times["cpu"] == pytest.approx(250, rel=0.01) and times["csd"] == pytest.approx(500, rel=0.01)
    for name in ("mte", "wrr", "ordered", "auto"):
        assert times[name] == pytest.approx(1000 / 6, rel=0.03), name


def test_no_row_is_faster_than_its_bound_and_the_speed_is_the_cpus():
    a, b = {"name": "a"}, {"name": "b"}
    for engines in (
        [{**a, "rate": 0.5, "workers": 4}], [{**a, "rate": 5, "transport": "spool", "workers": 2}],
        [{**a, "rate": 2, "transport": "spool"}, {**b, "rate": 1}], [{**a, "rate": 30}],
    ):  # fmt: skip
        found = setup(engine=engines, batch_bytes=1e6, bandwidth=1e8)
        table = rows(found)
        for row in table:
            assert row.speed == table[0].seconds / row.seconds
            assert row.bound_s * 0.999 < row.seconds < row.bound_s * 1.12, (engines, row)
        assert wrr(found).bound_s == pytest.approx(1000 * estimate(found.measured, found.measured.paths).time_s)


def test_auto_chooses_as_in_a_run():
    found = setup(engine=[{"name": "a", "rate": 1}, {"name": "b", "rate": 30}], processors=8)
    (auto,) = (row for row in rows(found) if row.name == "auto")
    assert auto.engines == tuple(path.source for path in decide(found.measured).chosen.paths) == ("b",)
    assert auto.seconds == predict(found, Wrr, found.measured.paths[1:]).seconds


@pytest.mark.parametrize("changes, limit", [
    ({"host_rate": 20}, "training"), ({}, "host"), ({"engine": [{**CSD, "rate": 5}]}, "source"),
    ({"engine": [{**CSD, "rate": 9, "bytes": 1e6, "bandwidth": 5e6}]}, "transfer"),
    ({"engine": [{**CSD, "rate": 9, "workers": 4, "bytes": 1e6, "room": 2}]}, "spool"),
])  # fmt: skip
def test_the_stage_that_limits(changes, limit):
    assert wrr(setup(**changes)).limit == limit


def test_long_epochs_are_scaled():
    short, long = (wrr(setup(batches=batches)) for batches in (SIMULATED, 7 * SIMULATED))
    assert long.seconds == pytest.approx(7 * short.seconds) and long.waiting == short.waiting


# -- the command -------------------------------------------------------------------------------------------------------


def described(tmp_path, **changes):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(HAND | {"batches": 200, "engine": []} | changes))
    return ["plan", "--setup", str(path)]


def test_the_command_prints_the_table_and_what_is_assumed(tmp_path, capsys):
    engines = [{"name": "csd0", "rate": 2, "transport": "spool"}, {"name": "csd1", "rate": 1}]
    assert cli.main(described(tmp_path, engine=engines)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert re.search(r"^cpu +none +50\.\d\d s +1\.00x +50\.00 s +60% +host$", said.out, re.MULTILINE)
    for one in (f"from {tmp_path / 'plan.json'}:", "csd1 makes 1 batches/s, by stream", "assumed: taking a batch of csd0"):
        assert one in said.out
    assert "of the 200 batches" not in said.out
    assert cli.main([*described(tmp_path, batches=3000), "--engine", "csd0=2"]) == 0
    said = capsys.readouterr()
    assert "plan.json, the options:" in said.out and "simulated: 1,000 of the 3,000 batches" in said.out


def test_json_has_all_of_it(tmp_path, capsys):
    assert cli.main([*described(tmp_path), "--engine", "csd0=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["setup"]["batches"] == 200 and found["setup"]["measured"]["step_s"] == 0.1
    epochs = {row["name"]: row for row in found["rows"]}
    assert epochs["cpu"]["limit"] == "host" and epochs["wrr"]["seconds"] < epochs["cpu"]["seconds"]


@pytest.mark.parametrize("options, said", [
    ([], "nothing to predict was given. Give a recorded run (--from-run) or a file that describes a set-up (--setup)"),
    (["--engine", "csd0=2"], "nothing to predict was given"),
    (["--setup", "nowhere.toml"], "nowhere.toml can't be read: No such file or directory"),
    (["--setup", "short.json", "--engine", "csd0"], "--engine 'csd0': write NAME=RATE"),
    (["--setup", "plan.json"], "plan.json: workers is 'many'; it must be a whole number of at least 1"),
    (["--setup", "short.json"], "the host's rate is not known; give host_rate in the file of --setup"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_status_2(options, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    described(tmp_path, workers="many")
    Path("short.json").write_text('{"step_s": 0.1}')
    assert cli.main(["plan", *options]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("ddlp plan: ") and said in told.err and "Traceback" not in told.err


def test_the_documentation_shows_its_output(tmp_path, monkeypatch, capsys):
    """The file and the command stand above the output."""
    pytest.importorskip("tomllib")
    text = (Path(__file__).parents[3] / "docs/plan.md").read_text()
    file, shown = (re.search(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for kind in ("toml", "text"))
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(file[1])
    (command,) = re.findall(r"^    ddlp (plan --setup plan.toml)$", text[: shown.start()], re.MULTILINE)
    assert cli.main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown[1]
