"""A shell on the device, through the system's OpenSSH: ~/.ssh/config, the agent and jump hosts work as the user knows them.

One ssh process holds the connection (a ControlMaster) and every command goes through it. Its remote end is a `cat` whose
standard input is a pipe of this process: however this process ends, the pipe closes, `cat` ends, and ssh with it.

What a device prints is text of a stranger: here it is bounded, and made fit for a terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from csd_engine.protocol.printable import printable_lines
from ddlp.deploy.sshfaults import ShellError, Slow, explain

__all__ = ["CommandFailed", "Done", "Shell", "ShellError", "Slow", "number_in"]

CONNECT_TIMEOUT_S = 15
_READY = "ddlp-shell-ready"
_MARK = f"{_READY}\n".encode()  # stands between the output of a login shell (its .bashrc, say) and a command's
_OWN_FAILURE = 255  # the exit status if ssh itself failed, not the command
_TICK_S = 1.0
_END_S = 2.0
_MOST_BYTES = 16 << 20  # that a command may print; the longest list that we ask for is a log
_LAST_BYTES = 1 << 16  # of what is printed on standard error, or while we wait
_LONGEST_BASE = 60  # of a control socket's directory: a socket's path has at most 107 bytes, and ssh adds some


class CommandFailed(ShellError):
    """A command on the device ended with an error."""


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit status (minus the signal if ssh was killed here) and its output, fit for a terminal.

    Of the standard error only the end is here.
    """

    status: int
    out: str
    err: str


def _text(data: bytes | bytearray) -> str:
    """Return what a device has printed as text that a terminal shows and does not obey."""
    return printable_lines(data.decode(errors="replace").replace("\r\n", "\n"))


def number_in(text: str) -> int | None:
    """Return the number that a device has printed, of at most 18 digits; None: it is none."""
    text = text.strip()
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


