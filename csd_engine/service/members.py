"""A directory that several processes share, and who of them still needs it.

Each holds a shared flock on the directory's `lock` file, which the system lets go however a process ends. Who gets the lock
exclusively is alone. The directory is renamed before it is removed, so nobody can come into one that is half gone: who had
opened its lock file meanwhile finds that it is not the one under that name any more, and makes a new directory.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Union

from csd_engine.errors import SpoolError
from csd_engine.machine.file_locks import fcntl
from csd_engine.service.spool import remove_tree

__all__ = ["Members"]

LOCK = "lock"
PathLike = Union[str, "os.PathLike[str]"]


class Members:
    """One process's part in a shared directory; made by `join` or `look_on`. A forked child calls `close` only."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self._lock = lock

    @classmethod
    def join(cls, directory: PathLike) -> Members:
        """Come in, making the directory (mode 0700) if it is missing; waits for one that is being removed.

        Raises:
            SpoolError: there is something else of that name, or somebody else's directory.
            OSError: it can't be made.
        """
        path = Path(directory)
        while True:
            try:
                path.mkdir(mode=0o700, exist_ok=True)
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
                    raise SpoolError(
                        f"{path} is not a directory that this user alone may enter: somebody else has made it. Remove it, or "
                        "choose another directory with spool= or $DDLP_SPOOL."
                    )
                lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:  # removed between two of these calls
                if not path.parent.is_dir():
                    raise
                continue
            one = cls(path, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if one._current():
                return one
            one.close()

    @classmethod
    def look_on(cls, directory: PathLike) -> Members:
        """Look on without being one of them. Raises OSError where there is no lock file."""
        return cls(Path(directory), os.open(Path(directory) / LOCK, os.O_RDWR | os.O_CLOEXEC))

    def _current(self) -> bool:
        """Whether the lock file is still the one under its name."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.directory / LOCK))
        except OSError:
            return False

    def alone(self) -> bool:
        """Whether nobody else is there; nobody can come in then until `close` or `remove`. If not, this one is out.

        False once this one has left.
        """
        if self._lock < 0:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """Leave; remove the directory where nobody else is there. Returns whether it was. May be called again."""
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
        """Leave; the directory stays. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
