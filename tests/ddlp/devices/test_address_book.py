"""The address book on disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ddlp import DDLPLoader, Device
from ddlp.devices import address_book as book
from ddlp.errors import DDLPError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def record(name: str = "csd0") -> book.DeviceRecord:
    return book.DeviceRecord(
        name=name,
        destination="user@board",
        ssh_options=("-p", "2222"),
        address="tcp://10.0.0.2:7711",
        roots=(("/data", "/mnt/data"), ("/more", "/more")),
        host_spool=None,
        device_spool="/mnt/spool",
        home="/home/user/.ddlp/csd0",
        python="/usr/bin/python3",
        build="0123",
        machine="armv7l",
        versions={"pillow": "9.4.0"},
        operators={"ab": "my_ops.py"},
    )


def test_a_record_comes_back_as_it_was_saved(home: Path) -> None:
    book.save(record())
    book.save(record("csd1"))
    assert book.load("csd0") == record() and book.names() == ("csd0", "csd1")
    assert book.directory("csd0") == home / "devices" / "csd0"
    assert book.directory("csd0").stat().st_mode & 0o777 == 0o700
    book.save(dataclasses.replace(record(), build="4567"))
    assert book.load("csd0").build == "4567"
    assert [path.name for path in book.directory("csd0").iterdir()] == ["device.json"]
    book.remove("csd0")
    book.remove("csd0")
    assert book.names() == ("csd1",)


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DDLP_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert book.ddlp_home() == tmp_path / "ddlp"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert book.ddlp_home() == tmp_path / ".config" / "ddlp"


def test_an_unknown_device_is_named_with_those_that_are_known() -> None:
    with pytest.raises(book.UnknownDevice, match="none yet"):
        book.load("csd0")
    book.save(record())
    with pytest.raises(book.UnknownDevice, match=r"'csd9'.*known: csd0.*ddlp deploy user@host --name csd9"):
        book.load("csd9")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65, "tcp://x"])
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(DDLPError, match="can't be a device's name"):
        book.directory(name)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": "csd0"}', '{"roots": 1, "ssh_options": []}'])
def test_a_damaged_record_says_what_to_do(damage: str) -> None:
    book.save(record())
    (book.directory("csd0") / "device.json").write_text(damage)
    with pytest.raises(DDLPError, match="ddlp deploy"):
        book.load("csd0")


def test_a_record_of_a_newer_version_can_be_read() -> None:
    book.save(record())
    path = book.directory("csd0") / "device.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "green"}))
    assert book.load("csd0") == record()


def test_a_device_is_reached_by_its_name(home: Path) -> None:
    book.save(dataclasses.replace(record(), host_spool="/mnt/board/spool"))
    device = Device.at("csd0")
    assert (device.address, device.keys, device.spool) == ("tcp://10.0.0.2:7711", home / "devices" / "csd0", "/mnt/board/spool")
    assert device.label == "csd0" and Device.at("tcp://x:1").label == "tcp://x:1"
    book.save(dataclasses.replace(record(), address=""))
    with pytest.raises(DDLPError, match="was not finished"):
        Device.at("csd0")


@pytest.mark.parametrize("which", ["nobody", "host:7711", "http://x", ""])
def test_what_is_no_device_is_said_when_a_loader_is_made(which: str) -> None:
    with pytest.raises(ValueError, match=r"no device is called 'nobody'|expected the name of a device"):
        DDLPLoader([1], csd=which, strategy="csd")
