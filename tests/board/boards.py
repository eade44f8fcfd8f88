"""Emulated boards, made and ended by scripts/csd_emulator.sh."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "csd_emulator.sh"


def state() -> Path:
    """The directory that holds the running boards' state."""
    return Path(os.environ.get("DDLP_CSD_STATE", "/var/lib/ddlp-csd-emulator"))


def emulator(*arguments: str, timeout_s: float = 1200, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run scripts/csd_emulator.sh. The time limit allows for making the Debian system first."""
    done = subprocess.run(
        [str(SCRIPT), *arguments], text=True, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )
    assert not check or done.returncode == 0, f"csd_emulator.sh {shlex.join(arguments)}: {done.stderr}{done.stdout}"
    return done


@dataclass(frozen=True)
class Board:
    """A running board. `data` and `spool` are paths on the host, `data_there` and `spool_there` their paths on the board."""

    name: str
    arch: str
    ip: str
    host_ip: str
    port: int
    ssh_config: Path
    data: Path
    spool: Path | None  # None: the spool is the board's own
    debs: Path  # host directory with the packages that a bare board needs
    data_there: str = "/data"
    spool_there: str = "/spool"

    def run(
        self, command: str, *, user: str = "root", check: bool = True, timeout_s: float = 300, data: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the board through ssh, as root or as the ordinary user ddlp. `data` is its standard input."""
        done = subprocess.run(
            ["ssh", "-F", str(self.ssh_config), f"{user}@{self.name}", command],
            text=True,
            capture_output=True,
            timeout=timeout_s,
            input=data or "",
        )
        assert not check or done.returncode == 0, f"{self.name}: {command}: {done.stderr}{done.stdout}"
        return done

    def files(self) -> set[str]:
        """All files on the board, except what a login writes."""
        found = self.run(
            "find / -xdev -path /proc -prune -o -path /dev -prune -o -path /run -prune -o -path /var/log -prune "
            r"-o -name __pycache__ -prune -o -path '/home/*/.cache*' -prune -o -print; find /spool /data"
        )
        return set(found.stdout.splitlines())

    def engines(self) -> list[str]:
        """The engine's running programs there."""
        programs = self.run("for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $one; echo; done 2> /dev/null").stdout
        return [line for line in programs.splitlines() if "csd_engine" in line]

    def kill(self) -> None:
        """Pull the plug."""
        emulator("kill", "--name", self.name)

    def start(self) -> None:
        """Switch it on again after `kill`, with the same disk, keys and address."""
        emulator("start", "--name", self.name)

    def freeze(self) -> None:
        emulator("freeze", "--name", self.name)

    def thaw(self) -> None:
        emulator("thaw", "--name", self.name)

    def cable(self, plugged: bool) -> None:
        """Plug in the network cable, or unplug it."""
        emulator("net", "--name", self.name, "up" if plugged else "down")

    def down(self) -> None:
        emulator("down", "--name", self.name)


def raise_board(word: str, *options: str) -> Board:
    """Make a board. Its name has this process's id and the word, of at most two letters."""
    name = f"t{os.getpid()}-{word}"
    emulator("up", "--name", name, *options)
    # The record consists of shell assignments, quoted as by the shell.
    record = dict(word.split("=", 1) for word in shlex.split((state() / name / "record").read_text()))
    return Board(
        name=name,
        arch=record["arch"],
        ip=record["ip"],
        host_ip=record["host_ip"],
        port=int(record["port"]),
        ssh_config=state() / name / "ssh_config",
        data=Path(record["data"]),
        spool=Path(record["spool"]) if record["spool"] else None,
        debs=Path(record["base"]).parent / "debs",
    )


def take_down(of_process: int | None = None) -> None:
    """Take down what a process has left of its boards; None: all of processes that have ended. Ctrl-C leaves them no time."""
    for board in state().glob("t*-*"):
        pid = board.name[1:].partition("-")[0]
        if pid == str(of_process) if of_process else not Path("/proc", pid).exists():
            emulator("down", "--name", board.name, check=False)


def path_without_cross_compilers(programs: Path) -> str:
    """A PATH with everything except compilers for boards. Fills the directory `programs` for it."""
    programs.mkdir()
    for directory in os.environ["PATH"].split(":"):
        for path in Path(directory).glob("*"):
            if not path.name.startswith("arm-linux-") and not (programs / path.name).is_symlink():
                (programs / path.name).symlink_to(path)
    return str(programs)


def why_not() -> str | None:
    """Why no board can be made here, or None."""
    if os.geteuid() != 0:
        return "they need root"
    if shutil.which("apt-get") is None:
        return "their system is made by Debian's or Ubuntu's apt-get"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
    )
    return None if tried.returncode == 0 else f"this root may not make namespaces and mounts: {tried.stderr.strip()}"
