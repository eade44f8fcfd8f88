"""Which hosts may connect and what each may read: the files of a key directory decide."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_engine.errors import EngineError
from csd_engine.machine.directory import Directory
from csd_engine.protocol import keys
from csd_engine.protocol.keys import AllowList, allowed_clients, load_pair, load_public, make_keys, make_pair, open_clients


def listed(directory: Path, name: str, roots: str | bytes | None = None) -> bytes:
    clients = directory / "clients"
    public = make_pair(clients, name)
    if roots is not None:
        clients.joinpath(f"{name}.roots").write_bytes(roots if isinstance(roots, bytes) else roots.encode())
    return load_public(public)


def test_without_roots_each_may_read_all(tmp_path: Path) -> None:
    first, second = listed(tmp_path, "a"), listed(tmp_path, "b")
    assert allowed_clients(tmp_path) == {first: None, second: None}
    allowed = AllowList(tmp_path)
    assert first in allowed and b"another" not in allowed
    assert allowed.roots(first) is None and allowed.roots(b"another") is None


def test_with_one_hosts_roots_each_may_read_its_own(tmp_path: Path) -> None:
    first, second = listed(tmp_path, "a", '[["/host", "/device"], ["/b", "/c"]]'), listed(tmp_path, "b")
    assert allowed_clients(tmp_path) == {first: (("/host", "/device"), ("/b", "/c")), second: ()}
    allowed = AllowList(str(tmp_path))
    assert allowed.roots(first) == (("/host", "/device"), ("/b", "/c"))
    assert allowed.roots(second) == () and allowed.roots(b"another") == ()


@pytest.mark.parametrize(
    "text", ["", "{", "3", "null", '["ab", "abc"]', '[["a"]]', "[3]", '[["a", "b", "c"]]', b"\xff", "[" * 100_000]
)
def test_roots_that_make_no_sense_allow_nothing(tmp_path: Path, text: str | bytes) -> None:
    key, other = listed(tmp_path, "a", text), listed(tmp_path, "b", "[]")
    assert allowed_clients(tmp_path) == {key: (), other: ()}
    (tmp_path / "clients" / "b.roots").unlink()
    assert allowed_clients(tmp_path) == {key: (), other: ()}, "the other hosts may read no more than they list"


def test_roots_that_cannot_be_read_allow_nothing(tmp_path: Path) -> None:
    key, other = listed(tmp_path, "a"), listed(tmp_path, "b")
    (tmp_path / "clients" / "a.roots").mkdir()
    assert allowed_clients(tmp_path) == {key: (), other: ()}


def test_where_descriptors_are_short_for_roots_they_are_not_known(tmp_path: Path, monkeypatch) -> None:
    listed(tmp_path, "a", "[]")

    read = keys.trusted_content

    def short(name: str, *directory: Directory) -> bytes:
        if name.endswith(".roots"):
            raise OSError(errno.EMFILE, "too many", name)
        return read(name, *directory)

    monkeypatch.setattr(keys, "trusted_content", short)
    with pytest.raises(OSError, match="a.roots"):
        allowed_clients(tmp_path)


def test_what_is_no_key_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "a.key").write_text("no key")
    (tmp_path / "clients" / "b.key").mkdir()
    (tmp_path / "clients" / "c.key").symlink_to("nowhere")
    key = listed(tmp_path, "d")
    assert allowed_clients(tmp_path) == {key: None}
    assert allowed_clients(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_where_descriptors_or_memory_are_short_the_last_keys_hold(tmp_path: Path, number: int, monkeypatch) -> None:
    key = listed(tmp_path, "a")
    allowed = AllowList(tmp_path)

    def short(name: str, *_: object) -> bytes:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr(keys, "trusted_content", short)
    (tmp_path / "clients" / "a.key").touch()
    os.utime(tmp_path / "clients" / "a.key", ns=(1, 1))
    allowed.refresh()
    assert (key in allowed) is (number != errno.EIO)
    if number != errno.EIO:
        with pytest.raises(OSError, match="a.key"):
            allowed_clients(tmp_path)
        monkeypatch.undo()
        (tmp_path / "clients" / "a.key").write_text("no key any more")
        allowed.refresh()
        assert key not in allowed, "read once the files can be read again"


def test_where_the_keys_cannot_be_read_at_the_start_nobody_is_let_in_until_they_can(tmp_path: Path, monkeypatch) -> None:
    def failing(path: Path) -> None:
        raise OSError(errno.EMFILE, "too many")

    key = listed(tmp_path, "a")
    monkeypatch.setattr(os, "scandir", failing)
    allowed = AllowList(tmp_path)
    assert key not in allowed
    monkeypatch.undo()
    allowed.refresh()
    assert key in allowed


def test_the_files_are_read_again_only_where_one_has_changed(tmp_path: Path, monkeypatch) -> None:
    first = listed(tmp_path, "a")
    read, reads = keys.allowed_clients, []

    def counted(directory):
        reads.append(directory)
        return read(directory)

    monkeypatch.setattr(keys, "allowed_clients", counted)
    assert not AllowList(tmp_path / "nowhere").keys and not reads
    allowed = AllowList(tmp_path)
    allowed.refresh()
    (tmp_path / "clients" / "notes.txt").write_text("no key")
    allowed.refresh()
    assert reads == [tmp_path] and set(allowed.keys) == {first}
    second = listed(tmp_path, "b")
    allowed.refresh()
    assert set(allowed.keys) == {first, second} and len(reads) == 2
    (tmp_path / "clients" / "b.roots").write_text('[["/a", "/b"]]')
    allowed.refresh()
    assert allowed.roots(second) == (("/a", "/b"),) and len(reads) == 3
    status = (tmp_path / "clients" / "b.roots").stat()
    (tmp_path / "clients" / "b.roots").write_text('[["/a", "/c"]]')
    os.utime(tmp_path / "clients" / "b.roots", ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # the same size as before
    allowed.refresh()
    assert allowed.roots(second) == (("/a", "/c"),)
    (tmp_path / "clients" / "a.key").unlink()
    allowed.refresh()
    assert set(allowed.keys) == {second}
    (tmp_path / "clients").rename(tmp_path / "elsewhere")
    allowed.refresh()
    assert not allowed.keys, "without the directory no host may connect"


def test_a_file_that_goes_while_it_is_looked_at_is_gone(tmp_path: Path, monkeypatch) -> None:
    scandir = os.scandir

    @contextlib.contextmanager
    def by_name(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            yield sorted(entries, key=lambda entry: entry.name)

    monkeypatch.setattr(os, "scandir", by_name)
    key = listed(tmp_path, "a")
    allowed = AllowList(tmp_path)
    (tmp_path / "clients" / "a.roots").symlink_to("nowhere")  # listed, but stat fails
    allowed.refresh()
    assert key in allowed and allowed.roots(key) is None
    other = listed(tmp_path, "b")
    allowed.refresh()
    assert other in allowed, "the files after it are looked at too"

    def failing(path):
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(os, "scandir", failing)
    allowed.refresh()
    assert key in allowed


def test_a_key_file_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    public = make_pair(tmp_path / "new" / "keys", "host")
    for load in (load_public, load_pair):
        with pytest.raises(EngineError, match=r"key file .*/missing cannot be used: .*See --make-keys"):
            load(tmp_path / "missing")
    with pytest.raises(EngineError, match=rf"key file {public} holds no secret key. Give the .key_secret file."):
        load_pair(public)
    pair = load_pair(f"{public}_secret")
    assert (len(pair.public), len(pair.secret)) == (40, 40) and pair.public == load_public(f"{public}_secret")
    with pytest.raises(EngineError, match="host.key_secret exists: keys are never overwritten. Choose another directory"):
        make_pair(tmp_path / "new" / "keys", "host")
    assert load_public(make_pair(tmp_path / "new" / "keys", "server")) != pair.public, "a directory holds several pairs"


def _given_away(path: Path) -> None:
    os.chown(path, 12345, -1)


UNSAFE = (
    pytest.param(lambda path: path.chmod(0o777 if path.is_dir() else 0o666), "may write to it", id="others write"),
    pytest.param(lambda path: path.chmod(0o770 if path.is_dir() else 0o664), "may write to it", id="a group writes"),
    pytest.param(
        _given_away, "another user", id="another user's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    ),
)


@pytest.mark.parametrize(("spoil", "why"), UNSAFE)
@pytest.mark.parametrize("what", ["clients", "clients/host.key", "clients/host.roots", "server.key_secret", "server.key"])
def test_what_another_user_may_have_written_is_not_trusted(tmp_path, what, spoil, why, caplog):
    keys = make_keys(tmp_path / "keys")
    (keys / "clients" / "host.roots").write_text('[["/a", "/b"]]')
    allowed = AllowList(keys)
    (key,) = allowed.keys
    assert allowed.roots(key) == (("/a", "/b"),)
    if what.startswith("server") and spoil is not _given_away:
        spoil(keys / what)
        assert load_public(keys / what)  # nobody else may enter its directory
    keys.chmod(0o755)
    spoil(keys / what)
    if what.startswith("server"):
        with pytest.raises(EngineError, match=why):
            load_public(keys / what)
        return
    allowed.refresh()  # while it runs
    for one in (allowed, AllowList(keys)):
        if what == "clients/host.roots":
            assert one.roots(key) == ()
        else:
            assert not one.keys
    if what == "clients":
        with pytest.raises(EngineError, match=why):
            open_clients(keys)
    assert why in caplog.text or what.endswith(".roots")
