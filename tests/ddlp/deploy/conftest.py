"""Fixtures: the test's own sshd, and a device behind it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ddlp.deploy.local_device import Device
from tests.ddlp.deploy.quick import quicken
from tests.ddlp.deploy.sshd import Sshd, kill_tree
from tests.needs import need


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


@pytest.fixture
def make_sshd(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    need("ssh", "sshd")
    servers: list[Sshd] = []

    def make(*lines: str) -> Sshd:
        servers.append(Sshd(tmp_path / f"sshd{len(servers)}", *lines))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd]) -> Sshd:
    return make_sshd()


@pytest.fixture
def base() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ddlp-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_device(make_sshd: Callable[..., Sshd], base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Device]]:
    monkeypatch.setenv("DDLP_HOME", str(base / "book"))
    made: list[Device] = []

    def make(*lines: str) -> Device:
        made.append(Device(make_sshd(*lines), base / str(len(made))))
        return made[-1]

    yield make
    for device in made:
        if device.supervisor():
            kill_tree(device.supervisor())


@pytest.fixture
def device(make_device: Callable[..., Device]) -> Device:
    return make_device()
