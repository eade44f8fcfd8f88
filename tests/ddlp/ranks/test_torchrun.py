"""torchrun with two ranks, gloo, one engine: every sample once, equal steps, the same bits. Nothing is left, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from csd_engine.service.jobs import CALIBRATION
from ddlp.observe import read_run
from ddlp.recording.events import Joined
from tests.ddlp.ranks.job import COUNT, Torchrun, check, steps, truth
from tests.engine_process import until
from tests.small_images import make_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    make_images(root, COUNT)
    return root


@pytest.fixture
def torchrun(images: Path) -> Iterator[Any]:
    started = []

    def start(*phases: str) -> Torchrun:
        started.append(Torchrun(images, *phases))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_two_ranks_train_with_one_engine(torchrun, images):
    """With each strategy. Then the engine is killed, and another one takes its place for both ranks."""
    phases = ["csd", "wrr", "mte", "wrr-engine", "csd-again"]
    job = torchrun(*phases)
    until(lambda: job.said("wrr", 0) or job.process.poll() is not None, 300, "two epochs")
    until(lambda: job.engines() or job.process.poll() is not None, 60, "an engine, which may end between two epochs")
    assert len(job.engines()) == 1, job.log
    assert job.process.wait(300) == 0, job.log
    for epoch, phase in enumerate(phases):
        said = [job.said(phase, rank) for rank in (0, 1)]
        check(phase, said, truth(images, epoch))
        assert said[0]["engine"] == said[1]["engine"], phase
        assert said[0]["ranks"] == said[1]["ranks"] == 2
        if phase.startswith("csd"):
            assert all(one["csd"] == steps(2) for one in said), phase
    for rank in (0, 1):
        (recorded,) = read_run(job.out / f"recorded.{rank}")
        assert [joined.ranks for joined in recorded.of(Joined)] == [2]
    wrr, mte = ([job.said(phase, rank) for rank in (0, 1)] for phase in ("wrr", "mte"))
    assert all(one["csd"] for one in wrr)
    assert all(one["measured"] >= 3 for one in mte)
    for said in (wrr, mte):  # a rank was told, or had measured enough itself before the other's first batch
        assert any(one["told"] for one in said) and all(one["told"] or one["measured"] >= CALIBRATION for one in said), said
    assert job.said("csd-again", 0)["engine"] != job.said("csd", 0)["engine"]
    job.nothing_left()
