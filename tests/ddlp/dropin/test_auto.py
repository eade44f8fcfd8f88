"""`strategy="auto"` in a real loader with a real engine: its decisions, its messages, and that each sample comes once."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms

import benchmarks.standin
from csd_engine.prepare.operator_file import content_hash
from ddlp import DDLPLoader, Device, Goal, ImageArrays, Power, load_operators
from ddlp.auto.controller import WINDOW
from ddlp.observe import read_run
from ddlp.recording.events import Decided
from tests.engine_process import EngineProcess

BATCHES = 200
HOST_S = 0.01


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    home = tmp_path_factory.mktemp("engine")
    (home / "root").mkdir()
    one = EngineProcess(home, "--root", str(home / "root"), "--operators", str(operators(home)))
    yield one
    assert one.end() == 0


@pytest.fixture(autouse=True)
def nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with no measurement of another one's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def operators(home: Path) -> Path:
    """An engine's directory of operators, with the one that sleeps."""
    (home / "operators").mkdir(mode=0o700)
    source = Path(benchmarks.standin.__file__).read_bytes()
    (home / "operators" / f"{content_hash(source)}.py").write_bytes(source)
    return home / "operators"


def train_until_decided(loader: DDLPLoader, rests: bool = False) -> None:
    """Train until the engine has joined and a decision is made, or until it rests: on a busy computer, for several epochs."""
    end = time.monotonic() + 60
    while loader.measured is None or not loader.measured.paths or (rests and not loader._parts.life.rates.resting):
        assert time.monotonic() < end, f"not decided: {loader.decision}, {loader.measured}"
        train(loader)


class Same:
    """A step that ddlp does not know."""

    def __call__(self, image: Any) -> Any:
        return image


def make_loader(engine: EngineProcess | None, device_s: float, own: tuple[Any, ...] = (), **options: Any) -> DDLPLoader:
    """Batches of one pixel. Host and device sleep HOST_S and `device_s` for each. ``own``: steps of the user's own."""
    prepare = load_operators(benchmarks.standin.__file__).prepare(host=os.getpid(), host_s=HOST_S, device_s=device_s)
    images = np.arange(BATCHES * 3, dtype=np.uint16).astype(np.uint8).reshape(BATCHES, 1, 1, 3)
    data = ImageArrays(images, range(BATCHES), transforms.Compose([prepare, *own, transforms.PILToTensor()]))
    device = None if engine is None else Device(engine.address, engine.keys, name="board")
    return DDLPLoader(data, 1, shuffle=True, csd=device, seed=1, **{"strategy": "auto", **options})


def train(loader: DDLPLoader) -> None:
    """Train one epoch, and check that each sample comes once and is right."""
    seen = []
    for images, targets in loader:
        number = int(targets[0])
        assert torch.equal(images.flatten(), (torch.arange(3) + 3 * number).to(torch.uint8))
        seen.append(number)
    assert sorted(seen) == list(range(BATCHES))


def test_a_device_that_helps_takes_part(engine: EngineProcess) -> None:
    loader = make_loader(engine, 0.01)
    assert loader.decision is None and "auto (given): wrr with the devices that" in str(loader.explain())
    train_until_decided(loader)
    decision, measured = loader.decision, loader.measured
    assert decision is not None and decision.offloads and measured is not None
    assert [path.source for path in decision.chosen.paths] == ["board"]
    # A side that sleeps for each batch makes at most so many. How many fewer, other work on this computer decides.
    assert 0 < measured.host_batches_per_s < 1.5 / HOST_S
    path = measured.paths[0]
    assert path.transport == "spool" and 0 < path.batches_per_s < 1.5 / HOST_S and path.bytes_per_batch == 3
    assert measured.host_cpu_s_per_batch is not None and 0 < measured.host_cpu_s_per_batch < HOST_S
    assert path.host_cpu_s_per_batch is not None and 0 < path.host_cpu_s_per_batch < HOST_S
    report = loader.report()
    assert report.batches_csd > BATCHES // 8
    assert any(note.startswith("auto: With board by spool") for note in report.notes)


def test_in_front_of_steps_of_ones_own_a_device_makes_a_prefix(engine: EngineProcess) -> None:
    loader = make_loader(engine, 0.01, own=(Same(),))
    train_until_decided(loader)
    assert loader.measured is not None and loader.decision is not None
    assert "board by spool" in [str(one) for one in loader.decision.estimates]  # type: ignore


