"""torchrun, two ranks, gloo, one engine: every sample once, equal steps, the same bits; and nothing left, whatever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine_process import until  # noqa: E402
from train import BATCH, SEED, dataset, digest  # noqa: E402

from csd_engine.groups import CALIBRATION  # noqa: E402
from ddlp import DDLPLoader  # noqa: E402
from ddlp.sources.joint import JointEngine  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[3]
TRAIN = Path(__file__).resolve().parent / "train.py"
COUNT = 161  # odd, so that DistributedSampler repeats one
STEPS = -(-81 // BATCH)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(11)
    for number in range(COUNT):
        height, width = random.integers(40, 70, 2)
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number:03}.jpg", quality=80)
    return root


def truth(images: Path, epoch: int) -> dict[int, str]:
    """The digest of each sample, as one process's host makes it."""
    loader = DDLPLoader(dataset(images), BATCH, strategy="cpu", seed=SEED)
    loader.set_epoch(epoch)
    return {int(label): digest(image) for batch, labels in loader for image, label in zip(batch, labels)}


class Torchrun:
    """torchrun with two ranks of train.py, in a temporary directory of its own."""

    def __init__(self, images: Path, *phases: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
        self.out, self.temporary, mark = self.home / "out", self.home / "tmp", f"ddlp-test-{uuid.uuid4().hex}"
        self.out.mkdir()
        self.temporary.mkdir()
        self._mark = f"DDLP_TEST_MARK={mark}"
        environment = {
            **os.environ, "DDLP_TEST_MARK": mark, "TMPDIR": str(self.temporary), "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
        self._log = self.home / "log"
        self.process = subprocess.Popen(
            [*command, str(TRAIN), str(images), str(self.out), *phases],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=open(self._log, "wb"),
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def running(self) -> list[tuple[int, str]]:
        """(pid, command) of its processes, whoever their parents are by now."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self._mark in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                    found.append((int(pid), Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")))
            except OSError:
                pass
        return found

    def engines(self) -> list[int]:
        return [pid for pid, command in self.running() if " csd_engine " in command]

    def said(self, phase: str, rank: int) -> Any:
        path = self.out / f"{phase}.{rank}.json"
        return json.loads(path.read_text()) if path.exists() and path.read_text() else None

    def nothing_left(self) -> None:
        """torchrun itself leaves directories for logs."""
        until(lambda: not self.running(), 10, f"the end of {self.running()}")
        ours = [name for name in os.listdir(self.temporary) if name.startswith("ddlp")]
        assert not ours

    def close(self) -> None:
        for pid, _ in self.running():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.home)


@pytest.fixture
def torchrun(images: Path) -> Iterator[Any]:
    started = []

    def start(*phases: str) -> Torchrun:
        started.append(Torchrun(images, *phases))
        return started[-1]

    yield start
    for one in started:
        one.close()


def check(phase: str, said: list[Any], true: dict[int, str]) -> None:
    """Disjoint, complete, equal steps, the same bits."""
    assert [one["steps"] for one in said] == [STEPS, STEPS], phase
    labels = Counter(label for one in said for label in one["labels"])
    assert set(labels) == set(range(COUNT)) and labels.total() == COUNT + 1, phase  # the sampler repeats one
    for one in said:
        assert len(set(one["labels"])) == len(one["labels"]), phase
        assert [true[label] for label in one["labels"]] == one["digests"], phase


def test_two_ranks_train_with_one_engine(torchrun, images):
    """Under each strategy; then the engine is killed, and another one takes its place for both."""
    phases = ["csd", "wrr", "mte", "wrr-engine", "csd-again"]
    job = torchrun(*phases)
    until(lambda: job.said("wrr", 0) or job.process.poll() is not None, 60, "two epochs")
    assert len(job.engines()) == 1, job.log
    assert job.process.wait(60) == 0, job.log
    for epoch, phase in enumerate(phases):
        said = [job.said(phase, rank) for rank in (0, 1)]
        check(phase, said, truth(images, epoch))
        assert said[0]["engine"] == said[1]["engine"], phase
        assert said[0]["ranks"] == said[1]["ranks"] == 2
        if phase.startswith("csd"):
            assert all(one["csd"] == STEPS for one in said), phase
    wrr, mte = ([job.said(phase, rank) for rank in (0, 1)] for phase in ("wrr", "mte"))
    assert all(one["csd"] for one in wrr)
    assert all(one["measured"] >= 3 for one in mte)
    for said in (wrr, mte):  # who came second was told; who was not told had measured enough itself before the other's first
        assert any(one["told"] for one in said) and all(one["told"] or one["measured"] >= CALIBRATION for one in said), said
    assert job.said("csd-again", 0)["engine"] != job.said("csd", 0)["engine"]
    job.nothing_left()


def test_a_killed_rank_ends_the_job_and_leaves_nothing(torchrun, images):
    job = torchrun("wrr-rank")
    both = until(lambda: all(found := [job.said("wrr-rank", rank) for rank in (0, 1)]) and found, 60, "the ranks' start")
    assert both[0]["engine"] == both[1]["engine"] and job.engines() == [both[0]["engine"]]
    os.kill(both[1]["pid"], signal.SIGKILL)
    assert job.process.wait(60) != 0
    job.nothing_left()


def test_one_process_alone_has_an_engine_of_its_own(images, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    loader = DDLPLoader(dataset(images), BATCH, strategy="csd", seed=SEED, spool=str(tmp_path))
    iterator = iter(loader)
    next(iterator)
    engine = loader._reach._engine
    assert engine is not None and not isinstance(engine, JointEngine)
    del iterator, loader
    until(lambda: not os.listdir(tmp_path), 5)
