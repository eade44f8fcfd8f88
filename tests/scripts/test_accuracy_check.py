"""`scripts.accuracy_check`: what it makes of a template's report, and a real template, started and stopped by it."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts import accuracy_check
from scripts.accuracy import noise_limit
from scripts.accuracy_check import CHECKS, Check, CheckFailed, scores, table

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
AUDIO = next(check for check in CHECKS if check.template == "train_audio")
REACHED = {"dataloader": (0.75, 0.8, 0.85), "cpu": (0.8, 0.8, 0.8), "wrr": (0.41, 0.4, 0.39)}


def report(**reached: tuple[float | None, ...]) -> dict[str, Any]:
    """A report's parts that count, with these scores."""
    runs = [
        {"strategy": strategy, "accuracy": value, "complete": value is not None, "score": "top-1",
         "figures": {"images_per_s": 100.0 + seed, "csd_share": 0.25 if strategy == "wrr" else 0.0}}
        for strategy, values in reached.items() for seed, value in enumerate(values)
    ]  # fmt: skip
    return {"options": {"seeds": 3}, "runs": runs}


def test_a_strategy_that_loses_accuracy_is_found() -> None:
    many = replace(AUDIO, val_images=240)
    found = scores(many, report(**REACHED))
    assert found.difference("cpu") == pytest.approx(0) and found.difference("wrr") == pytest.approx(-0.4)
    assert found.limit("wrr") == noise_limit(REACHED["dataloader"], REACHED["wrr"], 240)
    assert not found.agree and scores(many, report(**{**REACHED, "wrr": (0.8, 0.7, 0.75)})).agree
    head, _, line = table({"train_audio": found.figures}).splitlines()
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert cells["dataloader, %"] == f"80.0 ± {100 * statistics.stdev(REACHED['dataloader']):.1f}"
    assert cells["off, %"] == "0.0 and 40.0" and cells["within"] == "**no**" and cells["images/s"] == "101, 101, 101"
    assert cells["by engine |"] == "25 % |"


def test_a_report_without_all_runs_is_no_result() -> None:
    for wrr in ((0.8, 0.7), (0.8, 0.7, None)):
        with pytest.raises(CheckFailed, match="train_audio: its report has fewer than 3 whole runs of wrr"):
            scores(AUDIO, report(**{**REACHED, "wrr": wrr}))


def test_each_template_that_trains_is_checked() -> None:
    trains = {path.stem for path in TEMPLATES.glob("*.py") if "    return compare(" in path.read_text()}
    assert trains <= {check.template for check in CHECKS} and "train_imagenet" in trains


@pytest.mark.slow
def test_a_real_template(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """One epoch with two seeds; then one that does not start."""
    short = replace(AUDIO, arguments=("--small", "--epochs", "1", "--pool", "1"))
    monkeypatch.setattr(accuracy_check, "CHECKS", (short, Check("train_audio", ("--nonsense",), 48)))
    assert accuracy_check.main(["--seeds", "2"]) == 1
    printed, said = capfd.readouterr()
    assert "| train_audio | 48 |" in printed and "unrecognized arguments: --nonsense" in said
    assert "accuracy_check: train_audio ended with status 2" in said


@pytest.mark.slow
def test_ctrl_c_ends_the_template_too() -> None:
    command = [sys.executable, "-m", "scripts.accuracy_check", "--only", "train_audio", "--seeds", "50"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while "epoch" not in child.stderr.readline():  # the template trains
            pass
        child.send_signal(signal.SIGINT)
        printed, said = child.communicate()
    assert child.returncode == 130 and "stopped after 0 of 1" in said and printed.startswith("| template")