def test_it_rests_where_training_does_not_wait(engine: EngineProcess, tmp_path: Path) -> None:
    loader = make_loader(engine, 0.01, record=tmp_path / "run")
    for _ in loader:
        time.sleep(8 * HOST_S)  # long, also for a host that other work slows down
        if loader.decision is not None:
            break
    (trace,) = read_run(tmp_path / "run")
    first, last = (one for one in trace.of(Decided) if one.about == "devices")
    assert first.text.startswith("auto measures the host alone") and "Training does not wait for data" in last.text
    assert first.at < last.at
    assert loader.report().batches_csd == 0 and loader.decision is not None and not loader.decision.offloads
    assert any("Training does not wait for data" in note for note in loader.report().notes)


def test_a_device_that_is_far_too_slow_rests(engine: EngineProcess) -> None:
    # What is far too slow depends on the host, which other work may slow down: here, what brings less than half of the host.
    loader = make_loader(engine, 0.8, goal=Goal(threshold=0.5))
    train_until_decided(loader, rests=True)
    assert loader._parts.life.rates.resting == {"board"}
    train(loader)
    assert loader.report().batches_csd <= 4, "training would wait for the device"
    loader.strategy = "wrr"
    next(iter(loader))
    assert not loader._parts.life.rates.resting and loader.decision is not None, "another strategy must give it leases again"


def test_without_a_source_given_it_starts_the_embedded_engine() -> None:
    loader = make_loader(None, 0.001)
    for _ in range(3):
        train(loader)
        if loader.report().batches_csd:
            break
    assert loader.report().batches_csd


def test_an_epoch_goes_on_after_a_resume_and_a_pickle(engine: EngineProcess) -> None:
    loader = make_loader(engine, 0.01)
    batches = iter(loader)
    seen = [int(next(batches)[1]) for _ in range(WINDOW + 50)]
    state = loader.state_dict()
    batches._shutdown_workers()
    other = pickle.loads(pickle.dumps(loader))
    assert other.decision is None and other._parts.controller is None and loader._parts.controller is not None
    other.load_state_dict(state)
    assert sorted(seen + [int(targets) for _, targets in other]) == list(range(BATCHES))


def test_a_goal_is_checked(engine: EngineProcess) -> None:
    with pytest.raises(ValueError, match=r"goal=Goal\(.*only with strategy='auto'"):
        make_loader(engine, 0.01, strategy="wrr", goal=Goal())
    with pytest.raises(ValueError, match="goal='energy'"):
        make_loader(engine, 0.01, goal="energy")
    loader = make_loader(engine, 0.01, goal=Goal("energy", power=Power(50, 100, 300)))
    with pytest.raises(ValueError, match="power.engine_watts lacks 'board'"):
        iter(loader)
    # However slow other work makes the host: the device does not bring what it costs.
    loader.goal = Goal("energy", power=Power(50, 100, 300, {"board": 100_000}))
    train_until_decided(loader, rests=True)
    assert loader._parts.life.rates.resting == {"board"}, "the device costs more energy than it saves"


def test_the_second_run_begins_with_the_decision_of_the_first(engine: EngineProcess) -> None:
    first = make_loader(engine, 0.01)
    train_until_decided(first)
    assert first.measured is not None and first.measured.paths
    again = make_loader(engine, 0.01)
    train(again)
    assert again._parts.controller is not None and again._parts.controller._batches < 2 * BATCHES
    assert again.decision is not None and again.decision.offloads
    rested = make_loader(engine, 0.01, goal=Goal(remember=False))
    iter(rested)
    assert rested.decision is None, "it must measure first"
    for other in (make_loader(engine, 0.01, goal=Goal(model="another")), make_loader(engine, 0.01, num_workers=2)):
        iter(other)
        assert other.decision is None, "the stored measurement was of another training"


def test_a_store_that_cannot_be_used_is_no_error(engine: EngineProcess, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "ddlp").write_text("a file in the place of the directory")
    loader = make_loader(engine, 0.01)
    train(loader)
    train(loader)
    assert sum("measurements" in text for text in caplog.messages) == 1
