"""A device on this machine behind a real sshd, and functions of the deploy tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from ddlp import DDLPLoader, ImageFiles, cli
from ddlp.deploy import survey
from ddlp.deploy.shell import Shell
from tests.ddlp.deploy.sshd import Sshd
from tests.engine_process import make_jpegs, until
from tests.ports import free_port

# `ddlp` as another process, which measures the device's images/s only for a moment, as `quicken` does.
QUICK_DDLP = """
import sys
from ddlp import cli
from ddlp.deploy import deployment
deployment._RATE_S = 0.1
sys.exit(cli.main())
"""

# A fake systemd of the user: HOME/may says who may make the user linger, HOME/lingers whether the user lingers.
SYSTEMD = {
    "id": "case $1 in -u) echo 1000 ;; *) echo user ;; esac\n",
    "sudo": '[ "$(cat "$HOME/may")" = sudo ] && shift && AS_ROOT=1 "$@"\n',
    "loginctl": """\
case $1 in
  show-user) [ -e "$HOME/lingers" ] && echo Linger=yes || echo Linger=no ;;
  enable-linger) [ "$(cat "$HOME/may")" = polkit ] || [ "$AS_ROOT" = 1 ] || exit 1; : > "$HOME/lingers" ;;
esac
""",
    "systemctl": """\
case $* in
  *is-enabled*) [ -e "$HOME/enabled" ] ;;
  *enable*) : > "$HOME/enabled" ;;
  *start*) PYTHONPATH=$HOME/.ddlp/csd0/current python3 -m csd_engine.tools.supervisor "$HOME/.ddlp/csd0" --detach ;;
esac
""",
}


class Device:
    """A device on this machine: an sshd, data whose path differs from the host's, and a spool that both see."""

    def __init__(self, sshd: Sshd, base: Path) -> None:
        self.sshd = sshd
        self.data_here, self.data_there = base / "data here", base / "data there"
        self.spool_here, self.spool = base / "spool here", base / "spool"
        self.shown = self.data_here  # the directory that is given as the data on this host
        self.home = sshd.home / ".ddlp" / "csd0"
        self.data_here.mkdir(parents=True)
        self.paths = make_jpegs(self.data_here, np.random.default_rng(3))
        self.data_there.symlink_to(self.data_here)
        self.spool.mkdir()
        self.spool_here.symlink_to(self.spool)
        self.port = free_port()

    def arguments(self, *more: str) -> list[str]:
        return [
            "deploy", "board", "--name", "csd0", *self.sshd.options, "--root", str(self.data_there), "--host-root",
            str(self.shown), "--spool", str(self.spool), "--host-spool", str(self.spool_here), "--listen-port", str(self.port),
            "--reserve-bytes", "1M", "--workers", "1", "--kernel", "none", *more,  # test_kernel.py compiles it
        ]  # fmt: skip

    def read(self, name: str) -> str:
        path = self.home / "run" / name
        return path.read_text().strip() if path.exists() else ""

    def supervisor(self) -> int:
        return int(self.read("supervisor.pid") or 0)

    def engine(self) -> int:
        return int(until(lambda: self.read("state").startswith("ready") and self.read("state"), 30, "an engine").split()[2])

    def look(self) -> survey.Survey:
        with Shell("board", self.sshd.options) as shell:
            return survey.survey(shell, "~/.ddlp/csd0", str(self.spool), [])


def ddlp(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Run a command, check its exit status, return its output."""
    capsys.readouterr()
    got = cli.main(arguments)
    out, err = capsys.readouterr()
    assert got == status, out + err
    return out + err


def epoch(device: Device, more: Sequence[Callable] = (), **arguments: object) -> dict[int, torch.Tensor]:
    transform = Compose([RandomResizedCrop(32), RandomHorizontalFlip(), *more, ToTensor()])
    paths = [str(device.data_here / path) for path in device.paths]
    torch.manual_seed(0)
    loader = DDLPLoader(ImageFiles(paths, list(range(len(paths))), transform), 2, shuffle=True, seed=4, **arguments)
    found = {int(t): image for images, targets in loader for image, t in zip(images, targets)}
    device.report = loader.report()
    assert len(found) == len(paths)
    return found


def tree(*directories: Path) -> dict[str, tuple[float, int]]:
    found = {}
    for directory in directories:
        for path in directory.rglob("*"):
            if path.name not in ("engine.log", ".lock") and "__pycache__" not in str(path) and "here-" not in path.name:
                status = path.lstat()
                found[str(path)] = (status.st_mtime, status.st_ino)
    return found


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
