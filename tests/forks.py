"""Runs scripts in forks of one process that has imported torch and torchvision: most of a short script's time goes there.

Only for scripts whose start is not what a test is about. `python tests/forks.py` is that process. It takes a line of JSON for
each script on its standard input, and answers with its exit status; at once, with 0, for one that serves.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import signal
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT_S = 280  # for a script: then it shows its stacks and ends


class Forks:
    """The process. `run` starts a script; its arguments and result are like those of `subprocess.run`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(
        self, *, code: str = "", module: str = "", arguments: Sequence[str] = (), given: str = "", cwd: Path = REPOSITORY,
        environment: Mapping[str, str], cpus: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run ``code``, or a module as ``python -m`` does, on these CPUs (none: all). ``given`` is its standard input."""
        with tempfile.TemporaryDirectory() as home:
            for name, text in (("code.py", code), ("0", given)):
                Path(home, name).write_text(text)
            request = {
                "home": home, "module": module, "arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment),
                "cpus": list(cpus), "serves": False,
            }  # fmt: skip
            status = self._ask(request)
            return subprocess.CompletedProcess([module or "-c"], status, *(Path(home, name).read_text() for name in "12"))

    def serve(self, module: str, home: Path) -> tuple[IO[str], IO[str]]:
        """Run a module that answers on its standard output what is written to its standard input. Returns these two."""
        for name in "01":
            os.mkfifo(home / name)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._ask({
            "home": str(home), "module": module, "arguments": [], "cwd": str(REPOSITORY), "environment": environment,
            "cpus": [], "serves": True,
        })  # fmt: skip
        return open(home / "0", "w"), open(home / "1")

    def _ask(self, request: dict[str, Any]) -> int:
        """Return a script's exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # the tests were interrupted while a script ran, or one has left processes behind
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            left = self._left()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            assert not left, f"scripts have left processes: {left}"

    def _left(self) -> dict[int, str]:
        """Return the processes that can still write into the pipe, with their commands."""
        assert self._process.stdout is not None
        pipe = os.readlink(f"/proc/self/fd/{self._process.stdout.fileno()}")
        left = {}
        for file in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if os.readlink(file) == pipe and os.stat(file, follow_symlinks=False).st_mode & stat.S_IWUSR:
                    process = file.parents[1]
                    left[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return left


def main() -> None:
    """Serve. Returns in each fork, where it has run the script."""
    import torch
    import torchvision  # noqa: F401

    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        if (child := os.fork()) == 0:
            break
        print(0 if request["serves"] else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        return
    home = Path(request["home"])
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)):
        os.dup2(os.open(home / str(number), flags, 0o600), number)
    if not request["serves"]:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    sys.stdin = open(0, closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
        torch.set_num_threads(len(request["cpus"]))
    if request["module"]:
        sys.argv = [request["module"], *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *request["arguments"]]
        runpy.run_path(str(home / "code.py"), run_name="__main__")


if __name__ == "__main__":
    main()
