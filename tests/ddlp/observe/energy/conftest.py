"""A recorded /sys with RAPL, which the tests move forward: most machines that run them have no such counters."""

from __future__ import annotations

from pathlib import Path

import pytest

RANGE_UJ = 262143328850  # of a desktop's package
DRAM_RANGE_UJ = 65712999613  # of a server's memory


class Recorded:
    """A tree like /sys with one package and its memory, in microjoules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("class/powercap/intel-rapl:0/name", "package-0")
        self.write("class/powercap/intel-rapl:0/max_energy_range_uj", RANGE_UJ)
        self.write("class/powercap/intel-rapl:0:0/name", "dram")
        self.write("class/powercap/intel-rapl:0:0/max_energy_range_uj", DRAM_RANGE_UJ)
        self.package(0)
        self.dram(0)

    def write(self, name: str, value: object) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
        return path

    def package(self, uj: int) -> Path:
        return self.write("class/powercap/intel-rapl:0/energy_uj", uj % (RANGE_UJ + 1))

    def dram(self, uj: int) -> Path:
        return self.write("class/powercap/intel-rapl:0:0/energy_uj", uj % (DRAM_RANGE_UJ + 1))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "sys")


class Clock:
    """A clock that the test moves. Calling it gives the time in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a test independent of this machine's GPUs."""
    monkeypatch.setattr("ddlp.observe.energy.meter.find_gpus", lambda: (None, None))
