"""`ProcessNode`: a node that is a process on this machine; and `python -m ddlp.sources.usercode.process`, which runs in it.

The process is a Python of its own, not a fork, since a fork of a process with threads may hang, and does not import the user's
script again. They talk over a socket that only they have.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from ddlp.process.forks import no_forks
from ddlp.sources.usercode.wire import NodeGone, WireNode, frames
from ddlp.sources.usercode.work import Answers

__all__ = ["ProcessNode"]

_ENDS_S = 5.0
_LOOK_S = 2.0


class ProcessNode(WireNode):
    """A process of this machine as a node. It ends with this process, however that ends.

    ``cpus``: the CPUs on which it runs, as "0,1"; None: all of this process.
    """

    def __init__(self, cpus: str | None = None) -> None:
        super().__init__()
        self._cpus = cpus
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Kill the process: there is nothing in it that could be lost."""
        if self._process is not None:
            self._process.kill()
            super().close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_S)

    def _start(self) -> None:
        with no_forks():
            ours, theirs = socket.socketpair()
            with theirs:
                given = [str(theirs.fileno()), str(os.getpid()), self._cpus or ""]
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "ddlp.sources.usercode.process", *given],
                        pass_fds=(theirs.fileno(),),
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                        start_new_session=True,  # Ctrl-C is for this process, which then ends that one
                    )
                except OSError as error:
                    ours.close()
                    raise NodeGone(f"it does not start: {error}") from None
        self._connect(ours)

    def _why(self) -> str:
        assert self._process is not None
        try:
            return f"its process (pid {self._process.pid}) has ended, with code {self._process.wait(_ENDS_S)}"
        except subprocess.TimeoutExpired:
            return f"its process (pid {self._process.pid}) does not answer any more"


# -- in the process --------------------------------------------------------------------------------------------------------


def main(descriptor: int, parent: int, cpus: str) -> None:
    """Make batches until the other side is gone: the process ``parent``, whose socket this is.

    A thread reads the socket, also while the user's code runs. The other end may be open still in a fork of the parent, such as
    a worker of a DataLoader, so the thread looks who the parent is as well.
    """
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
