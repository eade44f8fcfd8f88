"""What `ddlp deploy` makes of its options before it connects."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path

import pytest

from csd_engine.__main__ import make_parser
from csd_engine.errors import EngineError
from ddlp import cli
from ddlp.deploy import address, advice, command, place
from ddlp.devices import address_book as book
from ddlp.errors import DDLPError
from tests.needs import need


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDLP_HOME", str(tmp_path))


def wanted(*given: str) -> command.Wanted:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(given)
    return command._wanted(options, command._before(options))


def test_the_engine_s_own_options_are_those_that_it_has() -> None:
    known = make_parser().format_help()
    assert all(f"{option} " in known for option in command.ENGINE_OPTIONS)


def test_defaults() -> None:
    record = wanted("user@board.lan", "--root", "/data/", "--spool", "/spool").record
    assert (record.name, record.destination, record.home) == ("board", "user@board.lan", "~/.ddlp/board")
    assert record.roots == (("/data", "/data"),) and record.host_spool is None and record.device_spool == "/spool"


def test_ssh_s_options_go_on_to_ssh() -> None:
    more = ("-p", "2222", "-F", "config", "-J", "gate", "-o", "A=b", "-o", "C=d")
    options = wanted("board", "--root", "/d", "--spool", "/s", *more).record.ssh_options
    assert options == ("-F", f"{Path.cwd()}/config", "-p", "2222", "-J", "gate", "-o", "A=b", "-o", "C=d")


def test_what_was_given_before_holds() -> None:
    first = wanted("board", "--name", "csd0", "-p", "2222", "--root", "/a", "--root", "/b", "--host-root", "/x", "--host-root",
                   "/y", "--spool", "/s", "--host-spool", "/h", "--workers", "2", "--reserve-bytes", "10M")  # fmt: skip
    assert first.reserve_bytes == 10 << 20
    book.save(dataclasses.replace(first.record, address="tcp://10.0.0.9:7711"))
    again = wanted("--name", "csd0")
    assert again.record == book.load("csd0")
    assert again.reserve_bytes == 10 << 20 and again.changes == ()
    unshared = wanted("--name", "csd0", "--host-spool", "none")
    assert (unshared.record.host_spool, unshared.changes) == (None, ()) and again.record.host_spool == "/h"
    changed = wanted("--name", "csd0", "--workers", "1", "--root", "/c", "--spool", "/t")
    assert changed.record.engine_options == ("--workers", "1", "--reserve-bytes", "10M")
    assert changed.record.roots == (("/c", "/c"),) and changed.record.host_spool is None
    assert changed.record.ssh_options == ("-p", "2222")
    assert changed.changes == ("--root", "--spool", "--workers")
    here = ("--root", "/b", "--host-root", "/z", "--root", "/a/", "--host-root", "/x")
    assert wanted("--name", "csd0", *here, "--spool", "/s/").changes == ()  # only this host's path of the spool changes


def test_a_cache_is_the_engines_own_option() -> None:
    record = wanted("board", "--name", "csd0", "--root", "/d", "--spool", "/s", "--cache", "/nvme/cache:200G").record
    assert record.engine_options == ("--cache", "/nvme/cache:200G")
    book.save(record)
    assert wanted("--name", "csd0", "--cache", "none").changes == ("--cache",)
    for wrong in ("cache", "cache:20G", "/a=b"):
        with pytest.raises(DDLPError, match="absolute paths"):
            wanted("--name", "csd0", "--cache", wrong)
    with pytest.raises(EngineError, match="'20Q' is no size"):
        wanted("--name", "csd0", "--cache", "/c:20Q")


def test_how_the_engine_is_reached_holds() -> None:
    """Whether or not the engine has answered there so far."""
    new = ("board", "--name", "csd0", "--root", "/d", "--spool", "/s")
    book.save(wanted(*new, "--listen-port", "7800", "--address", "10.0.0.9", "--python", "/opt/python").record)
    again = wanted("--name", "csd0").record
    assert address.engine_address(again) == "tcp://10.0.0.9:7800" and again.given_python == "/opt/python"
    book.save(dataclasses.replace(again, address="tcp://10.0.0.9:7800"))
    again = wanted("--name", "csd0", "--listen-port", "7900", "--python", "python3").record
    assert (address.engine_address(again), again.address, again.given_python) == ("tcp://10.0.0.9:7900", "", "python3")
    book.save(wanted("--name", "csd0", "--address", "tcp://gate:9000").record)
    again = wanted("--name", "csd0").record
    assert (address.engine_address(again), again.listen_port) == ("tcp://gate:9000", 7800)
    assert wanted("other", "--name", "csd0").record.given_address is None


def test_urls_are_the_same_on_both_sides() -> None:
    urls = ("--root", "s3://bucket/a=b", "--root", "/there", "--root", "https://server/d/", "--host-root", "/here")
    first = wanted("board", "--name", "csd0", *urls, "--spool", "/s", "--environment", "/etc/secrets").record
    pairs = ("s3://bucket/a=b/", "s3://bucket/a=b/"), ("/here", "/there"), ("https://server/d/", "https://server/d/")
    assert first.roots == pairs and first.directories == (("/here", "/there"),)
    assert first.urls == ("s3://bucket/a=b/", "https://server/d/") and first.options == {"--environment": "/etc/secrets"}
    book.save(first)
    assert book.load("csd0") == first == wanted("--name", "csd0").record
    assert wanted("--name", "csd0", "--environment", "none").changes == ("--environment",)
    assert wanted("--name", "csd0", "--root", "s3://bucket/a=b").changes == ("--root",)
    words = shlex.split(advice.other_root(first, ("/here", "/there"), "/new", "/there"))
    assert wanted(*words[2:]).record.roots == (pairs[0], ("/new", "/there"), pairs[2])
    assert wanted("board", "--root", "s3://bucket", "--spool", "/s").record.directories == ()


@pytest.mark.parametrize("host", ["192.168.1.5", "root@192.168.1.6", "root@fe80::1", "ssh://root@10.0.0.1:22", "42"])
def test_a_number_is_no_name(host: str) -> None:
    """Half of a subnet would get the same name."""
    with pytest.raises(DDLPError, match="--name csd0"):
        wanted(host, "--root", "/d", "--spool", "/s")
    assert wanted(host, "--name", "csd0", "--root", "/d", "--spool", "/s").record.destination == host


def test_a_damaged_record_is_written_anew_or_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    book.save(wanted("board", "--root", "/d", "--spool", "/s").record)
    path = book.directory("board") / "device.json"
    path.write_text("{")
    with pytest.raises(DDLPError, match="ddlp deploy user@host --name board --root DATA --spool SPOOL"):
        wanted("--name", "board")
    assert wanted("user@host", "--name", "board", "--root", "/d", "--spool", "/s").record.destination == "user@host"
    assert cli.main(["deploy", "--name", "board", "--uninstall", "--forget"]) == 0 and not path.exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "which device"),
        (("--name", "a b"), "can't be a device's name"),
        (("--name", "csd9"), "Give its user@host"),
        (("board",), "board needs --root DIR (its data) and --spool DIR (for batches)"),
        (("board", "--root", "/d"), "board needs --spool DIR"),
        (("board", "--root", "/d", "--host-root", "/a", "--host-root", "/b", "--spool", "/s"), "one --host-root for each"),
        (("board", "--host-root", "/a", "--spool", "/s"), "--host-root without --root"),
        (("board", "--root", "s3://b/", "--host-root", "s3://b/", "--spool", "/s"), "A URL has no --host-root: it is the same"),
        (("board", "--root", "/d", "--host-root", "s3://b/", "--spool", "/s"), "A URL has no --host-root"),
        (("board", "--root", "/d", "--root", "s3://b/", "--host-root", "/d", "--host-root", "/e"), "1 --root DIR and 2"),
        (("board", "--root", "ftp://server/", "--spool", "/s"), "is no URL of objects"),
        (("board", "--root", "s3://bucket/a b/", "--spool", "/s"), "a URL has no blanks"),
        (("board", "--root", "s3://b/", "--environment", "secrets", "--spool", "/s"), "absolute paths"),
        (("board", "--root", "d", "--spool", "/s"), "absolute paths"),
        (("board", "--root", "/d=e", "--spool", "/s"), "without '='"),
        (("board", "--root", "/d", "--spool", "/s", "--quota-bytes", "lots"), "does not take --quota-bytes lots"),
    ],
)
def test_what_can_t_be_is_said(given: tuple[str, ...], words: str) -> None:
    with pytest.raises(DDLPError, match=words.replace("(", r"\(").replace(")", r"\)")):
        wanted(*given)


@pytest.mark.parametrize("home", ["~/.ddlp/csd0", "/opt/ddlp/a b", "/mnt/nvme0/ü"])
def test_homes(home: str) -> None:
    assert place.check_home(home) == home


@pytest.mark.parametrize("home", ["", "ddlp", "/", "~", "~/", "/a/../b", "/a$HOME", "/a'b", "/a\nb", "~user/x", "/a%b"])
def test_homes_that_would_need_quoting(home: str) -> None:
    with pytest.raises(DDLPError, match="--home"):
        place.check_home(home)


def test_addresses() -> None:
    assert address.full_address("10.0.0.2", 7711) == "tcp://10.0.0.2:7711"
    assert address.full_address("fe80::1", 1) == "tcp://[fe80::1]:1"
    assert address.full_address("tcp://x:1", 7711) == "tcp://x:1"
    for without in ("tcp://x", "tcp://[fe80::1]"):
        with pytest.raises(DDLPError, match="ends in a port"):
            address.full_address(without, 7711)


def test_the_host_is_the_one_that_ssh_reaches() -> None:
    need("ssh")
    assert address.resolve_host("user@board", ("-F", "/dev/null", "-o", "HostName=10.1.2.3")) == "10.1.2.3"
    with pytest.raises(DDLPError, match="--address"):
        address.resolve_host("board", ("-o", "NoSuchOption=1"))
