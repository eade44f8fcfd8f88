"""One embedded engine for all ranks of a training run on this machine.

The ranks meet in a private directory (mode 0700). Its name is made of the run and of this system, so that machines which see
the same file system have one each. The ranks look for the engine one at a time. The first one starts it; the others connect to
it with its keys.

No rank owns the engine. Each rank holds a shared lock on the directory, and the operating system releases it when the rank
ends, for whatever reason. Once nobody holds the lock, the engine ends and removes the directory. The last rank that leaves in
good order ends the engine itself. If an engine has died, the next rank that wants one starts another.

    DIR/lock            held (flock, shared) by every rank
    DIR/start           held (flock) by the rank that looks for the engine, and starts it
    DIR/engine.json     where the engine is
    DIR/e-XXXXXXXX/     an engine's keys, socket, spool and operators
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from csd_engine.errors import EngineError
from csd_engine.machine.file_locks import fcntl
from csd_engine.service.members import Members
from csd_engine.service.spool import remove_tree
from ddlp.process.forks import unlocked_in_children
from ddlp.process.ranks import Ranks
from ddlp.process.system import own_prefix, processes
from ddlp.sources.engine.embedded import (
    END_TIMEOUT_S,
    STALLED_END_TIMEOUT_S,
    EmbeddedEngine,
    EmbeddedOptions,
    short_directory,
    socket_fits,
    unusable,
)

__all__ = ["JointEngine"]

_started: list[subprocess.Popen[bytes]] = []  # engines that may outlive this process's use of them


@dataclass(frozen=True)
class _Card:
    """The content of engine.json, for the other ranks: the engine's address, process number, directory and socket directory.

    ``system``: the system on which the process number is valid (`ddlp.process.system.processes`).
    """

    address: str
    pid: int
    directory: str
    socket_directory: str
    system: str

    @staticmethod
    def read(path: Path) -> _Card | None:
        """Read it. None if there is none, if a rank was killed while it wrote, or if it is of another system."""
        try:
            card = _Card(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return card if card.system == processes() else None

    def write(self, path: Path) -> None:
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


class _Meeting:
    """The run's directory, and in it the directory of the engine that this rank uses."""

    def __init__(self, options: EmbeddedOptions, ranks: Ranks) -> None:
        assert options.spool is not None
        what = hashlib.blake2b(json.dumps([ranks.run, processes(), asdict(options)]).encode(), digest_size=8).hexdigest()
        self._run = Path(options.spool) / f"{own_prefix()}{what}"
        self._turn = -1
        self.path = Path()
        self.socket_directory: Path | None = None
        try:
            os.makedirs(options.spool, exist_ok=True)
            self.members = Members.join(self._run)
        except OSError as error:
            raise unusable(options.spool, error) from None
        unlocked_in_children(self)

    @property
    def run(self) -> Path:
        return self._run

    @property
    def card(self) -> Path:
        return self._run / "engine.json"

    @contextlib.contextmanager
    def my_turn(self) -> Iterator[None]:
        """Let one rank at a time in, by the lock of DIR/start."""
        self._turn = os.open(self._run / "start", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        """Make the directories for an engine's files and for its socket."""
        self.path = Path(tempfile.mkdtemp(prefix="e-", dir=self._run))
        self.socket_directory = self.path if socket_fits(self.path) else short_directory(self._run / "lock")

    def remove_directory(self) -> None:
        """Remove what `make_directory` has made, for an engine that did not start."""
        for directory in {self.path, self.socket_directory or self.path} - {Path()}:
            remove_tree(directory)

    def unlock(self) -> None:
        """Release the locks in a forked child, which is not one of the ranks."""
        self.members.close()
        self._end_turn()


class JointEngine(EmbeddedEngine):
    """The run's engine as one of its ranks uses it. Made by `ddlp.sources.engine.shared_engines.acquire`."""

    def __init__(self, options: EmbeddedOptions, let_go: Callable[[EmbeddedEngine], None], ranks: Ranks) -> None:
        self._ranks = ranks
        self._card: _Card | None = None
        super().__init__(options, let_go)

    def _enter(self) -> None:
        self._private: _Meeting = _Meeting(self.options, self._ranks)  # type: ignore[assignment]

    def _ends_with(self) -> list[str]:
        return ["--members", str(self._private.run)]

    @property
    def pid(self) -> int:
        """The engine's process id."""
        assert self._card is not None
        return self._card.pid

    def ended(self) -> str | None:
        """Return why the engine's process has ended, or None while it runs."""
        if self._card is None:
            return super().ended()
        return None if self._card.runs() else "the embedded engine of this run has ended"

    def _start(self) -> None:
        meeting = self._private
        with meeting.my_turn():
            found = _Card.read(meeting.card)
            if found is not None:
                if found.runs() and self._meet(found):
                    return
                found.stop(0.0)  # it is dead or does not answer any more: start another one
            meeting.make_directory()
            try:
                address = self._launch()
            finally:
                if self._process is not None:
                    _started.append(self._process)
            assert self._process is not None
            self._card = _Card(address, self._process.pid, str(meeting.path), str(meeting.socket_directory), processes())
            self._card.write(meeting.card)
            self._connect(address)

    def _meet(self, card: _Card) -> bool:
        """Connect to the engine that another rank has started; False where it does not answer."""
        self._private.path = Path(card.directory)
        self._card = card
        try:
            self._connect(card.address)
        except (EngineError, OSError):
            self._card = None
            return False
        return True

    def end(self) -> None:
        """Leave the run; the last rank to leave ends the engine. A forked child only forgets it."""
        meeting: _Meeting | None = getattr(self, "_private", None)
        if meeting is None:
            return
        if self.inherited:
            meeting.unlock()
            return
        answers = self._answers()
        if hasattr(self, "link"):
            self.link.close()
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._log.close()
            if self._card is None:  # it did not start
                self._process.kill()
                self._process.wait()
        if self._card is None:
            meeting.remove_directory()
        if meeting.members.alone():
            card = _Card.read(meeting.card)
            if card is not None:
                card.stop(END_TIMEOUT_S if answers else STALLED_END_TIMEOUT_S)
        meeting.members.remove()
