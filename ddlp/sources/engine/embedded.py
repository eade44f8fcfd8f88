"""The embedded engine: `python -m csd_engine` on an ipc socket, started by this process, or by another rank of its run.

All loaders of this process share it (`acquire`). The ranks of one run on this machine share one as
well: the first one starts it, the others connect to it with its keys. They find it by their directory
(`ddlp.sources.engine.meeting`); a process without other ranks has such a directory for itself.

The engine's keys, socket and spool are there (mode 0700). No process owns the engine: it ends when none of them is left, for
whatever reason, and removes the directory. The last one that leaves in good order ends the engine itself. If an engine has
died, the next loader that wants one starts another. If all were killed, the next process that starts one removes the directory.

The engine is started with --trust-roots: it reads any file that this process names. Nobody else has its keys, and this process
runs as the same user, so it could read those files itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from csd_engine.errors import EngineError, EngineUnreachable
from csd_engine.machine.sizes import free_bytes
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.service.worker_process import child_environment
from ddlp.process.forks import no_forks
from ddlp.process.ranks import Ranks, here
from ddlp.process.system import processes
from ddlp.sources.engine.link import EngineLink
from ddlp.sources.engine.meeting import Card, Meeting, sweep
from ddlp.transfer.mapped_batch import may_map

__all__ = ["EmbeddedEngine", "EmbeddedOptions", "acquire", "default_spool"]

_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 5.0
_STALLED_END_TIMEOUT_S = 1.0  # for an engine that is silent already
_LOG_TAIL_BYTES = 2000
_MOST_SAID_BYTES = 1 << 16  # of output before the engine tells its address


def default_spool() -> str:
    """Return the spool directory for a loader that names none."""
    return os.environ.get("DDLP_SPOOL") or tempfile.gettempdir()


@dataclass(frozen=True)
class EmbeddedOptions:
    """Settings of an embedded engine. Loaders with equal settings share one engine.

    Attributes:
        spool: the private directory is made in this one; None: $DDLP_SPOOL, else the system's temporary directory.
        workers: worker processes; None: $DDLP_ENGINE_WORKERS, else 1.
        quota_bytes: of the spool; None: half of the free space at the start, 8 GiB at most.
        slowdown: how many times slower it works, to emulate a slower device; None: $DDLP_ENGINE_SLOWDOWN, else 1.
        cpus: CPUs to run on, as "1" or "2,3"; None: $DDLP_ENGINE_CPUS, else all.
        number: which one of several engines with otherwise equal options, e.g. of a pool.
        share: of the spool's space it may use one part in so many, since so many engines use the same disk.
        cache: where it keeps samples, as DIR:SIZE; "": nowhere.
    """

    spool: str | None = None
    workers: int | None = None
    quota_bytes: int | None = None
    slowdown: float | None = None
    cpus: str | None = None
    number: int = 0
    share: int = 1
    cache: str = ""

    def resolved(self) -> EmbeddedOptions:
        """Return the options with defaults and environment variables filled in.

        Raises:
            EngineError: $DDLP_ENGINE_WORKERS or $DDLP_ENGINE_SLOWDOWN is not a number that makes sense.
        """
        spool = self.spool or default_spool()
        workers = self.workers
        if workers is None:
            text = os.environ.get("DDLP_ENGINE_WORKERS", "1")
            if not text.isdigit() or int(text) < 1:
                raise EngineError(f"$DDLP_ENGINE_WORKERS is {text!r}; write a number of processes, 1 or more.")
            workers = int(text)
        slowdown = self.slowdown
        if slowdown is None:
            text = os.environ.get("DDLP_ENGINE_SLOWDOWN", "1")
            try:
                slowdown = float(text)
            except ValueError:
                raise EngineError(f"$DDLP_ENGINE_SLOWDOWN is {text!r}; it must be a factor, 1 or more.") from None
        cpus = self.cpus or os.environ.get("DDLP_ENGINE_CPUS")
        return replace(self, spool=os.path.abspath(spool), workers=workers, slowdown=slowdown, cpus=cpus)


def _address_in(said: bytes) -> str | None:
    """Return the engine's address if one of the lines tells it, else None."""
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict) and isinstance(address := message.get("ready"), str):
                return address
    return None