class _Tail:
    """Reads a pipe to its end in a thread, and keeps the end of what came: nobody waits for us, and it takes no memory."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        self._pipe, self._last = pipe, bytearray()
        self._thread = threading.Thread(target=self._read, name="ddlp-ssh-words", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while piece := os.read(self._pipe.fileno(), _LAST_BYTES):
                self._last = (self._last + piece)[-_LAST_BYTES:]

    def text(self) -> str:
        """Return what came last. Waits a moment for the end."""
        self._thread.join(_TICK_S)
        return _text(self._last)


def _file_of(data: bytes) -> IO[bytes]:
    """A nameless file that holds these bytes, open at its beginning."""
    file = tempfile.TemporaryFile()
    file.write(data)
    file.seek(0)
    return file


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an ssh process by closing its input; kill it if that does not help."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Shell:
    """Commands on one device.

    The first command connects. `close` ends the connection, and so does the end of this process, however it ends.

    Args:
        destination: as for ssh: ``user@host``, or a name from ~/.ssh/config.
        ssh_options: given to ssh before the destination. They override the options set here: ConnectTimeout, and
            BatchMode=yes, so that nothing waits for a person.
    """

    def __init__(self, destination: str, ssh_options: Sequence[str] = ()) -> None:
        if not destination or destination.startswith("-") or any(c.isspace() for c in destination):
            raise ShellError(f"{destination!r} is no destination for ssh. Write user@host, or a name from ~/.ssh/config.")
        self.destination = destination
        self.ssh_options = tuple(ssh_options)
        self._directory: Path | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._words: _Tail | None = None  # what the master says on its standard error

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the connection

    def _ssh(self, *arguments: str) -> list[str]:
        """An ssh command line through the control socket."""
        own = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "-o", "ConnectionAttempts=1"]
        own += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=INFO", "-T"]
        own += ["-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no", "-o", "RemoteCommand=none", "-o", "ControlPersist=no"]
        return ["ssh", "-S", str(self._directory and self._directory / "s"), *arguments, *self.ssh_options, *own]

    def _command(self, script: str) -> list[str]:
        """An ssh command line that runs a script of /bin/sh through the connection."""
        return [*self._ssh("-o", "ControlMaster=no"), self.destination, f"exec /bin/sh -c {shlex.quote(script)}"]

    def connect(self) -> None:
        """Connect, if not connected yet; raises ShellError with the reason and the way out."""
        if self._master is not None:
            return
        if shutil.which("ssh") is None:
            raise ShellError("there is no ssh on this host. Install OpenSSH's client: apt install openssh-client.")
        base = tempfile.gettempdir()
        self._directory = Path(tempfile.mkdtemp(prefix="ddlp-ssh-", dir=base if len(base) <= _LONGEST_BASE else "/tmp"))
        try:
            self._master = subprocess.Popen(
                [*self._ssh("-o", "ControlMaster=yes"), self.destination, f"echo {_READY}; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._words = _Tail(self._master.stderr)
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> None:
        """Wait until the remote shell prints `_READY`. A login shell may print greetings before it."""
        assert self._master is not None and self._master.stdout is not None and self._words is not None
        patience_s = None if "batchmode=no" in " ".join(self.ssh_options).lower() else 4.0 * CONNECT_TIMEOUT_S
        until = None if patience_s is None else time.monotonic() + patience_s
        said = b""
        while _MARK not in said:
            if not select.select([self._master.stdout], [], [], _TICK_S)[0]:
                if until is not None and time.monotonic() > until:
                    raise explain(self.destination, self.ssh_options, f"Connection timed out after {patience_s:g} s")
                continue
            piece = os.read(self._master.stdout.fileno(), 4096)
            if not piece:
                self._master.wait()
                raise explain(self.destination, self.ssh_options, self._words.text(), _text(said))
            said = (said + piece)[-_LAST_BYTES:]

    # -- commands

    def run(
        self,
        command: str,
        *,
        input: bytes | IO[bytes] = b"",
        timeout_s: float,
        waiting: Callable[[int], None] | None = None,
    ) -> Done:
        """Run a POSIX shell command on the device.

        Args:
            command: for /bin/sh; quote what comes from elsewhere with `shlex.quote`.
            input: its standard input: bytes, or a file that is open for reading, sent from its present position.
            timeout_s: after this time `Slow` is raised; the command may go on running on the device.
            waiting: called about once a second with the bytes of the input sent so far.

        Raises:
            ShellError: not connected, connection lost, or the time is over. A failed command does not raise: see `Done`.
        """
        if isinstance(input, bytes):  # into a file: after a timeout, communicate() loses the bytes that it has not sent
            with _file_of(input) as file:
                return self.run(command, input=file, timeout_s=timeout_s, waiting=waiting)
        began, out = time.monotonic(), bytearray()
        with self._process(command, input) as (process, words):
            assert process.stdout is not None
            while True:
                left_s = timeout_s - (time.monotonic() - began)
                if select.select([process.stdout], [], [], max(0.0, min(_TICK_S, left_s)))[0]:
                    piece = os.read(process.stdout.fileno(), 1 << 16)
                    out += piece
                    if not piece:
                        break
                    if len(out) > _MOST_BYTES:
                        raise ShellError(
                            f"{self.destination} has printed more than {_MOST_BYTES >> 20} MiB: {command.strip():.80}. "
                            "Run a command there by ssh, and see what its login shell prints."
                        )
                elif time.monotonic() - began >= timeout_s:
                    raise Slow(
                        f"{self.destination} has not finished within {timeout_s:g} s: {command.strip():.80}. Is it "
                        "overloaded, or its disk or network file system stuck? Try again."
                    )
                elif waiting is not None:
                    waiting(os.lseek(input.fileno(), 0, os.SEEK_CUR))  # ssh shares the position
            process.wait()
        whole = bytes(out)
        done = Done(process.returncode, _text(whole.partition(_MARK)[2] if _MARK in whole else whole), words.text())
        self._check_connected(done)
        return done

    @contextlib.contextmanager
    def _process(self, command: str, input: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], _Tail]]:
        """Start a command; gives its ssh, and what that says on its standard error. At the end of the block it is ended."""
        self.connect()
        process = subprocess.Popen(
            self._command(f"echo {_READY}; {command}"), stdin=input, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            yield process, _Tail(process.stderr)
        finally:
            process.kill()
            process.wait()
            # Not read to its end: the master has the pipe open as well, while the command runs on the device.
            process.stdout.close()

    def must(self, command: str, doing: str, *, input: bytes | IO[bytes] = b"", timeout_s: float) -> str:
        """Run a command that has to succeed; return what it printed.

        Args:
            command, input, timeout_s: as for `run`.
            doing: for the message: "unpacking the engine".

        Raises:
            CommandFailed: it failed; the message quotes its output.
            ShellError: as `run`.
        """
        done = self.run(command, input=input, timeout_s=timeout_s)
        if done.status == 0:
            return done.out
        said = " ".join((done.err.strip() or done.out.strip() or f"exit status {done.status}").split())[-600:]
        way_out = "Free some space there" if "No space left" in said else "Mend that and do the same again"
        raise CommandFailed(f"{doing} failed on {self.destination}: {said}. {way_out}.")

    @contextlib.contextmanager
    def stream(
        self, command: str, doing: str, *, input: bytes = b"", timeout_s: float | None = None
    ) -> Iterator[Callable[[int], bytes]]:
        """Run a command that has to succeed, and read its output while it runs. Use with ``with``.

        Gives a function that returns the next bytes of output: at most as many as asked for, none at the end. At the end of
        the block this method waits for the command's end. If the block raises an exception, it does not wait.

        Args:
            command, input: as for `run`.
            doing: for the message: "comparing data sets".
            timeout_s: for the whole command; None: no limit.

        Raises:
            CommandFailed: it ended with an error; the message quotes it.
            ShellError: as `run`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with _file_of(input) as stdin, self._process(command, stdin) as (process, words):
            assert process.stdout is not None
            out = process.stdout.fileno()

            def read(count: int) -> bytes:
                while not select.select([out], [], [], _TICK_S)[0]:
                    if process.poll() is not None:  # the master may hold the pipe's other end for longer
                        return b""
                    if until is not None and time.monotonic() > until:
                        raise Slow(
                            f"{doing} on {self.destination} has not finished within {timeout_s:g} s. Is it overloaded? "
                            "Try again."
                        )
                return os.read(out, count)

            before = b""
            while not before.endswith(_MARK) and (byte := read(1)):  # the caller reads what follows the mark
                before = (before + byte)[-_LAST_BYTES:]
            yield read
            while read(1 << 16):
                pass
            process.wait()
        said = " ".join(words.text().split())[-600:]
        done = Done(process.returncode, "", said)
        self._check_connected(done)
        if done.status:
            raise CommandFailed(f"{doing} failed on {self.destination}: {said or f'exit status {done.status}'}.")

    def _check_connected(self, done: Done) -> None:
        """Raise ShellError if a command ended because the connection ended."""
        if done.status == _OWN_FAILURE and self._master is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # If the connection has ended, the master ends as well, perhaps a little later than the command's ssh.
                self._master.wait(_TICK_S)
        if done.status == _OWN_FAILURE and (self._master is None or self._master.poll() is not None):
            raise ShellError(
                f"the connection to {self.destination} broke off ({' '.join(done.err.split())[-200:] or 'without a word'}). "
                "See whether the device still runs, then do the same again: what was done stays done."
            )

    def put(self, data: bytes, path: str, mode: int = 0o644) -> None:
        """Write a file on the device, whole or not at all; directories above it are made, for this user alone.

        Raises:
            CommandFailed: it can't be written.
            ShellError: as `run`.
        """
        there, part = shlex.quote(path), shlex.quote(f"{path}.part")
        command = (
            f"umask 077; mkdir -p {shlex.quote(os.path.dirname(path) or '.')} && cat > {part} "
            # compare the size: a connection that breaks off ends the input as well
            f"&& [ $(wc -c < {part}) -eq {len(data)} ] && chmod {mode:o} {part} && mv -f {part} {there} "
            f"|| {{ rm -f {part}; exit 1; }}"
        )
        self.must(command, f"writing {path}", input=data, timeout_s=300)

    def attach(self, command: str) -> int:
        """Run one program, given as a line of shell; its output goes to this process's standard output, line by line.

        Returns its exit status. The program is ended on the device when this process is interrupted, or is gone.
        """
        self.connect()
        # Without a terminal, sshd does not end a command when its client is gone. So the end of the input ends it here.
        script = (
            f"exec 3<&0; {{ exec {command}\n}} 3<&- & c=$!; (cat; kill $c) <&3 3<&- >/dev/null 2>&1 & w=$!; exec 3<&-; "
            "wait $c; s=$?; kill $w 2>/dev/null; exit $s"
        )
        process = subprocess.Popen(
            self._command(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        try:
            while line := process.stdout.readline(_LAST_BYTES):  # of a longer one a part
                print(_text(line), end="", flush=True)
            return process.wait()
        finally:
            process.stdout.close()
            _end(process)

    def close(self) -> None:
        """Disconnect. May be called again."""
        master, self._master = self._master, None
        if master is not None:
            _end(master)
            assert master.stdout is not None
            master.stdout.close()
        self._words = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
