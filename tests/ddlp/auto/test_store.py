"""The stored measurements, in real files: whatever is wrong with them is one line, and neither an error nor a wait."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from pathlib import Path

import pytest

from ddlp import cli
from ddlp.auto import store as stores
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.auto.store import Entry, Key, Store
from tests.at_once import at_once

KEY = Key("photos, 900 samples #1f", "Resize #2f", "256", "", "8 x AMD EPYC #3f", "csd0 #4f")
OTHER = replace(KEY, batch_size="128")
MEASURED = Measured(0.1, 8.25, 0.9, 7.5, 1e9, 0.01, (OffloadPath("csd0", alone_batches_per_s=2.5, bytes_per_batch=38_535_168),))
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache/ddlp/measured.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    """A store with one entry."""
    assert Store(path).put(KEY, MEASURED)
    return path


def sql(path: Path, *commands: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for command in commands:
            rows = connection.execute(command).fetchall()
        connection.commit()
    return rows


def silent(path: Path) -> None:
    """It can't be used: nothing is found or kept, and one line says so."""
    store = Store(path)
    assert store.get(KEY) is None and store.entries() == ()
    assert not store.put(KEY, MEASURED) and store.forget() == 0
    assert str(path) in store.note and "\n" not in store.note


# -- what it is for ----------------------------------------------------------------------------------------------------


def test_the_second_run_finds_what_the_first_one_measured(path):
    store = Store(path, clock=lambda: 1.75e9)
    assert store.get(KEY) is None and store.entries() == () and store.forget() == 0
    assert not path.parent.exists(), "reading alone makes nothing"
    assert store.put(KEY, MEASURED)
    assert [one.name for one in path.parent.iterdir()] == [path.name] and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again = Store(path)
    assert again.get(KEY) == MEASURED
    assert again.entries() == (Entry(KEY.id, 1.75e9, KEY, MEASURED),)
    assert (store.note, again.note) == ("", "")


@pytest.mark.parametrize("name", [one.name for one in fields(Key)])
def test_another_thing_has_other_figures(filled, name):
    other = replace(KEY, **{name: getattr(KEY, name) + "x"})
    assert Store(filled).get(other) is None
    assert Store(filled).put(other, Measured(step_s=2.0))
    assert Store(filled).get(KEY) == MEASURED and Store(filled).get(other) == Measured(step_s=2.0)


def test_any_texts_are_keys(path):
    odd = Key("\udc80\0", "\n" * 5000, "", "'; DROP TABLE measured", "é", '"')
    assert Store(path).put(odd, MEASURED) and Store(path).get(odd) == MEASURED
    assert Store(path).entries()[0].key == odd


def test_newer_figures_take_the_place_of_older_ones(filled):
    assert Store(filled).put(OTHER, MEASURED) and Store(filled).put(KEY, Measured(step_s=2.0))
    assert Store(filled).get(KEY) == Measured(step_s=2.0)
    assert [entry.key for entry in Store(filled).entries()] == [KEY, OTHER]


def test_the_newest_are_kept_whatever_the_clock_says(path, monkeypatch):
    monkeypatch.setattr(stores, "_MOST", 5)
    keys = [replace(KEY, batch_size=str(size)) for size in range(12)]
    for when, key in enumerate(keys):
        assert Store(path, clock=lambda when=when: 1e9 - when).put(key, MEASURED)
    assert [entry.key for entry in Store(path).entries()] == keys[:-6:-1]


def test_it_is_forgotten_one_by_one_or_whole(filled):
    store = Store(filled)
    assert store.put(OTHER, MEASURED)
    assert store.forget("nothing") == 0 and store.forget(OTHER.id) == 1
    assert store.get(OTHER) is None and store.get(KEY) == MEASURED
    assert store.forget() == 1 and store.entries() == () and store.note == ""


def test_it_lies_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Store().path == tmp_path / "ddlp/measured.sqlite"


def test_without_a_home_or_sqlite_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "cache_directory", lambda: None)
    homeless = Store()
    assert homeless.get(KEY) is None and not homeless.put(KEY, MEASURED) and homeless.forget() == 0
    assert homeless.note == "ddlp's stored measurements can't be used: there is no home directory"
    # A Python that was built without sqlite3 has no _sqlite3.
    code = (
        "import sys; sys.modules['_sqlite3'] = None\n"
        "from ddlp.auto.store import Key, Store\nfrom ddlp.auto.measured import Measured\n"
        f"key, store = Key(*'abcdef'), Store({str(tmp_path / 'x.sqlite')!r})\n"
        "print(store.put(key, Measured()), store.get(key), store.entries(), store.note)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False None () ddlp's") and done.stdout.endswith("there is no sqlite3 in this Python\n")


# -- damage ------------------------------------------------------------------------------------------------------------


