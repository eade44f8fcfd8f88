"""Runs scripts in forks of one process that has imported torch and torchvision: most of a short script's time goes there.

Only for scripts whose start is not what a test is about. `python tests/forks.py` is that process. It takes a line of JSON for
each script on its standard input, and answers with its exit status.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
                "cpus": list(cpus),
            }  # fmt: skip
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            status = json.loads(self._process.stdout.readline())
            return subprocess.CompletedProcess([module or "-c"], status, *(Path(home, name).read_text() for name in "12"))

    def end(self) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # the tests were interrupted while a script ran
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


def main() -> None:
    """Serve. Returns in each fork, where it has run the script."""
    import torch
    import torchvision  # noqa: F401

    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        if (child := os.fork()) == 0:
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        return
    home = Path(request["home"])
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)):
        os.dup2(os.open(home / str(number), flags, 0o600), number)
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
