"""Keeps an engine running: `python -m csd_engine.tools.supervisor HOME`, started by systemd, or by hand.

HOME/engine.json       {"arguments": [...]}: the engine's command line, read anew at each start
HOME/run/lock          held (flock) while this runs: one supervisor a home
HOME/run/supervisor.pid
HOME/run/state         one line: `starting`, `ready ADDRESS PID`, `failed SECONDS REASON` (until it is ready), `stopped`
HOME/run/engine.log    what the engine says; engine.log.1 what it said before; 1 MiB each at most

An engine that ends by itself is started again, after 1 s, 2 s, 4 s ... a minute at most. SIGTERM ends both, cleanly. The engine
ends when this process is gone, however that came. Only the standard library is imported: this costs a bare interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

__all__ = ["Supervisor", "main"]

_LOG_BYTES = 1 << 20
_PAUSE_S = (1.0, 60.0)  # after the first failure, and at most
_STEADY_S = 60.0  # an engine that ran so long did not fail at its start
_GRACE_S = 28.0  # for the engine to retire, end its workers and clean its spool; less than systemd waits for this process
_WORDS_BYTES = 2000  # of the end of its output, for the state


class _Log:
    """A log file of bounded size: when it is full it becomes `.1`, and a fresh one is begun."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stream = open(path, "ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Add to the log. If the disk is full, or no fresh file can be begun, these words are lost, and nothing else."""
        with contextlib.suppress(OSError):
            if self._stream.tell() + len(data) > _LOG_BYTES:
                self._begin_anew()
            self._stream.write(data)

    def _begin_anew(self) -> None:
        """Begin a fresh file. The stream is an open file at any time: a step that fails is tried again at the next write."""
        with contextlib.suppress(FileNotFoundError):  # renamed the last time already, or somebody has removed it
            os.replace(self.path, self.path + ".1")
        fresh = open(self.path, "ab", buffering=0)
        full, self._stream = self._stream, fresh
        full.close()

    def say(self, text: str) -> None:
        """Add a line of our own."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervisor {text}\n".encode())


