"""What runs in a Ray actor: one engine on the actor's node, from the code that the pool brings along.

Ray gets this class by value, so a node needs no ddlp: only numpy, Pillow and pyzmq beside Ray. Nothing secret comes here or
goes back: the engine makes its pair of keys in its memory, the host's public key comes, and the engine's public key goes back.

Ray kills an actor's child processes with it, and a killed engine leaves its files. So the engine is no child. It ends, and
removes its directory, once nobody holds the lock in it: the system releases that however the actor ends. If there is no engine
that could do so, not yet or since it was killed too, a small process removes the directory that waits for the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["EngineOnNode"]

_END_TIMEOUT_S = 10.0
_RUN_TIMEOUT_S = 300.0  # a compiler on a slow computer
_REMOVER = """
import fcntl, shutil, sys, time
try:
    with open(sys.argv[1] + "/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    time.sleep(5)  # the engine ends by itself meanwhile
except OSError:
    pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class EngineOnNode:
    """One engine. `start` returns once it serves, `ended` once it has ended. `finish` ends it when no epoch uses it any more.

    Args:
        code: csd_engine as a .tar.gz.
        kernel: further files of it, by their paths: the kernel as it is compiled on the host; it is tried here.
        host_key: the text of the host's public .key file.
        arguments: of `python -m csd_engine`, without those of places and keys.
    """

    def __init__(self, code: bytes, kernel: Mapping[str, bytes], host_key: str, arguments: Sequence[str]) -> None:
        self._code, self._kernel, self._host_key, self._arguments = code, kernel, host_key, list(arguments)
        self._home = Path()
        self._lock = self._pid = -1
        self._output: IO[bytes]
        self._log: IO[bytes]

    def start(self) -> dict[str, str]:
        """Start the engine; return its ``address``, its public ``key`` and the ``node``'s name.

        Raises:
            RuntimeError: it does not start; with the end of its log.
        """
        import ray

        address = ray.util.get_node_ip_address()  # the other nodes reach this one by it
        _sweep()
        self._home = Path(tempfile.mkdtemp(prefix=_prefix()))
        self._lock = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        _detached([sys.executable, "-I", "-S", "-c", _REMOVER, str(self._home)])
        try:
            return self._start(f"[{address}]" if ":" in address else address)
        except BaseException:
            self._end()
            raise

    def _start(self, address: str) -> dict[str, str]:
        home = self._home
        with tarfile.open(fileobj=io.BytesIO(self._code)) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none; the archive is ours
            tar.extractall(home / "code")
        environment = {
            **os.environ, "PYTHONPATH": str(home / "code"), "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._bring_kernel(environment)
        clients = home / "cards" / "clients"
        clients.mkdir(0o700, parents=True)
        (home / "cards").chmod(0o700)
        clients.chmod(0o700)
        (clients / "host.key").write_bytes(self._host_key.encode())
        (clients / "host.key").chmod(0o644)
        free = shutil.disk_usage(home).free
        command = [sys.executable, "-m", "csd_engine", "--listen", f"tcp://{address}:0", "--card", str(home / "cards")]
        command += ["--spool", str(home / "spool"), "--members", str(home), "--quota-bytes", str(min(2 << 30, free // 8))]
        command += ["--reserve-bytes", str(min(1 << 30, free // 8)), *self._arguments]
        if "--root" not in self._arguments:  # the host sends all files, and each engine wants a directory that it may read
            (home / "nothing").mkdir()
            command += ["--root", str(home / "nothing")]
        self._log = tempfile.TemporaryFile(dir=home)  # without a name: the engine removes the directory at its end
        output = _detached(command, stdout=subprocess.PIPE, stderr=self._log, env=environment).stdout
        assert output is not None
        self._output = output
        ready = self._ready()
        self._pid = int(ready["pid"])
        (card_file,) = (home / "cards").glob("*.card")
        card = json.loads(card_file.read_bytes())
        return {"address": card["address"], "key": card["key"], "node": socket.gethostname()}

    def _bring_kernel(self, environment: Mapping[str, str]) -> None:
        """Try the host's kernel; where it does not work, on a computer of another kind, compile one if that can be done."""
        for name, content in self._kernel.items():
            (self._home / "code" / name).write_bytes(content)
        with contextlib.suppress(subprocess.TimeoutExpired):
            with contextlib.suppress(ValueError):
                if json.loads(_run("csd_engine.kernels.report", environment))["variant"]:
                    return
            for name in self._kernel:
                (self._home / "code" / name).unlink()
            _run("csd_engine.kernels.build", environment)

    def _ready(self) -> dict[str, str]:
        """Return what the engine says once it serves. The pipe's end comes with the process's end."""
        for line in self._output:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "ready" in message:
                    return message
        raise RuntimeError(self._last_words() or "the engine ended without a word")

    def _last_words(self) -> str:
        lines = os.pread(self._log.fileno(), 1 << 16, 0).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def ended(self) -> str:
        """Wait for the engine's end, and remove what it may have left; return its last words."""
        self._output.read()
        self._end()
        return self._last_words()

    def finish(self) -> None:
        """Wait until no epoch uses the engine, and end it."""
        while any((self._home / "spool").glob("job-*")):  # an epoch has a directory there
            time.sleep(0.2)
        self._end()

    def _end(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)  # the engine looks for that twice a second
        until = time.monotonic() + _END_TIMEOUT_S
        while self._pid >= 0 and _runs(self._pid) and time.monotonic() < until:
            time.sleep(0.05)
        if self._pid >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        shutil.rmtree(self._home, ignore_errors=True)


def _detached(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that is no child of this one; return the shell that has done so, which is over."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    shell = subprocess.Popen(["sh", "-c", '"$@" < /dev/null &', "sh", *command], cwd="/", start_new_session=True, **streams)
    shell.wait()
    return shell


def _run(module: str, environment: Mapping[str, str]) -> bytes:
    """Run a module of csd_engine; return what it prints."""
    return subprocess.run(
        [sys.executable, "-m", module], env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
        timeout=_RUN_TIMEOUT_S,
    ).stdout  # fmt: skip


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _prefix() -> str:
    return f"ddlp-{os.getuid()}-ray-"


def _sweep() -> None:
    """Remove what engines of this user have left that were killed together with their actors."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid() or time.time() - path.stat().st_mtime < 60:
                continue  # not ours, or in the making
            with open(path / "lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
