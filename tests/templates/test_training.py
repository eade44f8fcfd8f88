"""The templates' training loop: Ctrl-C, a checkpoint in mid-epoch, and the result after resuming."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as T

from common import flags, parse
from ddlp import ImageFiles
from training import Task, compare, train

IMAGES, BATCH = 22, 4
STEPS = -(-IMAGES // BATCH)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(5)
    paths = [str(root / f"{number:02}.png") for number in range(IMAGES)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    return ImageFiles(paths, list(range(IMAGES)), T.Compose([T.RandomResizedCrop(8), T.ToTensor()]))


class Interrupted(nn.Module):
    """A linear model on flat pixels. At its n-th training step it sends Ctrl-C."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, IMAGES))
        self.left = at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return self.layers(x)


def task(dataset: ImageFiles, interrupted_at: int | None = None) -> Task:
    # warm_up is a step too.
    return Task(
        "test", "linear", "crop", dataset, dataset, lambda: Interrupted(interrupted_at and interrupted_at + 1),
        lambda model, lr: torch.optim.SGD(model.parameters(), lr, momentum=0.9), 0.1,
    )  # fmt: skip


def options(tmp_path: Path, strategy: str, *more: str) -> Any:
    threads = torch.get_num_threads()
    try:
        parser = flags(None, ["linear"])
        given = ["--strategy", strategy, "--epochs", "2", "--batch-size", str(BATCH), "--workers", "1", "--device", "cpu"]
        return parse(parser, {}, [*given, "--report", str(tmp_path / "runs"), *more])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("strategy", "at"), [("cpu", STEPS), ("cpu", STEPS + 2), ("dataloader", STEPS + 2)])
def test_a_run_broken_off_and_resumed_trains_on_the_same_batches(
    dataset: ImageFiles, tmp_path: Path, strategy: str, at: int
) -> None:
    """The weights are those of an uninterrupted run. DataLoader has no state: its epoch begins again."""
    with_checkpoint = options(tmp_path, strategy, "--checkpoint", str(tmp_path / "run.pt"))
    unbroken, trained = train(task(dataset), options(tmp_path, strategy), strategy, 0)
    assert unbroken.complete and [epoch.samples for epoch in unbroken.epochs] == [IMAGES, IMAGES]

    broken, _ = train(task(dataset, at), with_checkpoint, strategy, 0)
    assert not broken.complete and sum(epoch.batches for epoch in broken.epochs) == at
    resumed, again = train(task(dataset), with_checkpoint, strategy, 0)
    assert resumed.complete
    seen = {number: sum(e.samples for e in resumed.epochs if e.number == number) for number in (0, 1)}
    assert seen == {0: IMAGES, 1: IMAGES}
    if strategy == "cpu":
        parts = [epoch.batches for epoch in resumed.epochs if epoch.number == at // STEPS]
        assert parts == ([at % STEPS, STEPS - at % STEPS] if at % STEPS else [STEPS])
    for name, value in trained.plain.state_dict().items():
        assert torch.equal(value, again.plain.state_dict()[name]), name


@pytest.mark.parametrize("strategy", ["cpu", "wrr"])
def test_a_transform_of_the_users_own(dataset: ImageFiles, tmp_path: Path, strategy: str) -> None:
    """torch's own workers run it, with a warning if a device was asked for. channels_last is Task's default."""
    transform = T.Compose([lambda image: image.rotate(180), T.Resize((8, 8)), T.ToTensor()])
    own = task(ImageFiles(dataset.paths, dataset.targets, transform))
    told = contextlib.nullcontext() if strategy == "cpu" else pytest.warns(UserWarning, match="the host prepares all batches")
    with told:
        run, _ = train(own, options(tmp_path, strategy), strategy, 0)
    assert run.complete and len(run.epochs) == 2
    for epoch in run.epochs:
        assert (epoch.samples, epoch.batches, epoch.batches_cpu, epoch.batches_csd) == (IMAGES, STEPS, STEPS, 0)
        assert epoch.rate_cpu > 0 and epoch.rate_csd is None and epoch.bound_s == IMAGES / epoch.rate_cpu
        assert epoch.host_cpu_s > 0  # CPU time of torch's workers


def test_ctrl_c_reports_what_was_done(dataset: ImageFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(tmp_path, "cpu")
    assert compare(task(dataset, 2), chosen) == 130
    assert "stopped" in capsys.readouterr().out
    (report,) = (tmp_path / "runs").glob("*.json")
    assert '"complete": false' in report.read_text()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
