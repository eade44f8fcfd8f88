"""A directory that several processes share until the last of them ends.

Each process holds a shared flock on the directory's `lock` file. The system releases it however the process ends. A process
that gets the lock exclusively is the only one left. It renames the directory before it removes it, so no process can join a
half-removed directory: one that has opened the old lock file sees that another file, or none, has that name now, and makes a
new directory.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Union

from csd_engine.errors import SpoolError
from csd_engine.machine.directory import distrusted
from csd_engine.machine.file_locks import fcntl
from csd_engine.service.spool import remove_tree

__all__ = ["Members"]

LOCK = "lock"
PathLike = Union[str, "os.PathLike[str]"]


class Members:
    """One process's membership in a shared directory. `join` or `look_on` make it. A forked child calls only `close`."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self._lock = lock

    @classmethod
    def join(cls, directory: PathLike) -> Members:
        """Join the directory, and make it (mode 0700) if it is missing. Wait while a directory of that name is removed.

        Raises:
            SpoolError: the path is no directory, or is another user's.
            OSError: the directory can't be made.
        """
        path = Path(directory)
        while True:
            try:
                path.mkdir(mode=0o700, exist_ok=True)
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode) or distrusted(status, secret=True):
                    raise SpoolError(
                        f"{path} is not a directory that this user alone may enter: somebody else has made it. Remove it, or "
                        "choose another directory with spool= or $DDLP_SPOOL."
                    )
                lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:  # removed between two of these calls
                if not path.parent.is_dir():
                    raise
                continue
            members = cls(path, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if members._current():
                return members
            members.close()

    @classmethod
    def look_on(cls, directory: PathLike) -> Members:
        """Watch the directory without joining it. Raises OSError if it has no lock file."""
        return cls(Path(directory), os.open(Path(directory) / LOCK, os.O_RDWR | os.O_CLOEXEC))

    def _current(self) -> bool:
        """Return whether the open lock file is still the one in the directory."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.directory / LOCK))
        except OSError:
            return False

    def alone(self) -> bool:
        """Return whether no other process is a member. If so, none can join until `close` or `remove`.

        If not, this process is no member any more. False also after `close`.
        """
        if self._lock < 0:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """Leave, and remove the directory if no other process is a member. Return whether it was removed."""
        try:
            if not self.alone() or not self._current():
                return False
            gone = self.directory.with_name(f"{self.directory.name}-{secrets.token_hex(4)}")
            try:
                os.rename(self.directory, gone)
            except OSError:
                return False
            remove_tree(gone)
            return True
        finally:
            self.close()

    def close(self) -> None:
        """Leave without removing the directory. It may be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
