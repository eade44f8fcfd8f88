"""Where the processes meet that share an embedded engine: the ranks of a training run on this machine, or a process alone.

They meet in a private directory (mode 0700). A run's is named after the run and this system, so that machines which see the
same file system have one each. The processes look for the engine one at a time. Each holds a shared lock on the directory, and
the operating system releases it when the process ends, for whatever reason: a directory belongs to living processes only while
somebody holds its lock.

    DIR/lock            held (flock, shared) by every process
    DIR/start           held (flock) by the process that looks for the engine, and starts it
    DIR/engine.json     where the engine is
    DIR/e-XXXXXXXX/     an engine's keys, socket, spool and operators
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from csd_engine.errors import SpoolError
from csd_engine.machine.file_locks import fcntl
from csd_engine.service.members import Members
from csd_engine.service.spool import remove_tree
from ddlp.process.forks import unlocked_in_children
from ddlp.process.system import PREFIX, own_prefix, processes
from ddlp.transfer.mapped_batch import may_map

__all__ = ["Card", "Meeting", "sweep"]

MAX_SOCKET_PATH_BYTES = 107  # sun_path, less its NUL

_started: list[subprocess.Popen[bytes]] = []  # engines that may outlive this process's use of them


@dataclass(frozen=True)
class Card:
    """The content of engine.json, for the other processes: the engine's address, process number and directories.

    ``system``: the system on which the process number is valid (`ddlp.process.system.processes`).
    """

    address: str
    pid: int
    directory: str
    socket_directory: str
    system: str

    @staticmethod
    def read(path: Path) -> Card | None:
        """Read it. None if there is none, if a process was killed while it wrote, or if it is of another system."""
        try:
            card = Card(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return card if card.system == processes() else None

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(asdict(self)))
        os.replace(draft, path)

    def runs(self) -> bool:
        """Whether the engine runs: it holds the lock of its spool then."""
        try:
            lock = os.open(Path(self.directory) / "spool" / ".lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(lock)

    def stop(self, patience_s: float) -> None:
        """End the engine, and remove what it may have left. It is killed after ``patience_s``."""
        until = time.monotonic() + patience_s
        with contextlib.suppress(OSError):
            if self.runs():
                os.kill(self.pid, signal.SIGTERM)
            while self.runs() and time.monotonic() < until:
                time.sleep(0.01)
            if self.runs():
                os.kill(self.pid, signal.SIGKILL)
        for process in _started:
            if process.pid == self.pid:  # a child of this process: reap it
                process.wait()
        for process in [process for process in _started if process.poll() is not None]:
            with contextlib.suppress(ValueError):  # another thread has removed it
                _started.remove(process)
        for directory in {self.directory, self.socket_directory}:
            remove_tree(directory)


class Meeting:
    """The directory of the processes that share an engine, and in it the directory of the engine that this process uses.

    Args:
        spool: the directories are made in this one.
        what: tells which processes share the engine; None: it is this one's alone.

    Attributes:
        path: the engine's directory.
        socket_directory: the same, or a second, shorter one if that is too long for a socket's path.

    Raises:
        SpoolError: nothing can be made there, or it is another user's.
    """

    def __init__(self, spool: str, what: list[Any] | None) -> None:
        name = secrets.token_hex(8) if what is None else hashlib.blake2b(json.dumps(what).encode(), digest_size=8).hexdigest()
        self.directory = Path(spool) / f"{own_prefix()}{name}"
        self.path = Path()
        self.socket_directory: Path | None = None
        self._turn = -1
        try:
            os.makedirs(spool, exist_ok=True)
            self._members = Members.join(self.directory)
        except OSError as error:
            raise _unusable(spool, error) from None
        unlocked_in_children(self)

    @property
    def card(self) -> Path:
        """The file that tells where the engine is."""
        return self.directory / "engine.json"

    @contextlib.contextmanager
    def my_turn(self) -> Iterator[None]:
        """Let one process at a time in, by the lock of DIR/start."""
        self._turn = os.open(self.directory / "start", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)  # for forked children too, which share the descriptor
            self._end_turn()

    def _end_turn(self) -> None:
        if self._turn >= 0:
            os.close(self._turn)
            self._turn = -1

    def make_directory(self) -> None:
        """Make the directories for an engine's files and for its socket. Raises SpoolError."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix="e-", dir=self.directory))
            self.socket_directory = self.path if _socket_fits(self.path) else _short_directory(self.directory / "lock")
        except OSError as error:
            raise _unusable(str(self.directory.parent), error) from None

    @staticmethod
    def started(process: subprocess.Popen[bytes]) -> None:
        """Note an engine's process that this one has started. It may outlive this process's use of it."""
        _started.append(process)

    def leave(self, used: bool, patience_s: float) -> None:
        """Leave; the last one ends the engine, which is killed after ``patience_s``. ``used``: this process has used it."""
        if not used:  # what was made for an engine that did not start
            for directory in {self.path, self.socket_directory or self.path} - {Path()}:
                remove_tree(directory)
        if self._members.alone() and (card := Card.read(self.card)) is not None:
            card.stop(patience_s)
        self._members.remove()

    def unlock(self) -> None:
        """Release the locks in a forked child, which does not share the engine."""
        self._members.close()
        self._end_turn()


def _socket_fits(directory: Path) -> bool:
    """Whether a socket's path in this directory is short enough."""
    return len(os.fsencode(directory / "s")) <= MAX_SOCKET_PATH_BYTES


def _short_directory(lock: Path) -> Path:
    """Make a directory with a short path for a socket. `sweep` removes it once nobody holds ``lock``. Raises OSError."""
    for base in (tempfile.gettempdir(), "/tmp"):
        if _socket_fits(Path(base) / f"{own_prefix()}12345678"):
            short = Path(tempfile.mkdtemp(prefix=own_prefix(), dir=base))
            (short / "lock").symlink_to(lock)
            return short
    raise OSError(0, f"a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes: it is too long, as is $TMPDIR")


def _unusable(spool: str, error: OSError) -> SpoolError:
    """Return the error for a spool directory in which nothing can be made."""
    return SpoolError(
        f"the spool directory {spool} cannot be used: {error.strerror}. Make it writable, or choose another one with spool= or "
        "$DDLP_SPOOL."
    )


def sweep(base: str) -> None:
    """Remove private directories of this user in `base` whose process is gone.

    If other machines may see `base`, only directories of this machine are removed: a lock that another machine holds may not be
    visible here. Directories that a machine left there when it went down stay.
    """
    with contextlib.suppress(OSError):
        prefix = f"{PREFIX}{os.getuid()}-" if may_map(base) else own_prefix()
        for path in Path(base).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if path.is_symlink() or path.stat().st_uid != os.getuid() or time.time() - path.stat().st_mtime < 5:
                    continue  # not ours, or in the making
                if not (path / "lock").exists():
                    remove_tree(path)
                    continue
                Members.look_on(path).remove()
