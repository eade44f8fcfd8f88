"""Measurements of earlier runs, in a file of the user's cache directory: the next run of the same starts with the decision.

The store is a help and never an error: if something is wrong with it, it gives nothing and keeps nothing, and says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from csd_engine.protocol.fields import number
from csd_engine.protocol.printable import printable
from ddlp.auto.measured import Measured
from ddlp.cache_directory import cache_directory
from ddlp.schema import Misfit, checked_fields

try:
    import sqlite3
except ImportError:  # Python can be built without it
    sqlite3 = None  # type: ignore[assignment]

__all__ = ["Entry", "Key", "Store"]

_T = TypeVar("_T")
_VERSION = 1  # of the file; raise it if the table, or the meaning of a figure, changes
_TABLE = "CREATE TABLE measured (id TEXT PRIMARY KEY, measured_at_s REAL, key TEXT, figures TEXT)"
_MOST = 1000  # entries: about 1 MB
_WAIT_S = 0.05  # for a lock of another process; a call waits for one at most three times
_time = number(0, 2.5e11)  # up to the year 9999


@dataclass(frozen=True)
class Key:
    """What was measured. Each is a text, of `ddlp.auto.fingerprints` for instance; ``model`` may be empty."""

    dataset: str
    pipeline: str
    batch_size: str
    model: str
    host: str
    sources: str

    def to_json(self) -> str:
        """Return the key as a text."""
        return json.dumps(asdict(self))

    @property
    def id(self) -> str:
        """12 hex digits that stand for all of the texts; a user names the entry by them."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A stored measurement. ``measured_at_s``: when it was stored, in seconds since 1970 (UTC)."""

    id: str
    measured_at_s: float
    key: Key
    measured: Measured


class _Unusable(Exception):
    """The file is not for us; the text says why."""


class Store:
    """The stored measurements. Several processes may use them at once.

    Each call opens the file and closes it, and waits at most 0.2 s for other processes. A damaged file is replaced by a new
    one, but one that a newer ddlp has written stays as it is. Entries that do not fit are removed, and so are all but the
    newest 1,000.

    Args:
        path: the file; None: ``measured.sqlite`` in `cache_directory`.
        clock: the time in seconds since 1970 (UTC).

    Attributes:
        note: the first thing that went wrong, in one line for the user; empty: nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, clock: Callable[[], float] = time.time) -> None:
        directory = cache_directory()
        if path is None and directory is not None:
            path = directory / "measured.sqlite"
        self.path = None if path is None else Path(path).absolute()
        self.note = ""
        self._clock = clock

    def get(self, key: Key) -> Measured | None:
        """Return the figures of this key; None if there are none."""
        return next((entry.measured for entry in self._read("WHERE id = ?", key.id)), None)

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries, the newest first."""
        return tuple(self._read(""))

    def put(self, key: Key, measured: Measured) -> bool:
        """Keep these figures, in the place of older ones of this key. False: they could not be kept."""
        row = (key.id, self._clock(), key.to_json(), measured.to_json())

        def insert(connection: sqlite3.Connection) -> bool:
            connection.execute("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?)", row)
            newest = "SELECT rowid FROM measured ORDER BY rowid DESC LIMIT ?"
            connection.execute(f"DELETE FROM measured WHERE rowid NOT IN ({newest})", (_MOST,))
            return True

        return self._transaction(insert, writes=True, makes=True) or False

    def forget(self, entry_id: str | None = None) -> int:
        """Remove an entry; None: all. Returns how many were removed."""
        where, values = ("", ()) if entry_id is None else (" WHERE id = ?", (entry_id,))
        return self._transaction(lambda c: c.execute(f"DELETE FROM measured{where}", values).rowcount, writes=True) or 0

    def _read(self, where: str, *values: str) -> list[Entry]:
        select = f"SELECT rowid, * FROM measured {where} ORDER BY rowid DESC"
        found, unfit = [], []
        for rowid, *row in self._transaction(lambda c: c.execute(select, values).fetchall()) or []:
            try:
                found.append(_entry(*row))
            except Misfit:
                unfit.append((rowid,))
        if unfit:
            self._transaction(lambda c: c.executemany("DELETE FROM measured WHERE rowid = ?", unfit), writes=True)
        return found

    def _transaction(self, work: Callable[[sqlite3.Connection], _T], *, writes: bool = False, makes: bool = False) -> _T | None:
        """Return what ``work`` returns; None if the file is missing or something is wrong. ``makes``: make a missing file."""
        if sqlite3 is None or self.path is None:
            self._tell("can't be used: there is no " + ("home directory" if self.path is None else "sqlite3 in this Python"))
            return None
        try:
            for _ in range(2):
                there = _there(self.path, makes)
                if there is None and not makes:
                    return None
                try:
                    with contextlib.closing(sqlite3.connect(self.path, _WAIT_S, isolation_level=None)) as connection:
                        return _run(connection, work, writes, makes)
                except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: of a message that quotes the file
                    if type(error) not in (sqlite3.DatabaseError, UnicodeDecodeError):  # subclasses: the file may be sound
                        raise
                    _remove(self.path, there)
                    self._tell(f"were damaged ({error}) and have been removed")
        except (OSError, sqlite3.Error, _Unusable) as error:
            self._tell(f"can't be used: {getattr(error, 'strerror', None) or error}")
        return None

    def _tell(self, what: str) -> None:
        where = "" if self.path is None else f" in {printable(str(self.path))}"
        self.note = self.note or f"ddlp's stored measurements{where} {printable(what)}"


