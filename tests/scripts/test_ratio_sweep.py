"""`scripts.ratio_sweep`: a share is kept to the batch, with a real engine; what becomes of the figures; how it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from ddlp.planning.simulate import Simulation, World
from ddlp.schedule.ledger import Ledger
from scripts.ratio_sweep import SETUPS, FixedShare, main, summary, table
from tests.engine_process import alive, children

FIGURES = {
    "host_ms": 30, "engine_ms": 70, "step_ms": 5, "piece_ms": 0,
    "share_0_batches_per_s": 30.0, "share_0_waiting_percent": 81, "share_50_batches_per_s": 40.0,
    "share_50_waiting_percent": 70, "auto_batches_per_s": 39.2, "auto_waiting_percent": 71, "auto_engine_percent": 45,
    "auto_time_of_best_percent": 102.0,
}  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("device_s", [0.2, 8.0])
def test_neither_side_makes_a_batch_of_the_other_s(share: float, device_s: float) -> None:
    """The engine is five times as fast, or eight times as slow: by any strategy of ddlp's the other share would be due."""
    world = World(host_s=lambda _: 1.0, device_s={"engine": lambda _: device_s}, quota=8)
    ledger = Ledger(60, host_slots=4)
    outcome = Simulation(ledger, world, partial(FixedShare, ratio=1 - share)).run()
    assert sorted(outcome.order) == list(range(60)) and outcome.from_csd == 60 * share
    assert outcome.seconds == pytest.approx(max(60 * (1 - share), 60 * share * device_s), rel=0.1)


def test_the_host_makes_what_a_dead_engine_leaves() -> None:
    world = World(host_s=lambda _: 1.0, device_s={"engine": lambda _: 1.0}, device_dies_s={"engine": 10.5})
    outcome = Simulation(Ledger(60, host_slots=4), world, partial(FixedShare, ratio=0.0)).run()
    assert sorted(outcome.order) == list(range(60)) and 0 < outcome.from_csd < 20


def test_a_real_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a slow network, where the host would take batches back; it ends with status 1 if a share was not kept."""
    name = "network"
    assert main(["--setups", name, "--shares", "0", "60", "--batches", "10", "--json"]) == 0
    printed, said = capsys.readouterr()
    figures = json.loads(printed)["figures"][name]
    assert set(figures) == {label.replace("50", "60") for label in FIGURES}
    assert figures["share_0_batches_per_s"] <= 1 / SETUPS[name].host_s, "the host sleeps"
    assert figures["share_60_batches_per_s"] <= 1 / (0.6 * 3 * SETUPS[name].latency_s), "the network holds three pieces back"
    assert "network, 3 of 3: auto" in said


def test_the_table_and_the_summary() -> None:
    ahead = {**FIGURES, "auto_time_of_best_percent": 97.5}
    found = {"one": FIGURES, "two": ahead}
    assert table(found).splitlines() == [
        "| engine's share | one | two |", "| --- | --- | --- |",
        "| ms: host, engine, step, 16 KiB on the way | 30, 70, 5, 0 | 30, 70, 5, 0 |", "| 0 % | 30.0 (81 %) | 30.0 (81 %) |",
        "| 50 % | **40.0** (70 %) | **40.0** (70 %) |", "| auto | 39.2 (71 %) | 39.2 (71 %) |",
        "| auto's share | 45 % | 45 % |", "| auto's time, of the best | 102.0 % | 97.5 % |",
    ]  # fmt: skip
    expected = "auto is 0.2 % ahead of the best of 2 fixed shares in the median of 2 set-ups, 2.0 % behind it at worst"
    assert summary(found) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shares", "0", "101"), "--shares 101: a share is 0 to 100 %"),
        (("--batches", "0"), "--batches 0 --rounds 1: both must be 1 or more"),
        (("--write", "--shares", "10"), "--write keeps all set-ups and shares"),
    ],
)
def test_what_it_refuses(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("told", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_engines_too(told: signal.Signals, status: int) -> None:
    command = [sys.executable, "-m", "scripts.ratio_sweep", "--setups", "network", "--batches", "500"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while len(below := children(process.pid)) < 2:  # an engine and a relay
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(3)
        process.send_signal(told)
        printed, said = process.communicate()
    assert process.returncode == status and "stopped after 0 of 1 set-ups" in said and printed == ""
    assert not any(alive(pid) for pid in below)
