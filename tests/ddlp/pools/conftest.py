"""Fixtures of the pools' tests: those of the fault tests, which also check what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlp.auto import controller
from tests.ddlp.faults.conftest import (  # noqa: F401
    data,
    engines,
    gpu_awake,
    images,
    leaves_nothing,
    limited,
    paths,
    script,
    spool,
    told,
    truth,
    zygote,
)

HOST_S = 0.03  # that each side sleeps for a batch


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that says how long each side sleeps for a batch. Windows are short, so that few batches are needed."""
    file = tmp_path / "sleep"
    file.write_text(str(HOST_S))
    monkeypatch.setenv("DDLP_SLEEP", str(file))
    monkeypatch.setattr(controller, "WINDOW", 20)
    monkeypatch.setattr(controller, "HOST_WINDOW", 20)
    monkeypatch.setattr(controller, "PAUSE", 5)
    return file
