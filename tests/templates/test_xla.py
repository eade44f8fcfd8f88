"""`train_cifar10.py --device xla`, beside the same on the CPU. `scripts/xla_check.sh` runs it where torch_xla is installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import train_cifar10
from training import Training

IMAGES, EPOCHS = 80, 2
HAS_XLA = importlib.util.find_spec("torch_xla") is not None
if HAS_XLA:  # before any step on the CPU: torch's autograd gets its threads for each device with its first backward pass
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    importlib.import_module("torch_xla")
with_xla = pytest.mark.skipif(not HAS_XLA, reason="torch_xla is not installed; run ./scripts/xla_check.sh")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which the template runs. It sets torch's threads, which are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def trained(home: Path, device: str, strategy: str, *more: str) -> tuple[Any, list[bytes]]:
    """Train on a device; return the run, from its report, and the pixels of each image in the order of the steps."""
    seen: list[bytes] = []
    step = Training.step

    def noted(self: Training, images: torch.Tensor, labels: torch.Tensor, amp: torch.dtype | None) -> torch.Tensor:
        assert images.device.type == labels.device.type == device
        seen.extend(image.contiguous().numpy().tobytes() for image in images.cpu())
        return step(self, images, labels, amp)

    reports = home / f"{device}-{strategy}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "step", noted)
        given = ["--small", "--workers", "1", "--epochs", str(EPOCHS), "--device", device, "--strategy", strategy]
        assert train_cifar10.main([*given, "--report", str(reports), *more]) == 0
    (path,) = reports.glob("*.json")
    report = json.loads(path.read_text())
    assert report["accelerator"] == (f"{os.environ['PJRT_DEVICE']}, by torch_xla" if device == "xla" else None)
    (run,) = report["runs"]
    assert run["complete"] and [epoch["samples"] for epoch in run["epochs"]] == [IMAGES] * EPOCHS
    return run, seen


@with_xla
@pytest.mark.parametrize("model", train_cifar10.MODELS[::2])  # a Wide ResNet, and the ViT of the paper's Figure 8b
def test_it_trains_as_on_the_cpu(home: Path, model: str) -> None:
    """Equal images in equal order, and losses and accuracy that differ by float arithmetic alone."""
    here, images = trained(home, "cpu", "cpu", "--model", model)
    there, same = trained(home, "xla", "cpu", "--model", model)
    assert same == images and len(set(images[:IMAGES])) == IMAGES
    losses = [[epoch["loss"] for epoch in run["epochs"]] for run in (here, there)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3), losses
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=1 / 16 + 1e-9)  # of the 16 test images
    _, shared = trained(home, "xla", "wrr", "--model", model)
    for epoch in range(EPOCHS):
        part = slice(epoch * IMAGES, (epoch + 1) * IMAGES)
        assert Counter(shared[part]) == Counter(images[part])


@with_xla
def test_a_checkpoint(home: Path) -> None:
    """A run that goes on from its checkpoint has nothing left to do."""
    first, images = trained(home, "xla", "cpu", "--checkpoint", "run.pt")
    (home / "xla-cpu").rename(home / "first")
    again, none = trained(home, "xla", "cpu", "--checkpoint", "run.pt")
    assert len(images) == EPOCHS * IMAGES and not none and again["accuracy"] == first["accuracy"]


@pytest.mark.parametrize("flag", ("--compile", "--evaluate-beside", "--strategy dataloader"))
def test_flags_that_xla_has_no_use_for(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_cifar10.main(["--small", "--device", "xla", "--workers", "1", *flag.split()])
    assert f"{flag} with --device xla: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(HAS_XLA, reason="torch_xla is installed")
def test_what_is_missing_is_told_in_a_line() -> None:
    with pytest.raises(SystemExit, match=r"--device xla: No module named 'torch_xla'.*pip install 'ddlp\[xla\]'") as told:
        train_cifar10.main(["--small", "--device", "xla"])
    assert "\n" not in str(told.value)
