"""The quick start with another transform than its own, as a user would put it there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torchvision import transforms as T

import bottleneck_study
import quickstart
from ddlp.sampledata import make_thumbnails


def test_a_transform_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under csd it is an error, which ends no other strategy's run."""
    make_thumbnails(tmp_path / "images", 12, 4)
    monkeypatch.setattr(quickstart, "TRAIN", T.Compose([T.Resize((64, 64)), T.ToTensor(), lambda image: 1 - image]))
    given = ["--data", str(tmp_path / "images"), "--strategies", "csd", "wrr", "cpu", "--batch-size", "4", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *given, "--device", "cpu", "--train-size", "32"])
    threads = torch.get_num_threads()
    try:
        with pytest.warns(UserWarning, match="the host prepares all batches"):
            assert quickstart.main() == 0
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr()
    assert "--strategies csd: " in said.err and "Ways out" in said.err
    table = [line.split() for line in said.out.partition("s/epoch")[2].splitlines()[2:4]]
    assert [row[0] for row in table] == ["wrr", "cpu"]
    for row in table:
        assert row[3:5] == ["3", "0"] and row[6:8] == ["-", "-"]  # from CPU, from CSD; processor time, bound


@pytest.mark.parametrize("csd", ["nosuch", "tcp://127.0.0.1:1"])
def test_a_device_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], csd: str
) -> None:
    """The host's run is in the table, and no traceback takes its place."""
    make_thumbnails(tmp_path / "images", 12, 4)
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))
    monkeypatch.setenv("DDLP_KEYS", str(tmp_path / "keys"))
    given = ["--data", str(tmp_path / "images"), "--strategies", "cpu", "wrr", "--batch-size", "4", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *given, "--device", "cpu", "--train-size", "32", "--csd", csd])
    threads = torch.get_num_threads()
    try:
        assert quickstart.main() == 0
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr()
    assert "quickstart: --strategies wrr: " in said.err and csd in said.err
    assert [line.split()[0] for line in said.out.partition("s/epoch")[2].splitlines()[2:4] if line] == ["cpu"]


def test_the_bottleneck_study_without_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))
    monkeypatch.chdir(tmp_path)
    given = ["--small", "--strategy", "wrr", "--csd", "nosuch", "--device", "cpu", "--num-workers", "0"]
    assert bottleneck_study.main(given) == 1
    assert "bottleneck_study: " in (said := capsys.readouterr().err) and "nosuch" in said and "Traceback" not in said
