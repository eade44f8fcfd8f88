"""Real sleeps in real stages: the analyser finds them in the right stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddlp.observe import Analysis, analyse, read_run
from ddlp.observe.analysis import CPU, CSD, READ, TRAINING, TRANSFER

WITHIN = 0.25  # on a busy machine a sleep lasts longer, and threads wait between two moments that are noted


def analysed(delays: Any, run: Path, step_s: float, batches: int, **options: Any) -> Analysis:
    if options["strategy"] != "cpu":
        delays.warm()
    delays.train(delays.loader(batches, record=run, **options), step_s)
    return analyse(read_run(run)[-1])


def adds_up(found: Analysis) -> None:
    for one in found.resources:
        assert -0.001 * one.wall_s <= one.unaccounted_s <= WITHIN * one.wall_s, one
        assert min(one.busy_s, one.waiting_s, one.idle_s) > -0.001 * one.wall_s, one
    assert sum(found.seconds.values()) == pytest.approx(found.wall_s, rel=WITHIN)


def test_every_stage_at_once(delays, tmp_path):
    found = analysed(
        delays, tmp_path / "run", 0.03, 30, strategy="wrr",
        read_s=0.01, host_s=0.15, device_s=0.2, fetch_s=0.15,  # long compared with the work itself
    )  # fmt: skip
    slept, stages = delays.slept, found.stages
    assert found.batches["cpu"] >= 6 and found.batches["csd"] >= 6
    assert stages[READ] == pytest.approx(slept["read"], rel=WITHIN)
    assert stages[CPU] == pytest.approx(slept["host"], rel=WITHIN)
    assert stages[CSD] == pytest.approx(slept["device"], rel=WITHIN)
    assert stages[TRANSFER] == pytest.approx(slept["fetch"], rel=WITHIN)
    assert stages[TRAINING] == pytest.approx(slept["training"], rel=WITHIN)
    adds_up(found)
    named = {one.name: one for one in found.resources}
    assert set(named) == {"host workers", "engine", "transfer", "training thread"}
    assert named["engine"].busy_s == pytest.approx(slept["device"], rel=WITHIN)
    # Both sides sleep most of the time, and at the same time.
    shared, host_s = found.overlap[CPU][CSD], found.overlap[CPU][CPU]
    assert shared == found.overlap[CSD][CPU] <= min(host_s, found.overlap[CSD][CSD])
    assert shared > 0.5 * min(host_s, found.overlap[CSD][CSD])


@pytest.mark.parametrize(
    ("limit", "step_s", "options"),
    [
        (READ, 0.002, {"strategy": "cpu", "read_s": 0.015, "host_s": 0.001}),
        (CPU, 0.002, {"strategy": "cpu", "host_s": 0.04, "num_workers": 2}),  # long compared with the work itself
        (CSD, 0.002, {"strategy": "csd", "device_s": 0.04}),
        (TRANSFER, 0.002, {"strategy": "csd", "fetch_s": 0.06}),
        (TRAINING, 0.03, {"strategy": "ordered", "host_s": 0.002, "device_s": 0.004}),
    ],
    ids=["read", "cpu", "csd", "transfer", "training"],
)
@pytest.mark.some(2)
def test_the_stage_that_limits(delays, tmp_path, limit, step_s, options):
    found = analysed(delays, tmp_path / "run", step_s, 20, **options)
    adds_up(found)
    assert found.limit == limit, found
    waited = {name: s for name, s in found.seconds.items() if name.startswith("waiting") and not name.endswith("start")}
    if limit == TRAINING:
        assert found.seconds[TRAINING] == pytest.approx(delays.slept["training"], rel=WITHIN)
    else:
        assert max(waited, key=waited.get) == f"waiting for {limit}"
        slept = delays.slept[{READ: "read", CPU: "host", CSD: "device", TRANSFER: "fetch"}[limit]]
        assert found.stages[limit] == pytest.approx(slept, rel=WITHIN)
