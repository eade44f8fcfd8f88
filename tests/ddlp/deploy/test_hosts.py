"""Several hosts that use one engine: here each is an address book with its own names for the data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ddlp.deploy.settings import Settings
from tests.ddlp.deploy.local_device import Device, ddlp, epoch


class Host:
    """One of the hosts: how it deploys, and the paths by which it sees the device."""

    def __init__(self, device: Device, home: Path, here: Path, there: Path, capsys, monkeypatch) -> None:
        self.device, self.home, self.here, self.there = device, home, here, there
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def ddlp(self, *arguments: str, status: int = 0) -> str:
        self._monkeypatch.setenv("DDLP_HOME", str(self.home))
        return ddlp(self._capsys, *arguments, status=status)

    def deploy(self, *more: str, status: int = 0) -> str:
        given = ["board", "--name", "csd0", *self.device.sshd.options, "--root", str(self.there), "--host-root", str(self.here)]
        rest = ["--spool", str(self.device.spool), "--listen-port", str(self.device.port), "--kernel", "none"]
        return self.ddlp("deploy", *given, *rest, *more, status=status)

    def trains(self) -> bool:
        """Whether the device prepares batches of this host's data."""
        self._monkeypatch.setenv("DDLP_HOME", str(self.home))
        self.device.data_here = self.here
        epoch(self.device, csd="csd0", strategy="csd")
        return self.device.report.batches_csd > 0


@pytest.fixture
def hosts(device: Device, base: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Host]:
    """A host that already uses the device, and one with another copy of the data."""
    shutil.copytree(device.data_here, base / "coco there")
    (base / "coco here").symlink_to(base / "coco there")
    first = Host(device, base / "book", device.data_here, device.data_there, capsys, monkeypatch)
    first.deploy("--workers", "1", "--reserve-bytes", "1M")
    return first, Host(device, base / "another book", base / "coco here", base / "coco there", capsys, monkeypatch)


def _arguments(device: Device) -> list[str]:
    return json.loads((device.home / "engine.json").read_text())["arguments"]


def test_a_second_host_leaves_the_first_what_it_has(device: Device, hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    before = _arguments(device)
    told = second.deploy()
    assert "1 other host may use this engine: what they were given stays" in told and "restarted" in told
    assert [one for one in _arguments(device) if one not in before] == [f"{second.here}={second.there}"]
    assert all(one in _arguments(device) for one in before)
    assert first.trains() and second.trains()
    engine = device.engine()
    for host in hosts:
        assert "Nothing had to be changed." in host.ddlp("deploy", "--name", "csd0")
    second.ddlp("deploy", "--name", "csd0", "--workers", "2")
    for host in hosts:
        assert "Nothing had to be changed." in host.ddlp("deploy", "--name", "csd0")
    assert device.engine() != engine and _arguments(device)[_arguments(device).index("--workers") + 1] == "2"


def test_a_host_that_goes_leaves_the_engine_to_the_others(device: Device, hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    second.deploy()
    engine, keys = device.engine(), device.home / "keys" / "clients"
    assert len(list(keys.iterdir())) == 4
    told = second.ddlp("deploy", "--name", "csd0", "--uninstall")
    assert "the engine stays for 1 other host" in told and "--uninstall --all" in told
    assert not (second.home / "devices" / "csd0").exists() and len(list(keys.iterdir())) == 2
    assert f"{second.here}={second.there}" not in _arguments(device)
    assert first.trains() and device.engine() == engine
    assert "Nothing had to be changed." in first.ddlp("deploy", "--name", "csd0")
    second.deploy()
    assert second.trains()
    first.ddlp("deploy", "--name", "csd0", "--uninstall", "--all")
    assert not device.home.exists() and not list(device.spool.iterdir())


def test_what_a_second_host_can_t_have_is_said_before_anything_is_changed(device: Device, hosts: tuple[Host, Host]) -> None:
    _, second = hosts
    before, engine = (device.home / "engine.json").read_text(), device.engine()
    told = second.deploy("--spool", str(device.spool / "other"), "--listen-port", "1", status=1)
    assert f"the engine's spool is {device.spool}, not {device.spool}/other" in told and f"Give --spool {device.spool}" in told
    assert f"the engine listens on port {device.port}, not 1" in told and f"Give --listen-port {device.port}" in told
    assert (device.home / "engine.json").read_text() == before and device.engine() == engine
    assert len(list((device.home / "keys" / "clients").iterdir())) == 2


def test_settings_with_which_the_engine_does_not_start_are_taken_back(device: Device, hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    before = (device.home / "engine.json").read_text()
    told = second.deploy("--cpus", "4095", status=1)
    assert "does not start" in told and "runs again; nothing is lost" in told
    assert (device.home / "engine.json").read_text() == before and first.trains()
    second.deploy()
    assert second.trains()


def test_settings_are_read_as_they_were_written() -> None:
    one = Settings("tcp://[::]:7711", "/a b", "/keys", (("/x=y", "/z"), ("/ü", "/b")), {"--workers": "2", "--cpus": "1,2"})
    assert Settings.parse(one.text) == one and one.environment == "" and one.reads == ["/z", "/b"]
    roots = (("s3://bucket/a=b/", "s3://bucket/a=b/"), ("/x", "/x"), ("https://server:8443/d/", "https://server:8443/d/"))
    urls = Settings("tcp://[::]:7711", "/a b", "/keys", roots, {"--environment": "/etc/secrets"})
    assert Settings.parse(urls.text) == urls and urls.reads == ["/x", "/etc/secrets"]
    assert '"--root", "s3://bucket/a=b/"' in urls.text
    for text in (None, "", "{}", "[]", '{"arguments": ["--listen"]}', one.text.replace("7711", "x"), "{"):
        assert Settings.parse(text) is None