def replaced(path: Path) -> None:
    """Damage is found, told once, and a new store takes the file's place."""
    assert not list(path.parent.glob("*-*")), "what belonged to the old file is left"
    store = Store(path)
    assert store.put(KEY, MEASURED) and store.get(KEY) == MEASURED and store.note == ""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a store with 300 entries."""
    path = tmp_path_factory.mktemp("many") / "measured.sqlite"
    assert all(Store(path).put(replace(KEY, batch_size=str(size)), MEASURED) for size in range(300))
    return path.read_bytes()


NOISE = random.Random(1).randbytes(20_000)
DAMAGES = {
    "text": lambda data: b"what a user wrote there\n" * 500,
    "zeros": lambda data: bytes(8192),
    "half": lambda data: data[: len(data) // 2],
    "the first page is noise": lambda data: NOISE[:4096] + data[4096:],
    "the table's page is noise": lambda data: data[:4096] + NOISE[:4096] + data[8192:],
}


@pytest.mark.parametrize("operation", ["get", "put", "entries", "forget"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_replaced(filled, many, kind, operation):
    filled.write_bytes(DAMAGES[kind](many))
    Path(f"{filled}-journal").write_bytes(b"")
    store = Store(filled)
    arguments = {"get": (KEY,), "put": (KEY, MEASURED)}.get(operation, ())
    found = getattr(store, operation)(*arguments)
    assert "\n" not in store.note and found in (True, None, (), 0), "nothing of it was used"
    assert store.note == f"ddlp's stored measurements in {filled} were damaged ({store.note.partition('(')[2]}"
    assert store.note.endswith(") and have been removed")
    if operation == "put":
        assert store.get(KEY) == MEASURED and len(store.entries()) == 1
    else:
        assert not filled.exists()
    replaced(filled)


@pytest.mark.parametrize("seed", range(12))
def test_bytes_changed_anywhere_are_no_error(filled, many, seed):
    rng = random.Random(seed)
    data = bytearray(many)
    for _ in range(rng.choice((1, 10, 1000))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    filled.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
    store = Store(filled)
    store.get(KEY)
    assert all(isinstance(entry.measured, Measured) for entry in store.entries())
    store.put(KEY, MEASURED)
    store.forget()
    assert "\n" not in store.note


@pytest.mark.parametrize(
    "commands",
    [
        ("DROP TABLE measured",),
        ("ALTER TABLE measured RENAME COLUMN key TO keys",),
        ("CREATE TABLE more (a)",),
        ("CREATE TRIGGER t AFTER INSERT ON measured BEGIN DELETE FROM measured; END",),
        ("PRAGMA user_version = 0",),
        ("PRAGMA user_version = -1",),
    ],
)  # fmt: skip
def test_other_tables_are_damage(filled, commands):
    sql(filled, *commands)
    store = Store(filled)
    assert store.get(KEY) is None and "were damaged (it has other tables)" in store.note
    replaced(filled)


def test_an_empty_file_is_a_store(path):
    path.parent.mkdir(parents=True)
    path.touch()
    store = Store(path)
    assert store.get(KEY) is None and store.entries() == () and store.forget() == 0 and path.stat().st_size == 0
    replaced(path)
    assert store.note == ""


VALUES = ("NULL", "-1e300", "x'00ff'", "CAST(x'ff' AS TEXT)", "'[[1]]'")
WRONG = [(name, value) for name in ("id", "measured_at_s", "key", "figures") for value in VALUES]


@pytest.mark.parametrize("name, value", WRONG)
def test_a_row_that_does_not_fit_is_removed_and_the_others_stay(filled, name, value):
    assert Store(filled).put(OTHER, MEASURED)
    sql(filled, f"UPDATE measured SET {name} = {value} WHERE id = '{KEY.id}'")
    store = Store(filled)
    assert store.get(KEY) is None and store.get(OTHER) == MEASURED
    assert [entry.key for entry in store.entries()] == [OTHER] and store.note == ""
    assert sql(filled, "SELECT count(*) FROM measured") == [(1,)]


def test_figures_of_another_kind_are_removed(filled):
    deep = "[" * 200_000
    sql(filled, f"UPDATE measured SET figures = '{deep}'")
    assert Store(filled).get(KEY) is None and sql(filled, "SELECT count(*) FROM measured") == [(0,)]


def test_what_a_newer_ddlp_has_written_stays(filled):
    sql(filled, "ALTER TABLE measured ADD COLUMN more TEXT", "PRAGMA user_version = 2")
    before = filled.read_bytes()
    silent(filled)
    assert filled.read_bytes() == before
    store = Store(filled)
    store.get(KEY)
    assert store.note.endswith("can't be used: a newer ddlp has written them. Update this one, or remove the file")


# -- places that can't be used -----------------------------------------------------------------------------------------


def test_something_else_in_its_place_stays(path):
    path.mkdir(parents=True)
    (path / "precious").touch()
    silent(path)
    assert (path / "precious").exists()


def test_a_fifo_in_its_place_keeps_nobody_waiting(path):
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    silent(path)
    store = Store(path)
    assert store.get(KEY) is None and store.note.endswith("can't be used: it is no file"), "who may only read it would wait"


@contextlib.contextmanager
def mounted(directory: Path, *options: str) -> Iterator[None]:
    done = subprocess.run(["mount", *options, str(directory)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    with mounted(directory, "--bind", str(directory)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
        yield


@ROOT
def test_a_read_only_store_is_read(filled):
    sql(filled, "INSERT INTO measured VALUES ('unfit', 1, '', '')")
    with read_only(filled.parent):
        with pytest.raises(OSError) as error:
            (filled.parent / "x").touch()
        assert error.value.errno == errno.EROFS
        store = Store(filled)
        assert store.get(KEY) == MEASURED and store.note == ""
        assert [entry.key for entry in store.entries()] == [KEY]
        assert not store.put(OTHER, MEASURED) and store.forget() == 0
        assert store.note == f"ddlp's stored measurements in {filled} can't be used: attempt to write a readonly database"
    assert Store(filled).get(KEY) == MEASURED


@ROOT
def test_a_full_file_system(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    with mounted(full, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        store = Store(full / "measured.sqlite")
        assert store.put(KEY, MEASURED)
        with contextlib.suppress(OSError), (full / "rest").open("wb", 0) as rest:
            while True:
                rest.write(bytes(4096))
        kept = [store.put(replace(KEY, batch_size=str(size)), MEASURED) for size in range(100)]
        assert not all(kept) and "can't be used: " in store.note and "full" in store.note
        assert store.get(KEY) == MEASURED


# -- at once -----------------------------------------------------------------------------------------------------------

CHILD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"BEGIN {sys.argv[2]}")
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked(path: Path, how: str) -> Iterator[None]:
    """Another process holds a lock."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        yield
    finally:
        child.communicate(timeout=300)


