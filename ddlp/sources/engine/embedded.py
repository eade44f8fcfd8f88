"""The embedded engine: `python -m csd_engine` as a child of this process, on an ipc socket.

All loaders of this process share it (`ddlp.sources.engine.shared_engines`). The ranks of one run on this machine share one as
well (`ddlp.sources.engine.joint`).

Its keys, socket and spool are in a private directory (mode 0700). The engine ends when this process ends, for whatever reason,
and removes the directory. If the engine was killed, this process removes the directory. If both were killed, the next process
that starts an engine removes it: a directory belongs to a living process only while somebody holds the lock file in it.

The engine is started with --trust-roots: it reads any file that this process names. Nobody else has its keys, and this process
runs as the same user, so it could read those files itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from csd_engine.errors import EngineError, EngineUnreachable, SpoolError
from csd_engine.machine.file_locks import fcntl
from csd_engine.machine.sizes import free_bytes
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.service.members import Members
from csd_engine.service.worker_process import child_environment
from ddlp.process.forks import no_forks, unlocked_in_children
from ddlp.process.system import PREFIX, own_prefix
from ddlp.sources.engine.link import EngineLink
from ddlp.transfer.mapped_batch import may_map

__all__ = ["EmbeddedEngine", "EmbeddedOptions", "default_spool"]

MAX_SOCKET_PATH_BYTES = 107  # sun_path, less its NUL
_START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0
STALLED_END_TIMEOUT_S = 1.0  # for an engine that is silent already
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
        quota_batches, quota_bytes: limits of the spool; None: 1024 batches, and half of the free space at the start (8 GiB
            at most).
        slowdown: how many times slower it works, to emulate a slower device; None: $DDLP_ENGINE_SLOWDOWN, else 1.
        cpus: CPUs to run on, as "1" or "2,3"; None: $DDLP_ENGINE_CPUS, else all.
        kernel: False: Pillow does the work even where a kernel is available, to compare.
        number: which one of several engines with otherwise equal options, e.g. of a pool.
        share: of the spool's space it may use one part in so many, since so many engines use the same disk.
        cache: where it keeps samples, as DIR:SIZE; "": nowhere.
    """

    spool: str | None = None
    workers: int | None = None
    quota_batches: int | None = None
    quota_bytes: int | None = None
    slowdown: float | None = None
    cpus: str | None = None
    kernel: bool = True
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


def socket_fits(directory: Path) -> bool:
    """Whether a socket's path in this directory is short enough."""
    return len(os.fsencode(directory / "s")) <= MAX_SOCKET_PATH_BYTES


def short_directory(lock: Path) -> Path:
    """Make a directory with a short path for a socket. `sweep` removes it once nobody holds ``lock``. Raises OSError."""
    for base in (tempfile.gettempdir(), "/tmp"):
        if socket_fits(Path(base) / f"{own_prefix()}12345678"):
            short = Path(tempfile.mkdtemp(prefix=own_prefix(), dir=base))
            (short / "lock").symlink_to(lock)
            return short
    raise OSError(0, f"a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes: it is too long, as is $TMPDIR")


def unusable(spool: str, error: OSError) -> SpoolError:
    """Return the error for a spool directory in which nothing can be made."""
    return SpoolError(
        f"the spool directory {spool} cannot be used: {error.strerror}. Make it writable, or choose another one with spool= or "
        "$DDLP_SPOOL."
    )


def _address_in(said: bytes) -> str | None:
    """Return the engine's address if one of the lines tells it, else None."""
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict) and isinstance(address := told.get("ready"), str):
                return address
    return None


