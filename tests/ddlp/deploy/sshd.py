"""A real sshd for one test on 127.0.0.1, with its own keys and home directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.needs import which
from tests.ports import free_port


class Sshd:
    """`sshd` for this user. `config` makes ``ssh -F config board`` work. Its sessions have `home` as their home directory."""

    def __init__(self, directory: Path, *lines: str) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.config = directory / "ssh_config"
        self.known_hosts = directory / "known_hosts"
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self._lines = lines
        self.home.mkdir(parents=True)
        directory.chmod(0o700)
        for name in ("host", "user"):
            self.keygen(name)
        shutil.copy(directory / "user.pub", directory / "authorized_keys")
        self.port = free_port()
        self.knows()
        self.config.write_text(
            f"Host board\n HostName 127.0.0.1\n Port {self.port}\n User {self.user}\n IdentityFile {directory}/user\n"
            f" IdentitiesOnly yes\n IdentityAgent none\n UserKnownHostsFile {self.known_hosts}\n"
            " GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking ask\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def options(self) -> tuple[str, ...]:
        return ("-F", str(self.config))

    def keygen(self, name: str) -> None:
        for old in (self.directory / name, self.directory / f"{name}.pub"):
            old.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)], check=True)

    def knows(self) -> None:
        """Give the client the server's present host key."""
        key = " ".join((self.directory / "host.pub").read_text().split()[:2])
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key}\n")

    def start(self) -> None:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        here = self.directory
        (here / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {here}/host\nAuthorizedKeysFile {here}/authorized_keys\n"
            f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            + "\n".join(self._lines)
            + ("" if any("SetEnv" in line for line in self._lines) else f"\nSetEnv HOME={self.home} {python_path()}\n")
        )
        sshd = which("sshd")
        assert sshd is not None
        self.process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(here / "sshd_config")], stderr=open(here / "sshd.log", "ab"), start_new_session=True
        )
        end = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, (here / "sshd.log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server and its sessions, but not processes that left their session."""
        if self.process is not None:
            kill_tree(self.process.pid)
            self.process.wait()
            self.process = None


def python_path(*before: Path) -> str:
    """PATH=..., with which a session's python3 is the tests' Python; `before` comes first in the path."""
    first = "".join(f"{one}:" for one in before)
    return f"PATH={first}{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"


def programs(directory: Path, **texts: str) -> Path:
    """Make a directory of shell scripts, to be put first in a session's PATH. `texts` are the scripts by name."""
    directory.mkdir()
    for name, text in texts.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}")
        (directory / name).chmod(0o755)
    return directory


def kill_tree(pid: int) -> None:
    try:
        below = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        below = []
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for child in below:
        kill_tree(child)
