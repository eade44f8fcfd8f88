"""`python -m ddlp.sources.usercode.node DESCRIPTOR PARENT CPUS`: the process of a `ProcessNode`.

It ends when the process PARENT has ended, also while the user's code runs: a thread reads the socket. That one may be open
still in a fork of the parent, such as a worker of a DataLoader, so the thread looks who the parent is as well.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import sys
import threading
from multiprocessing.connection import Connection

from ddlp.sources.usercode.wire import frames
from ddlp.sources.usercode.work import Answers

_LOOK_S = 2.0


def main(descriptor: int, parent: int, cpus: str) -> None:
    """Make batches until the other side is gone."""
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    wire = Connection(descriptor)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(wire, messages, parent), daemon=True).start()
    gc.freeze()
    answers = Answers()
    with contextlib.suppress(OSError):  # the other side is gone
        while True:
            for frame in frames(answers(messages.get())):
                wire.send_bytes(frame)


def _read(wire: Connection, messages: queue.SimpleQueue[bytes], parent: int) -> None:
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == parent:
            if wire.poll(_LOOK_S):
                messages.put(wire.recv_bytes())
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