def test_a_store_that_another_process_holds(filled):
    with locked(filled, "EXCLUSIVE"):
        silent(filled)
        store = Store(filled)
        store.put(KEY, MEASURED)
        assert store.note == f"ddlp's stored measurements in {filled} can't be used: database is locked"
    assert Store(filled).get(KEY) == MEASURED


def test_nothing_waits_longer_than_it_says(filled, monkeypatch):
    """Counted, not timed: how often it waits for a lock, and how long each time."""
    waits = []
    connect = sqlite3.connect

    def counted(path, timeout, **more):
        waits.append(timeout)
        return connect(path, timeout, **more)

    monkeypatch.setattr(sqlite3, "connect", counted)
    with locked(filled, "EXCLUSIVE"):
        for call in (lambda: Store(filled).get(KEY), lambda: Store(filled).put(KEY, MEASURED), Store(filled).entries):
            waits.clear()
            assert not call()
            assert sum(waits) * 3 <= 0.2 and len(waits) == 1


def test_a_store_that_another_process_is_about_to_write_is_read(filled):
    with locked(filled, "IMMEDIATE"):
        store = Store(filled)
        assert store.get(KEY) == MEASURED and store.note == ""
        assert not store.put(OTHER, MEASURED) and "is locked" in store.note


WRITER = """
import sys
from ddlp.auto.measured import Measured
from ddlp.auto.store import Key, Store
_, path, name = sys.argv
print(flush=True)
sys.stdin.readline()
for number in range(150):
    key, store = Key(name, "", str(number), "", "", ""), Store(path)
    if store.put(key, Measured(step_s=1 + number)):
        print(number)
    elif "locked" not in store.note:
        sys.exit(store.note)
    found = store.get(key)
    assert found is None or found == Measured(step_s=1 + number), found
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_two_processes_write_at_once(path, damaged):
    """From nothing, or from a damaged file that both of them find: each is told the truth of what was kept."""
    if damaged:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"noise" * 1000)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in "ab"
    ]  # fmt: skip
    for one in started:
        assert one.stdout is not None and one.stdout.readline()
    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.communicate(timeout=300) for one in started]
    assert [error for _, error in said] == ["", ""] and [one.returncode for one in started] == [0, 0]
    kept = {(name, number) for name, (out, _) in zip("ab", said, strict=True) for number in out.split()}
    found = {(entry.key.dataset, entry.key.batch_size): entry.measured.step_s for entry in Store(path).entries()}
    if damaged:  # who finds the damage may take the first ones along
        kept = {(name, out.split()[-1]) for name, (out, _) in zip("ab", said, strict=True)}
    assert kept <= found.keys() and {name for name, _ in found} == {"a", "b"}
    assert all(step_s == 1 + int(number) for (_, number), step_s in found.items())
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_threads_share_one(path):
    store = Store(path)
    kept = at_once(lambda number: store.put(replace(KEY, batch_size=str(number)), MEASURED), 8)
    assert len(store.entries()) == sum(kept) > 0


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return Store(clock=lambda: 1.75e9)


def test_show_lists_them(cache, capsys):
    assert cli.main(["plan", "--show"]) == 0
    assert capsys.readouterr() == ("No measurements are stored.\n", "")
    assert cache.put(KEY, MEASURED) and cache.put(replace(OTHER, model="resnet50"), Measured(host_cpu_s_per_batch=0.5))
    assert cli.main(["plan", "--show"]) == 0
    out, err = capsys.readouterr()
    head, *rows = [line.split("  ") for line in out.splitlines()]
    assert [cell.strip() for cell in head if cell] == [
        "ID", "when", "data set", "pipeline", "batch", "model", "host", "sources", "step s", "host batches/s",
        "host CPU s/batch", "sources batches/s",
    ]  # fmt: skip
    first, second = [[cell.strip() for cell in row if cell] for row in rows]
    assert first[1:] == ["2025-06-15 15:06", "photos, 900 samples", "Resize", "128", "resnet50", "8 x AMD EPYC", "csd0", "0.5"]
    assert second == [
        KEY.id, "2025-06-15 15:06", "photos, 900 samples", "Resize", "256", "8 x AMD EPYC", "csd0", "0.1", "8.25", "0.9",
        "csd0 by stream (uint8, whole pipeline) 2.5",
    ]  # fmt: skip
    assert err == ""


def test_a_column_without_anything_is_left_out(cache, capsys):
    assert cache.put(KEY, Measured(step_s=1.0)) and cli.main(["plan", "--show"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "model" not in head and "batches/s" not in head and head.endswith("step s")


def test_show_as_json(cache, capsys):
    assert cache.put(KEY, MEASURED) and cli.main(["plan", "--show", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["id"], entry["measured_at"]) == (KEY.id, "2025-06-15T15:06:40+00:00")
    assert Key(**entry["key"]) == KEY and Measured.from_json(json.dumps(entry["measured"])) == MEASURED
    cache.forget()
    assert cli.main(["plan", "--show", "--json"]) == 0 and capsys.readouterr() == ("[]\n", "")


def test_a_terminal_obeys_none_of_them(cache, capsys):
    assert cache.put(Key(*["\x1b[2J\n\udc80"] * len(astuple(KEY))), Measured(paths=(OffloadPath("a\x1b[2J"),)))
    assert cli.main(["plan", "--show"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 2 and "\x1b" not in out and r"\x1b[2J\n\udc80" in out


def test_forget_some_or_all(cache, capsys):
    keys = [replace(KEY, batch_size=str(size)) for size in range(4)]
    assert all(cache.put(key, MEASURED) for key in keys)
    assert cli.main(["plan", "--forget", keys[0].id, keys[1].id]) == 0
    assert capsys.readouterr() == ("forgotten: 2\n", "")
    assert cli.main(["plan", "--forget", keys[1].id, keys[2].id]) == 1
    out, err = capsys.readouterr()
    assert out == "forgotten: 1\n"
    assert err == f"ddlp plan: no measurement was forgotten for {keys[1].id}: see ddlp plan --show\n"
    assert [entry.key for entry in cache.entries()] == keys[3:]
    for wrong in ([], [keys[3].id, "--all"]):
        assert cli.main(["plan", "--forget", *wrong]) == 2 and "--forget wants IDs" in capsys.readouterr().err
    assert cli.main(["plan", "--forget", "--all"]) == 0 and capsys.readouterr() == ("forgotten: 1\n", "")
    assert cache.entries() == ()
    assert cli.main(["plan", "--forget", "--all"]) == 0 and capsys.readouterr() == ("forgotten: 0\n", "")


def test_what_is_wrong_is_one_line(cache, capsys):
    assert cache.put(KEY, MEASURED) and cache.path is not None
    with locked(cache.path, "EXCLUSIVE"):
        for arguments, status in ((["--show"], 0), (["--forget", "--all"], 1), (["--forget", KEY.id], 1)):
            assert cli.main(["plan", *arguments]) == status
            err = capsys.readouterr().err.splitlines()
            assert err[-1] == f"ddlp plan: ddlp's stored measurements in {cache.path} can't be used: database is locked"
    shutil.copy(__file__, cache.path)
    assert cli.main(["plan", "--show"]) == 0
    out, err = capsys.readouterr()
    assert out == "No measurements are stored.\n" and "were damaged" in err and err.count("\n") == 1
