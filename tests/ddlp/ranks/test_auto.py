"""strategy="auto" on several ranks with a real engine: all take one decision, from the slowest rank's measurements."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddlp.auto.measured import Measured
from tests.ddlp.faults.scene import Zygote
from tests.engine_process import alive, until
from tests.ports import free_port
from tests.sleeping_engine import SleepingEngine

SCRIPT = Path(__file__).with_name("auto_rank.py")


class Job:
    """Ranks of auto_rank.py, with torchrun's environment, and an engine that takes 10 ms a batch."""

    def __init__(self, home: Path, zygote: Zygote, ranks: int, *phases: dict[str, Any]) -> None:
        self.home, self.out, self._zygote = home, home / "out", zygote
        self.out.mkdir()
        self.engine = SleepingEngine(home / "engine", 0.010)
        phases = tuple({**phase, "until": str(self.out / phase["until"]) if "until" in phase else ""} for phase in phases)
        engine = self.engine.process
        script = [str(SCRIPT), str(self.out), engine.address, str(engine.keys), *map(json.dumps, phases)]
        environment = {
            **os.environ, "PYTHONPATH": str(SCRIPT.parents[3]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home),
        }  # fmt: skip
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        self.pids: list[int] = []
        for rank in range(ranks):
            own = home / f"rank{rank}.py"
            own.write_text(f"import runpy, sys\nsys.argv = {script}\nrunpy.run_path({script[0]!r}, run_name='__main__')\n")
            self.pids.append(zygote.start(own, {**environment, **meeting, "RANK": str(rank)}))

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace")[-6000:] for path in self.home.glob("*.stderr"))

    def said(self, phase: str) -> list[dict[str, Any]]:
        """What each rank has written, once all have ended."""
        for rank in range(len(self.pids)):
            assert self.status(rank) == 0, self.log
        return [json.loads((self.out / f"{phase}.{rank}.json").read_text()) for rank in range(len(self.pids))]

    def status(self, rank: int) -> int:
        """Wait for the rank's end."""
        return self._zygote.status(self.pids[rank])

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        if alive(self.pids[rank]):
            os.kill(self.pids[rank], number)

    def until_text(self, name: str, text: str) -> None:
        """Wait until a file has a text."""
        path = self.out / name
        until(lambda: path.exists() and text in path.read_text(), 180, f"{text!r} in {name}")

    def close(self) -> None:
        for rank in range(len(self.pids)):
            self.kill(rank, signal.SIGTERM)
            self.status(rank)
        self.engine.end()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def one(*given: Any) -> Job:
        started.append(Job(tmp_path_factory.mktemp("a"), zygote, *given))
        return started[-1]

    yield one
    for job in started:
        job.close()


def agree(said: list[dict[str, Any]], rank: int) -> None:
    """The same decisions from the same figures, of this rank; the last one may not have come everywhere."""
    longest = max((one["history"] for one in said), key=len)
    figures = max((one["measured"] for one in said), key=len)
    assert longest
    for one in said:
        count = len(one["history"])
        assert 0 <= len(longest) - count <= 1 and count
        assert one["history"] == longest[:count] and one["measured"] == figures[:count]
        assert not one["threads"] and not any("rank" in text for text in one["told"]), one
        whose = f"All {len(said)} ranks go by the figures of the slowest, rank {rank}."
        assert any(whose in note for note in one["notes"]), one


SLOW_HOST = {"name": "host", "host_s": [0.005, 0.040], "step_s": [0.010, 0.010]}
SLOW_STEP = {"name": "step", "host_s": [0.020, 0.020], "step_s": [0.001, 0.040], "sync": False}


def test_two_ranks_take_one_decision(start):
    job = start(2, SLOW_HOST, SLOW_STEP)
    said = job.said("host")
    agree(said, rank=1)
    for one in said:  # rank 0 by itself never waits for data: its steps are as long as rank 1's batches
        assert "With board" in one["history"][0] and one["csd"]
        measured = Measured.from_data(one["measured"][0])
        assert measured.step_s * measured.host_batches_per_s < 0.6
    said = job.said("step")
    agree(said, rank=1)
    for one in said:  # rank 0 by itself waits for data
        assert "Training does not wait for data" in one["history"][0] and not one["csd"]


@pytest.mark.slow
def test_ranks_that_are_killed_hold_nobody_up(start):
    """Without an all_reduce, so that training goes on. Rank 0 has the store: without it the last rank decides by itself."""
    phase = {"name": "kill", "host_s": [0.030] * 3, "step_s": [0.001] * 3, "sync": False, "until": "stop"}
    job = start(3, phase)
    for rank in range(3):
        job.until_text(f"kill.{rank}.decided", "With board")
    job.kill(2)
    job.until_text("0.told", "decided without the measurements of rank 2")
    job.kill(0)
    job.until_text("1.told", "rank 1 decides by itself from now on which devices take part: the ranks' store does not answer")
    (job.out / "stop").touch()
    assert job.status(1) == 0, job.log
    said = json.loads((job.out / "kill.1.json").read_text())
    assert len(said["told"]) == 1 and not said["threads"]
