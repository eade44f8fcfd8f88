"""The quick start: unchanged, with another transform, and with a device that is not there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torchvision import transforms as T

import bottleneck_study
import quickstart
from ddlp.sampledata import make_thumbnails
from ddlp.sources.engine.embedded import _end_all


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Arguments for a short run with small images in its own directory. A test may add more."""
    _end_all()  # an engine of an earlier training may run on any core, which a comparison does not allow
    make_thumbnails(tmp_path / "images", 16, 4)
    monkeypatch.chdir(tmp_path)
    small = [
        "--data",
        "images",
        "--batch-size",
        "4",
        "--workers",
        "1",
        "--seconds",
        "1",
        "--device",
        "cpu",
        "--train-size",
        "32",
    ]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *small])
    threads = torch.get_num_threads()
    yield sys.argv
    torch.set_num_threads(threads)


def table(printed: str) -> dict[str, str]:
    """The table of trainings: each line by what was trained with."""
    return {line.split()[0]: line for line in printed.partition("trained with")[2].splitlines()[1:] if "batches" in line}


def compared(printed: str) -> list[str]:
    return [line.split()[0] for line in printed.splitlines() if re.search(r"\d\.\dx .*\d%", line)]


def test_it_compares_and_trains(given: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert quickstart.main() == 0
    said = capsys.readouterr()
    rows = compared(said.out)
    assert rows[0] == "dataloader" and rows[-4:] == ["cpu", "csd", "mte", "wrr"], said.out
    assert "What this means for your own job" in said.out
    lines = table(said.out)
    assert list(lines) == ["dataloader", "wrr"] and "4 batches" in lines["dataloader"]
    assert "DDLP_ENGINE_CPUS" not in os.environ and len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(1))
    (out,) = (tmp_path / "runs").iterdir()
    assert (out / "report.html").exists()


def test_a_transform_of_the_users_own(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With csd it is an error, which does not stop the rest."""
    monkeypatch.setattr(quickstart, "TRAIN", T.Compose([lambda image: image.rotate(180), T.Resize((64, 64)), T.ToTensor()]))
    given += ["--strategies", "csd", "wrr", "cpu"]
    with pytest.warns(UserWarning, match="the host prepares all batches"):
        assert quickstart.main() == 0
    said = capsys.readouterr()
    assert "--strategies csd: " in said.err and "Ways out" in said.err
    assert set(compared(said.out)) == {"dataloader", "cpu"} and "csd, mte and wrr could not take part: " in said.out
    assert list(table(said.out)) == ["wrr", "cpu"]
    for line in table(said.out).values():
        assert "4 batches" in line and " - " in line


@pytest.mark.parametrize("csd", ["nosuch", pytest.param("tcp://127.0.0.1:1", marks=pytest.mark.slow)])
def test_a_device_that_is_not_there(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], csd: str
) -> None:
    """The host's rows are printed, and the other rows are no tracebacks."""
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))
    monkeypatch.setenv("DDLP_KEYS", str(tmp_path / "keys"))
    given += ["--strategies", "cpu", "wrr", "--csd", csd]
    assert quickstart.main() == 0
    said = capsys.readouterr()
    assert "quickstart: --strategies wrr: " in said.err and csd in said.err
    assert set(compared(said.out)) == {"dataloader", "cpu"} and list(table(said.out)) == ["cpu"]


def test_the_bottleneck_study_without_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))
    monkeypatch.chdir(tmp_path)
    given = ["--small", "--strategy", "wrr", "--csd", "nosuch", "--device", "cpu", "--num-workers", "0"]
    assert bottleneck_study.main(given) == 1
    assert "bottleneck_study: " in (said := capsys.readouterr().err) and "nosuch" in said and "Traceback" not in said