class EmbeddedEngine:
    """An engine's process and the link to it. Made by `acquire`; each acquire needs one `release`.

    Args:
        options: resolved.
        ranks: the place of this process among the ranks that share the engine; None: it has it alone.
    """

    def __init__(self, options: EmbeddedOptions, ranks: Ranks | None = None) -> None:
        assert options.spool is not None
        self.options = options
        self.users = 0
        self._pid = os.getpid()
        for base in {options.spool, tempfile.gettempdir()}:
            sweep(base)
        self._process: subprocess.Popen[bytes] | None = None  # if this process has started it
        self._card: Card | None = None
        self.link: EngineLink
        self._alone = ranks is None
        self._meeting = Meeting(options.spool, None if ranks is None else [ranks.run, processes(), asdict(options)])
        try:
            self._start()
        except OSError as error:
            self.end()
            raise EngineUnreachable(
                f"the embedded engine could not be started by {sys.executable!r} in {options.spool}: {error}. See that this "
                "computer has memory, processes and disk space left, and that this is a Python interpreter."
            ) from error
        except BaseException:
            self.end()
            raise

    @property
    def directory(self) -> Path:
        """The engine's directory."""
        return self._meeting.path

    @property
    def operators(self) -> Path:
        """Where the engine finds the user's operator files; this process puts them there."""
        return self.directory / "operators"

    @functools.cached_property
    def mapped(self) -> bool:
        """Whether this process may map its batch files."""
        return may_map(self.directory)

    @property
    def pid(self) -> int:
        """The engine's process id."""
        assert self._card is not None
        return self._card.pid

    @property
    def inherited(self) -> bool:
        """Whether this process was forked after the start: the engine is the parent's then."""
        return os.getpid() != self._pid

    def ended(self) -> str | None:
        """Return why the engine's process has ended, or None while it runs."""
        if self._process is None:
            return None if self._card is not None and self._card.runs() else "the embedded engine of this run has ended"
        status = self._process.poll()
        return None if status is None else f"the embedded engine's process ended with status {status}"

    def _command(self) -> list[str]:
        options, path = self.options, self.directory
        quota_bytes = max(1, (options.quota_bytes or min(8 << 30, free_bytes(path) // 2)) // options.share)
        reserve_bytes = min(1 << 30, free_bytes(path) // 8)
        command = [sys.executable, "-m", "csd_engine", "--listen", f"ipc://{self._meeting.socket_directory}/s"]
        command += ["--spool", f"{path}/spool", "--keys", f"{path}/keys", "--trust-roots"]
        command += ["--members", str(self._meeting.directory), "--workers", str(options.workers)]
        command += ["--operators", str(self.operators), *(["--mapped"] if self.mapped else [])]
        command += ["--slowdown", repr(options.slowdown), "--private", str(self._meeting.socket_directory)]
        command += ["--quota-bytes", str(quota_bytes), "--reserve-bytes", str(reserve_bytes), "--private", str(path)]
        if self._alone:  # code in C can fork too, and the fork holds the lock
            command += ["--parent", str(os.getpid())]
        if options.cache:
            command += ["--cache", options.cache]
        if options.cpus is not None:
            command += ["--cpus", options.cpus]
        return command

    def _start(self) -> None:
        meeting = self._meeting
        with meeting.my_turn():
            card = Card.read(meeting.card)
            if card is not None:
                if card.runs() and self._meet(card):
                    return
                card.stop(0.0)  # it is dead or does not answer any more: start another one
            meeting.make_directory()
            self._card = self._launch()
            self._card.write(meeting.card)
            self._connect(self._card.address)

    def _meet(self, card: Card) -> bool:
        """Connect to the engine that another rank has started; False where it does not answer."""
        self._meeting.path = Path(card.directory)
        self._card = card
        try:
            self._connect(card.address)
        except (EngineError, OSError):
            self._card = None
            return False
        return True

    def _launch(self) -> Card:
        """Start the process."""
        meeting = self._meeting
        make_keys(self.directory / "keys")
        self.operators.mkdir(mode=0o700)
        # Without a name: the engine removes its directory before the end of this log can be read.
        self._log = tempfile.TemporaryFile(dir=self.directory)
        with no_forks():
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd="/",
                env=child_environment(),
                start_new_session=True,  # Ctrl-C in the terminal then reaches this process alone
            )
        meeting.started(self._process)
        address = self._await_ready()
        return Card(address, self._process.pid, str(meeting.path), str(meeting.socket_directory), processes())

    def _connect(self, address: str) -> None:
        keys = self.directory / "keys"
        pair = load_pair(keys / "host.key_secret")
        server = load_public(keys / "server.key")
        self.link = EngineLink(address, server, pair.public, pair.secret, ended=self.ended)
        try:
            self.link.open()
        except EngineUnreachable as error:
            raise self._not_started(str(error).rstrip(".")) from None

    def _await_ready(self) -> str:
        """Return the address that the engine prints once it is ready. A start file of the interpreter may print other lines."""
        assert self._process is not None and self._process.stdout is not None
        said, until = b"", time.monotonic() + _START_TIMEOUT_S
        ready = select.poll()  # select.select knows no descriptor above 1023
        ready.register(self._process.stdout, select.POLLIN)
        while time.monotonic() < until and len(said) < _MOST_SAID_BYTES:
            if not ready.poll(500):
                continue
            piece = os.read(self._process.stdout.fileno(), 4096)
            if not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1)  # for its exit status
                break
            said += piece
            if (address := _address_in(said)) is not None:
                return address
        raise self._not_started(self.ended() or "no answer", said)

    def _not_started(self, why: str, said: bytes = b"") -> EngineUnreachable:
        """Return the error to raise. It quotes the end of the engine's log, or of its output ``said``."""
        logged = b""
        if self._process is not None:  # else another rank has started it and has the log
            size = os.fstat(self._log.fileno()).st_size
            logged = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        last = (logged.strip() or said[-_LOG_TAIL_BYTES:].strip()).decode(errors="replace")
        return EngineUnreachable(
            f"the embedded engine did not start ({why}) in {self.directory}: {last or 'its log is empty'}. "
            f"Run `{sys.executable} -m csd_engine --help` to see whether it can."
        )

    def end(self) -> None:
        """Leave the engine; the last one ends its process, and removes the directory. A forked child only forgets it."""
        if self.inherited:
            self._meeting.unlock()
            return
        answers = hasattr(self, "link") and self.link.silent_s < _STALLED_END_TIMEOUT_S
        if hasattr(self, "link"):
            self.link.close()
        if hasattr(self, "_log"):
            self._log.close()
        process = self._process
        if process is not None:
            assert process.stdout is not None
            process.stdout.close()
            if self._card is None:  # it did not start
                process.kill()
                process.wait()
        self._meeting.leave(self._card is not None, _END_TIMEOUT_S if answers or self.ended() else _STALLED_END_TIMEOUT_S)

    def release(self) -> None:
        """Give the engine back. The last user to do so stops it."""
        if self.inherited:
            return
        with _lock:
            self.users -= 1
            if self.users <= 0:
                _forget(self)
                self.end()


_Key = tuple[EmbeddedOptions, str]  # the options, and the run if it has several ranks here

_lock = threading.RLock()
_running: dict[_Key, EmbeddedEngine] = {}
_starting: dict[_Key, threading.Lock] = {}  # held while an engine is looked for and started: those of a pool start at once


def acquire(options: EmbeddedOptions, check: Callable[[], None] = lambda: None) -> EmbeddedEngine:
    """Return the embedded engine of this process, or of its run, for these options. Start it if there is none.

    ``check`` is called just before one is started, which may be long after the call: what it raises keeps that from happening.

    Raises:
        EngineUnreachable: it does not start; holds the end of its log.
        SpoolError: the spool directory cannot be used.
        EngineError: an option is out of range.
    """
    wanted = options.resolved()
    ranks = here()
    ranks = ranks if ranks is not None and ranks.local_ranks > 1 else None
    key = wanted, "" if ranks is None else ranks.run
    with _lock:
        _register()
        starting = _starting.setdefault(key, threading.Lock())
    with starting:
        if (running := _running_one(key)) is not None:
            return running
        check()
        engine = EmbeddedEngine(wanted, ranks)
        with _lock:
            _running[key] = engine
            engine.users = 1
        return engine


def _running_one(key: _Key) -> EmbeddedEngine | None:
    """Return the engine for a key with one more user; None if there is none that works."""
    with _lock:
        engine = _running.get(key)
        if engine is None:
            return None
        if engine.ended() is not None or engine.link.lost is not None:
            _forget(engine)  # its users release it; the last one removes its directory
            return None
        engine.users += 1
        return engine


def _forget(engine: EmbeddedEngine) -> None:
    for key in [key for key, running in _running.items() if running is engine]:
        del _running[key]


def _end_all() -> None:
    with contextlib.ExitStack() as started:
        for starting in list(_starting.values()):  # an engine that starts now would be left out
            started.enter_context(starting)
        started.enter_context(_lock)
        for engine in list(_running.values()):
            _forget(engine)
            engine.end()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that exists only in the parent may hold the old one
    _running.clear()
    _starting.clear()


@functools.cache
def _register() -> None:
    """Register the hooks once, with the first engine, so that importing this module has no side effects."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_after_fork)
