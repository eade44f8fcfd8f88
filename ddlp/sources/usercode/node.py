"""`python -m ddlp.sources.usercode.node DESCRIPTOR PARENT CPUS`: the process of a `ProcessNode`.

It ends when the process PARENT has ended, also while the user's code runs: a thread reads the socket. That one may be open
still in a fork of the parent, such as a worker of a DataLoader, so the thread looks who the parent is as well.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import queue
import sys
import threading
from multiprocessing.connection import Connection

from ddlp.sources.usercode.process import READY, answer
from ddlp.sources.usercode.tree import Encoded
from ddlp.sources.usercode.work import FAILED, Answer, Maker

_LOOK_S = 2.0


def main(descriptor: int, parent: int, cpus: str) -> None:
    """Make batches until the other side is gone."""
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    wire = Connection(descriptor)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(wire, messages, parent), daemon=True).start()
    gc.freeze()
    maker: Maker | None = None
    with contextlib.suppress(OSError):  # the other side is gone
        while True:
            message = pickle.loads(messages.get())
            if isinstance(message, bytes):
                maker = None  # the memory of the data set before is free first
                said = Answer(0, READY, "", Encoded(b"", []), 0.0)
                try:
                    maker = Maker(message)
                except Exception as error:
                    said = said._replace(kind=FAILED, text=f"{type(error).__name__}: {error}"[:2000])
                answer(wire, said)
            else:
                assert maker is not None
                answer(wire, maker.make(*message))


def _read(wire: Connection, messages: queue.SimpleQueue[bytes], parent: int) -> None:
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == parent:
            if wire.poll(_LOOK_S):
                messages.put(wire.recv_bytes())
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