class Supervisor:
    """Keeps one engine running.

    Raises:
        BlockingIOError: another one runs for this home.
        OSError: HOME/run cannot be written.
    """

    def __init__(self, home: str) -> None:
        self._home = os.path.abspath(home)
        self._run = os.path.join(self._home, "run")
        os.makedirs(self._run, mode=0o700, exist_ok=True)
        self._lock = os.open(os.path.join(self._run, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._log = _Log(os.path.join(self._run, "engine.log"))
        self._words = b""
        self._failures = 0
        self._stop = False
        self._woken, self._wake = os.pipe()

    def run(self) -> None:
        """Keep the engine running until SIGTERM or SIGINT. Call from the main thread."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        self._write("supervisor.pid", str(os.getpid()))
        try:
            while not self._stop:
                self._round()
        finally:
            self._write("state", "stopped")
            self._remove("supervisor.pid")

    def _round(self) -> None:
        """Run the engine to its end, and wait before the next one unless we are told to stop."""
        began = time.monotonic()
        reason = self._once()
        if self._stop:
            return
        self._failures = 1 if time.monotonic() - began >= _STEADY_S else self._failures + 1
        pause_s = min(_PAUSE_S[1], _PAUSE_S[0] * 2 ** min(self._failures - 1, 30))
        self._log.say(f"the engine ended ({reason}); it is started again in {pause_s:g} s")
        self._write("state", f"failed {pause_s:g} {reason}")
        self._sleep(pause_s)

    def _end(self, *_: Any) -> None:
        self._stop = True

    def _once(self) -> str:
        """Run the engine to its end; return why it ended."""
        self._words = b""
        if not self._failures:  # after a failure its reason stays: it is still true while the engine is tried again
            self._write("state", "starting")
        try:
            engine = self._start()
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"it cannot be started: {error!r}"
        self._log.say(f"started the engine, process {engine.pid}")
        try:
            self._listen(engine)
        finally:
            status = self._finish(engine)
        words = " ".join(self._words.decode("utf-8", "replace").split())
        return f"status {status}: {words or 'it said nothing'}"

    def _start(self) -> "subprocess.Popen[bytes]":
        with open(os.path.join(self._home, "engine.json"), encoding="utf-8") as stream:
            arguments: List[str] = json.load(stream)["arguments"]
        environment: Dict[str, str] = dict(os.environ)
        # The path is not resolved: after an upgrade HOME/current leads to another build.
        environment["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        environment["PYTHONSAFEPATH"] = "1"
        environment["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads do nothing here, and take a fifth of its import
        command = [sys.executable, "-m", "csd_engine", "--parent", str(os.getpid()), *arguments]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=environment
        )

    def _listen(self, engine: "subprocess.Popen[bytes]") -> None:
        """Pass on what the engine says until it has ended, or we are told to stop."""
        assert engine.stdout is not None and engine.stderr is not None
        first, streams = b"", [engine.stdout.fileno(), engine.stderr.fileno()]
        while streams and not self._stop:
            for descriptor in select.select([*streams, self._woken], [], [])[0]:
                if descriptor == self._woken:
                    self._drain()
                    continue
                data = os.read(descriptor, 65536)
                if not data:
                    streams.remove(descriptor)
                elif descriptor == engine.stderr.fileno():
                    self._log.write(data)
                    self._words = (self._words + data)[-_WORDS_BYTES:]
                else:
                    first += data
                    self._announce(first)

    def _announce(self, line: bytes) -> None:
        """The engine's first line on its standard output says where it listens."""
        try:
            announcement = json.loads(line)
            self._write("state", f"ready {announcement['ready']} {announcement['pid']}")
        except (ValueError, KeyError, TypeError):
            pass  # not whole yet

    def _finish(self, engine: "subprocess.Popen[bytes]") -> int:
        """End the engine if it runs; what it says at the end goes to the log."""
        assert engine.stdout is not None and engine.stderr is not None
        if self._stop and engine.poll() is None:
            engine.terminate()
        try:
            _, rest = engine.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            engine.kill()
            _, rest = engine.communicate()
        self._log.write(rest or b"")
        self._words = (self._words + (rest or b""))[-_WORDS_BYTES:]
        return engine.returncode

    def _drain(self) -> None:
        try:
            while os.read(self._woken, 4096):
                pass
        except BlockingIOError:
            pass

    def _sleep(self, seconds: float) -> None:
        """Sleep, unless a signal comes."""
        select.select([self._woken], [], [], seconds)
        self._drain()

    def _write(self, name: str, text: str) -> None:
        """Write a file of HOME/run, whole or not at all."""
        path = os.path.join(self._run, name)
        try:
            with open(path + ".part", "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
            os.replace(path + ".part", path)
        except OSError as error:
            self._log.say(f"{path} cannot be written: {error}")

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._run, name))
        except OSError:
            pass


def _detach(home: str) -> None:
    """Run this program once more, in a session of its own without a terminal, and leave it to itself."""
    run = os.path.join(home, "run")
    os.makedirs(run, mode=0o700, exist_ok=True)
    with open(os.path.join(run, "engine.log"), "ab") as words:
        subprocess.Popen(
            [sys.executable, "-m", "csd_engine.tools.supervisor", home], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=words, cwd="/", start_new_session=True,
        )  # fmt: skip


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m csd_engine.tools.supervisor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("home", metavar="HOME", help="the engine's directory")
    parser.add_argument("--detach", action="store_true", help="go on in the background and return at once")
    options = parser.parse_args(arguments)
    home = os.path.abspath(options.home)
    if options.detach:
        _detach(home)
        return 0
    try:
        supervisor = Supervisor(home)
    except BlockingIOError:
        print(f"supervisor: one runs already for {home}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"supervisor: {home}/run cannot be used: {error}. Make it writable.", file=sys.stderr)
        return 2
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
