"""TCP ports for servers that tests start as other processes.

A port that the system gave a moment ago it soon gives again, to any connection of any process: then the server can't listen.
So these ports lie below the range that the system gives from.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator

__all__ = ["free_port"]

_FIRST, _END = 12_000, 22_000  # the system gives from 32768 on; sealed streams lie 10,000 above their engine
_WORKERS = 10  # of pytest-xdist: each has a part of the range, so that two never take the same port


def free_port(addresses: tuple[str, ...] = ("0.0.0.0",), steps: tuple[int, ...] = (0,)) -> int:
    """Return a port that is free at all these addresses, as are those that lie these steps above it."""
    while True:
        port = next(_ports)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for address in addresses:
                for step in steps:
                    stack.enter_context(socket.socket()).bind((address, port + step))
            return port


def _row() -> Iterator[int]:
    """Yield this process's ports again and again, from any of them on: another run of the tests may take the same ones."""
    size = (_END - _FIRST) // _WORKERS
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
    start = random.SystemRandom().randrange(size)
    for k in itertools.count(start):
        yield _FIRST + worker * size + k % size


_ports = _row()
