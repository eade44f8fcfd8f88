"""Starts a worker process: `python -m csd_engine.service.worker_start`, with the arguments of `csd_engine.service.worker`.

What a worker imports takes a second or more on a small board, and may hang where Python lies on a network file system. So the
process is bound to the engine's life first.
"""

import ctypes
import signal
import sys

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process when its parent dies: a process that hangs does not see its pipe close."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError, TypeError):
        pass


def _main() -> None:
    die_with_parent()
    try:
        from csd_engine.service.worker import main

        main()
    except MemoryError:  # outside a sample, whose errors are reported: while it starts, or between two leases
        sys.exit("csd_engine: a worker has no memory left and ends. The engine starts another")


if __name__ == "__main__":
    _main()
