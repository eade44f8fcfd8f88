"""Runs templates in this process in turn, as `python TEMPLATE ARGUMENTS` does. That saves importing torch each time.

Standard input: JSON, [[path, arguments, ranks], ...]. With 2 ranks it first forks two processes with torchrun's environment.
Prints a line `status of PATH N` after each.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback

import torch
import torchvision  # noqa: F401  imported before the forks, for all of them

from tests.ports import free_port


def template(path: str, arguments: list[str]) -> int:
    """Run a template and return its exit status."""
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code)
            return 1
        return int(ended.code or 0)
    return 0


def forked(path: str, arguments: list[str], ranks: int) -> int:
    """Run a template in several ranks and return the worst exit status."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    children = []
    for rank in range(ranks):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            try:
                status = template(path, arguments)
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            os._exit(status)
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for path, arguments, ranks in json.load(sys.stdin):
        status = template(path, arguments) if ranks == 1 else forked(path, arguments, ranks)
        print("status of", path, int(status), flush=True)