class _PrivateDirectory:
    """A locked directory of this process. If its path is too long for a socket, the socket gets a second, shorter one."""

    def __init__(self, base: str) -> None:
        self.path = Path()
        self.lock = -1
        self.socket_directory: Path | None = None
        try:
            os.makedirs(base, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=own_prefix(), dir=base))
            self.lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.socket_directory = self.path if socket_fits(self.path) else short_directory(self.path / "lock")
        except OSError as error:
            self.remove()
            raise unusable(base, error) from None
        unlocked_in_children(self)

    def remove(self) -> None:
        """Remove the directories, then release the lock."""
        for directory in {self.path, self.socket_directory or self.path} - {Path()}:
            shutil.rmtree(directory, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Release the lock."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


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
                    shutil.rmtree(path, ignore_errors=True)
                    continue
                Members.look_on(path).remove()


class EmbeddedEngine:
    """A running engine process and the link to it. Made by `shared_engines.acquire`; each acquire needs one `release`.

    ``let_go``: the function that `release` calls.
    """

    def __init__(self, options: EmbeddedOptions, let_go: Callable[[EmbeddedEngine], None]) -> None:
        assert options.spool is not None
        self.options = options
        self.users = 0
        self._let_go = let_go
        self._pid = os.getpid()
        for base in {options.spool, tempfile.gettempdir()}:
            sweep(base)
        self._process: subprocess.Popen[bytes] | None = None
        self.link: EngineLink
        self._enter()
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

    def _enter(self) -> None:
        assert self.options.spool is not None
        self._private = _PrivateDirectory(self.options.spool)

    @property
    def directory(self) -> Path:
        """The private directory."""
        return self._private.path

    @property
    def operators(self) -> Path:
        """Where the engine finds the user's operator files; this process puts them there."""
        return self._private.path / "operators"

    @functools.cached_property
    def mapped(self) -> bool:
        """Whether this process may map its batch files."""
        return may_map(self.directory)

    @property
    def pid(self) -> int:
        """The engine's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def inherited(self) -> bool:
        """Whether this process was forked after the start: the engine is the parent's then."""
        return os.getpid() != self._pid

    def ended(self) -> str | None:
        """Return why the engine's process has ended, or None while it runs."""
        if self._process is None:
            return "the embedded engine was stopped"
        status = self._process.poll()
        return None if status is None else f"the embedded engine's process ended with status {status}"

    def _answers(self) -> bool:
        return hasattr(self, "link") and self.link.silent_s < STALLED_END_TIMEOUT_S

    def _command(self) -> list[str]:
        options, path = self.options, self._private.path
        assert self._private.socket_directory is not None
        quota_bytes = max(1, (options.quota_bytes or min(8 << 30, free_bytes(path) // 2)) // options.share)
        reserve_bytes = min(1 << 30, free_bytes(path) // 8)
        command = [sys.executable, "-m", "csd_engine", "--listen", f"ipc://{self._private.socket_directory}/s"]
        command += ["--spool", f"{path}/spool", "--keys", f"{path}/keys", "--trust-roots"]
        command += [*self._ends_with(), "--workers", str(options.workers)]
        command += ["--operators", str(self.operators), *(["--mapped"] if self.mapped else [])]
        command += ["--slowdown", repr(options.slowdown), "--private", str(self._private.socket_directory)]
        command += ["--quota-bytes", str(quota_bytes), "--reserve-bytes", str(reserve_bytes), "--private", str(path)]
        if options.quota_batches is not None:
            command += ["--quota-batches", str(options.quota_batches)]
        if options.cache:
            command += ["--cache", options.cache]
        if options.cpus is not None:
            command += ["--cpus", options.cpus]
        return command

    def _ends_with(self) -> list[str]:
        return ["--exit-with-stdin", "--parent", str(os.getpid())]

    def _start(self) -> None:
        self._connect(self._launch())

    def _launch(self) -> str:
        """Start the process; return its address."""
        make_keys(self._private.path / "keys")
        self.operators.mkdir(mode=0o700)
        # Without a name: the engine removes its directory before the end of this log can be read.
        self._log = tempfile.TemporaryFile(dir=self._private.path)
        with no_forks():
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd="/",
                env=child_environment() if self.options.kernel else {**child_environment(), "DDLP_KERNEL": "off"},
                start_new_session=True,  # Ctrl-C in the terminal then reaches this process alone
            )
        return self._await_ready()

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
            f"the embedded engine did not start ({why}) in {self._private.path}: {last or 'its log is empty'}. "
            f"Run `{sys.executable} -m csd_engine --help` to see whether it can."
        )

    def end(self) -> None:
        """Stop the process and remove its directory. A forked child only forgets the engine."""
        if self.inherited:
            self._private.unlock()
            return
        if hasattr(self, "link"):
            self.link.close()
        process = self._process
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S if self.ended() or self._answers() else STALLED_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if hasattr(self, "_log"):
            self._log.close()
        self._private.remove()

    def release(self) -> None:
        """Give the engine back. The last user to do so stops it."""
        if not self.inherited:
            self._let_go(self)
