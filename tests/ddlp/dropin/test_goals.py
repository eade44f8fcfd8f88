"""Real engines that sleep: what a goal changes, and what `ddlp plan` reads from a recorded epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import transforms

from ddlp import DDLPLoader, Device, Goal, ImageArrays, Power, load_operators
from ddlp.observe import read_epoch
from ddlp.observe.measured_run import measured_run
from ddlp.observe.setup import setup_of
from tests.sleeping_engine import OPERATOR, SleepingEngine

BATCHES = 200


@pytest.fixture
def loader_of(tmp_path: Path) -> Iterator[Any]:
    """Makes a loader: seconds a batch of the host and of each engine, and the loader's arguments."""
    with contextlib.ExitStack() as at_end:

        def make(host_s: float, engines_s: tuple[float, ...], **options: Any) -> DDLPLoader:
            devices = []
            for number, sleep_s in enumerate(engines_s):
                engine = SleepingEngine(tmp_path / f"e{number}", sleep_s)
                at_end.callback(engine.end)
                devices.append(Device(engine.process.address, engine.process.keys, name=f"engine{number}"))
            prepare = load_operators(OPERATOR).prepare(host_s=host_s)
            transform = transforms.Compose([prepare, transforms.PILToTensor()])
            data = ImageArrays(np.zeros((BATCHES, 8, 8, 3), np.uint8), range(BATCHES), transform)
            return DDLPLoader(data, 1, shuffle=True, seed=0, csd=devices, **options)

        yield make


def test_energy_within_a_slowdown_is_neither_the_fastest_nor_the_cheapest(loader_of: Any) -> None:
    """The second engine brings a tenth more and takes too much power; without any engine it would take twice as long."""
    goal = Goal("energy", max_slowdown=0.25, power=Power(20, 20, 10, {"engine0": 60, "engine1": 60}))
    loader = loader_of(0.020, (0.020, 0.100), strategy="auto", goal=goal)
    for _ in range(2):
        assert len(list(loader)) == BATCHES
    decision = loader.decision
    assert decision is not None
    names = {" ".join(path.source for path in one.paths): one for one in decision.estimates}
    assert min(names, key=lambda one: names[one].time_s) == "engine0 engine1", "the decision if time counts"
    assert min(names, key=lambda one: names[one].energy_j) == "", "the decision without a constraint"
    assert [path.source for path in decision.chosen.paths] == ["engine0"]
    assert names["engine0"].time_s <= 1.25 * names["engine0 engine1"].time_s < names[""].time_s
    assert 0 < loader.report().batches_csd < BATCHES, "both sides have made batches"


def test_a_recorded_epoch_becomes_a_setup(loader_of: Any, tmp_path: Path) -> None:
    loader = loader_of(0.012, (0.036,), strategy="wrr", record=tmp_path / "run")
    assert len(list(loader)) == BATCHES
    (epoch,) = (tmp_path / "run").iterdir()
    setup = setup_of(measured_run(read_epoch(epoch), 8 * 8 * 3.0).fields)
    (engine,) = setup.measured.paths
    assert setup.batches == BATCHES and engine.source == "engine0"
    assert setup.measured.host_batches_per_s is not None
    assert 0 < setup.measured.host_batches_per_s < 1 / 0.012, "they sleep at least so long"
    assert 0 < engine.batches_per_s < 1 / 0.036
