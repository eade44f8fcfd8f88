"""New keys for a device in use: the old keys are valid until the new ones have been used, and no longer."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from csd_engine.errors import EngineRefused
from csd_engine.protocol.keys import load_public
from ddlp.deploy import keys, place
from ddlp.devices import address_book as book
from ddlp.devices.device import Device as Address
from ddlp.sources.engine.device_link import link_to
from tests.ddlp.deploy.local_device import Device, ddlp, epoch
from tests.engine_process import until


def copied(base: Path) -> Path:
    """A copy of this host's present keys."""
    return Path(shutil.copytree(book.directory("csd0"), base / f"keys-{len(list(base.iterdir()))}"))


def comes_in(device: Device, directory: Path) -> bool:
    link = link_to(Address(f"tcp://127.0.0.1:{device.port}", directory, connect_timeout_s=30))
    try:
        link.open()
        return True
    except EngineRefused:
        return False
    finally:
        link.close()


def test_both_keys_are_replaced(device: Device, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ddlp(capsys, *device.arguments())
    old, open_link = copied(base), link_to(Address(f"tcp://127.0.0.1:{device.port}", book.directory("csd0")))
    open_link.open()
    try:
        told = ddlp(capsys, "keys", "rotate", "csd0", "--only", "host")
        assert re.search(r"^host key +the engine knows .* the old one is gone", told, re.MULTILINE) and "engine key" not in told
        until(lambda: open_link.lost, what="the end of the old key's connection")
    finally:
        open_link.close()
    assert not comes_in(device, old)
    between = copied(base)
    told = ddlp(capsys, "keys", "rotate", "csd0", "--only", "engine")
    assert re.search(r"^engine key +the engine was started anew", told, re.MULTILINE) and "host key" not in told
    assert not comes_in(device, between)
    new = book.directory("csd0")
    names = ("host.key", "server.key")
    assert all(load_public(new / name) != load_public(old / name) for name in names)
    assert not any(one.is_dir() for one in new.iterdir())
    clients = device.home / "keys" / "clients"
    assert sorted(path.suffix for path in clients.iterdir()) == [".key", ".roots"]
    assert sorted(path.name for path in (device.home / "keys").iterdir()) == ["clients", "server.key", "server.key_secret"]
    assert os.stat(device.home / "keys" / "server.key_secret").st_mode & 0o077 == 0
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0")
    epoch(device, csd="csd0", strategy="csd")
    assert device.report.batches_csd > 0


def test_what_broke_off_is_finished(device: Device, base: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    ddlp(capsys, *device.arguments())
    old = copied(base)

    def broken_off(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, "remove_client", broken_off)
        with pytest.raises(KeyboardInterrupt):
            ddlp(capsys, "keys", "rotate", "csd0", "--only", "host")
    assert comes_in(device, old) and comes_in(device, book.directory("csd0"))
    assert "an earlier run is finished" in ddlp(capsys, "keys", "rotate", "csd0", "--only", "host")
    assert not comes_in(device, old) and comes_in(device, book.directory("csd0"))


@pytest.mark.slow
def test_an_engine_that_does_not_serve_with_its_new_key_goes_back(
    device: Device, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    ddlp(capsys, *device.arguments())
    monkeypatch.setattr(keys, "_GREET_TIMEOUT_S", 2.0)

    def wrong(self: keys._Rotation) -> None:
        (self._next / "server.key").write_bytes((self._here / "server.key").read_bytes())  # as if it were another engine's
        greet(self)

    greet = keys._Rotation._greet
    monkeypatch.setattr(keys._Rotation, "_greet", wrong)
    told = ddlp(capsys, "keys", "rotate", "csd0", "--only", "engine", status=1)
    assert "goes back to the old" in told
    assert comes_in(device, book.directory("csd0"))
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0")
