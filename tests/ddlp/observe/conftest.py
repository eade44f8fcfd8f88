"""Fixtures: small images; loaders whose stages really sleep, with the time they slept; recorded runs."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays, load_operators
from ddlp.observe import MeasuredDataLoader
from ddlp.observe.energy import EnergyMeter, save
from ddlp.sources.engine.fetch import BatchFetcher
from ddlp.translate.datasets import _PartReader
from tests.ddlp.faults.scene import dataset, engine_pid
from tests.small_images import make_images


@pytest.fixture(autouse=True)
def limited(hard_limit: None) -> None:
    """A test that hangs fails."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eighty small JPEG files with random crops and masks. Their targets are their numbers."""
    return dataset(make_images(tmp_path_factory.mktemp("images"), 80))


PROBED = 2  # the samples that a device makes before its first lease, to be compared: a whole batch here


class Delays:
    """Makes loaders whose stages sleep, and adds up how long each stage really slept, in seconds."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self._log, self._patch = home / "slept", patch
        self.slept: Counter[str] = Counter()

    def _slow(self, kind: str, seconds: float, inner: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*arguments: Any) -> Any:
            began = time.monotonic()
            time.sleep(seconds)
            self.slept[kind] += time.monotonic() - began
            return inner(*arguments)

        return slowed

    def loader(
        self, batches: int, *, read_s: float = 0, host_s: float = 0, device_s: float = 0, fetch_s: float = 0, **options: Any
    ) -> DDLPLoader:
        """Batches of two small samples. Reading and preparing sleep for each sample, fetching for each batch."""
        if read_s:
            self._patch.setattr(_PartReader, "open", self._slow("read", read_s, _PartReader.open))
        if fetch_s:
            self._patch.setattr(BatchFetcher, "read", self._slow("fetch", fetch_s, BatchFetcher.read))
        operators = load_operators(Path(__file__).with_name("slow.py"))
        slow = operators.slow(log=str(self._log), host=os.getpid(), host_s=host_s, device_s=device_s)
        images = ImageArrays(
            np.zeros((2 * batches, 8, 8, 3), np.uint8), range(2 * batches), transforms.Compose([slow, transforms.ToTensor()])
        )
        return DDLPLoader(images, 2, seed=0, **options)

    def train(self, loader: Any, step_s: float) -> None:
        """Train an epoch with steps that sleep. Clears earlier sums."""
        self.slept.clear()
        for kind in ("host", "device"):
            Path(f"{self._log}.{kind}").unlink(missing_ok=True)
        for _ in loader:
            began = time.monotonic()
            time.sleep(step_s)
            while not self.joined(loader):  # the host then has some batches ready, and waits too
                time.sleep(step_s)
            self.slept["training"] += time.monotonic() - began
        for kind in ("host", "device"):
            path = Path(f"{self._log}.{kind}")
            times = [float(line) for line in path.read_text().split()] if path.exists() else []
            self.slept[kind] = sum(times[PROBED:] if kind == "device" else times)

    @staticmethod
    def joined(loader: Any) -> bool:
        """Whether every device takes part."""
        return all(account.alive for account in loader._last.executor.ledger.devices.values())

    def warm(self) -> None:
        """Start the embedded engine, so that later loaders join it at once."""
        self.train(self.loader(2, strategy="csd"), 0)


@pytest.fixture
def delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Delays]:
    yield Delays(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Recorded runs, a directory each, of real loaders with the embedded engine:

    wrr (two epochs, with the energy of one by the model), mte, alone (no device), taken back (a lease), lost (the
    engine was killed), broken off (it ended early), empty (it ended before the first batch).
    """
    home = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        delays = Delays(home, patch)
        kept = delays.loader(2, strategy="csd")  # keeps the embedded engine running
        delays.train(kept, 0)
        both: dict[str, Any] = {"host_s": 0.01, "device_s": 0.012, "fetch_s": 0.005, "num_workers": 2}
        meter = EnergyMeter.auto(sys=home / "no meters")
        for _ in range(2):
            loader = delays.loader(30, strategy="wrr", record=home / "wrr", **both)
            with meter:
                delays.train(loader, 0.003)
        save(home / "wrr" / "energy.json", [meter.result(loader.report(), workers=2, label="wrr")])
        delays.train(delays.loader(30, strategy="mte", record=home / "mte", **both), 0.003)
        delays.train(delays.loader(20, strategy="cpu", record=home / "alone", host_s=0.002), 0.003)
        slow: dict[str, Any] = {"host_s": 0.01, "device_s": 0.4}
        delays.train(delays.loader(20, strategy="wrr", record=home / "taken back", **slow), 0.003)
        iterator = iter(delays.loader(20, strategy="cpu", record=home / "broken off"))
        next(iterator)
        del iterator
        iter(delays.loader(20, strategy="cpu", record=home / "empty"))
        lossy = delays.loader(40, strategy="wrr", record=home / "lost", host_s=0.03, device_s=0.02)
        with pytest.warns(UserWarning, match="is gone"):
            for number, _ in enumerate(lossy):
                time.sleep(0.003)
                while number == 5 and not delays.joined(lossy):
                    time.sleep(0.01)
                if number == 15:
                    os.kill(engine_pid(), signal.SIGKILL)
        del kept, lossy, loader
    yield home


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two epochs each, below one directory: torch's DataLoader, and two seeds of wrr with the embedded engine.

    The energy of the last epoch of each is modelled.
    """
    home = tmp_path_factory.mktemp("three")
    with pytest.MonkeyPatch.context() as patch:
        delays = Delays(home, patch)
        kept = delays.loader(2, strategy="csd")  # keeps the embedded engine running
        delays.train(kept, 0)
        meter = EnergyMeter.auto(sys=home / "no meters")
        slow: dict[str, Any] = {"host_s": 0.01, "device_s": 0.012}
        for name in ("wrr-seed0", "wrr-seed1"):
            loader = delays.loader(24, strategy="wrr", num_workers=1, record=home / name, **slow)
            for _ in range(2):
                with meter:
                    delays.train(loader, 0.003)
            save(home / name / "energy.json", [meter.result(loader.report(), workers=1, label="wrr")])
        torchs = MeasuredDataLoader(loader.dataset, 2, num_workers=1, record=home / "dataloader")
        for _ in range(2):
            with meter:
                for _ in torchs:
                    time.sleep(0.003)
        save(home / "dataloader" / "energy.json", [meter.result(torchs.report(), workers=1, label="dataloader")])
        del kept, loader
    return home