def _there(path: Path, makes: bool) -> os.stat_result | None:
    """Return what the file is; None: there is none. ``makes``: then make its directory. Raises OSError, _Unusable."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if makes:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return None
    if not stat.S_ISREG(found.st_mode):  # a FIFO, say, would keep us waiting
        raise _Unusable("it is no file")
    return found


def _remove(path: Path, damaged: os.stat_result | None) -> None:
    """Remove the damaged file, unless another process has replaced it by now. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if damaged is not None and _identity(damaged) == _identity(path.stat()):
            for rest in ("-journal", "-wal", "-shm"):  # the new file must not be mended by what belongs to the old one
                Path(f"{path}{rest}").unlink(missing_ok=True)
            path.unlink()


def _identity(file: os.stat_result) -> tuple[int, ...]:
    return (file.st_dev, file.st_ino, file.st_ctime_ns, file.st_size)  # the number alone may be a new file's by now


def _run(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T], writes: bool, makes: bool) -> _T | None:
    """Run ``work`` in a transaction; None: the file is empty. Raises sqlite3's errors, and _Unusable."""
    connection.text_factory = lambda text: text.decode(errors="replace")
    connection.execute("PRAGMA synchronous = OFF")  # a busy disk would take seconds; without power the file may be lost
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = [table for (table,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    if version > _VERSION:
        raise _Unusable("a newer ddlp has written them. Update this one, or remove the file")
    if (version, tables) == (0, []):
        if not makes:
            return None
        connection.execute(_TABLE)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    elif (version, tables) != (_VERSION, [_TABLE]):
        raise sqlite3.DatabaseError("it has other tables")
    result = work(connection)
    connection.execute("COMMIT")
    return result


def _entry(entry_id: Any, measured_at_s: Any, key: Any, figures: Any) -> Entry:
    """Return a row as an entry. Raises Misfit."""
    if not (isinstance(key, str) and isinstance(figures, str)):
        raise Misfit("key and figures must be texts")
    try:
        found = Key(**checked_fields("a key", json.loads(key), dict.fromkeys((one.name for one in fields(Key)), _text), {}))
        measured_at_s = _time(measured_at_s)
    except (ValueError, RecursionError) as error:
        raise Misfit(f"its key or time is damaged: {error}") from None
    if entry_id != found.id:
        raise Misfit("its id is that of another key")
    return Entry(found.id, measured_at_s, found, Measured.from_json(figures))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value
