"""`ProcessNode`: an executor whose node is a process on this machine.

The process is a Python of its own, not a fork, since a fork of a process with threads may hang, and does not import the user's
script again. They talk over a socket that only they have. What the process is sent is a pickle; what it answers is not: a line
of JSON, the header of a batch, then its buffers, each received into memory of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from ddlp.sources.host.keyed_samples import KeyedBatch
from ddlp.sources.usercode.executor import NodeGone, NodeUnfit
from ddlp.sources.usercode.tree import MAX_BUFFERS, MAX_BYTES, MAX_HEADER_BYTES, Encoded
from ddlp.sources.usercode.work import FAILED, MADE, NO_TREE, Answer, Work

__all__ = ["ProcessNode", "answer", "receive"]

READY = "ready"
_MAX_LINE = 1 << 20
_ENDS_S = 5.0


class ProcessNode:
    """A process of this machine as a node. It ends with this process, however that ends.

    ``cpus``: the CPUs on which it runs, as "0,1"; None: all of this process.
    """

    def __init__(self, cpus: str | None = None) -> None:
        self._cpus = cpus
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Connection | None = None
        self._has = ""  # the digest of the work that it has

    def begin(self, work: Work) -> None:
        """Start the process, if need be, and send it the work."""
        if self._process is None:
            self._start()
        if self._has != work.digest:
            self._send(work.content)
            answered = self._receive()
            if answered.kind != READY:
                raise NodeUnfit(f"it can't load the data set: {answered.text}")
            self._has = work.digest

    def submit(self, task: int, batch: KeyedBatch) -> None:
        """Send a task."""
        self._send((task, batch))

    def result(self) -> Answer:
        """Wait for the next answer."""
        return self._receive()

    def close(self) -> None:
        """Kill the process: there is nothing in it that could be lost."""
        if self._process is not None:
            self._process.kill()  # which ends a call that waits for it; the socket is closed with this object
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_S)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            given = [str(theirs.fileno()), str(os.getpid()), self._cpus or ""]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ddlp.sources.usercode.node", *given],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                    start_new_session=True,  # Ctrl-C is for this process, which then ends that one
                )
            except OSError as error:
                ours.close()
                raise NodeGone(f"it does not start: {error}") from None
        self._wire = Connection(ours.detach())

    def _send(self, message: Any) -> None:
        assert self._wire is not None
        try:
            self._wire.send(message)
        except (OSError, ValueError):
            raise NodeGone(self._why()) from None

    def _receive(self) -> Answer:
        assert self._wire is not None
        try:
            return receive(self._wire)
        except (EOFError, OSError):
            raise NodeGone(self._why()) from None
        except ValueError as error:
            raise NodeGone(f"its answer is damaged: {error}") from None

    def _why(self) -> str:
        assert self._process is not None
        try:
            return f"its process (pid {self._process.pid}) has ended, with code {self._process.wait(_ENDS_S)}"
        except subprocess.TimeoutExpired:
            return f"its process (pid {self._process.pid}) does not answer any more"


# -- answers on the wire ------------------------------------------------------------------------------------------------


def answer(wire: Connection, made: Answer) -> None:
    """Send an answer."""
    sizes = list(map(len, made.batch.buffers))
    line = {"task": made.task, "kind": made.kind, "text": made.text, "busy_s": made.busy_s, "sizes": sizes}
    wire.send_bytes(json.dumps(line).encode("ascii"))
    wire.send_bytes(made.batch.header)
    for buffer in made.batch.buffers:
        if len(buffer):
            wire.send_bytes(buffer.numpy())


def receive(wire: Connection) -> Answer:
    """Return the next answer. Raises EOFError or OSError if the other side is gone; ValueError if it is damaged."""
    try:
        line = json.loads(wire.recv_bytes(_MAX_LINE).decode("ascii"))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    fields = {"task": int, "kind": str, "text": str, "busy_s": float, "sizes": list}
    if type(line) is not dict or {name: type(value) for name, value in line.items()} != fields:
        raise ValueError(f"{line!r:.80} is no answer")
    sizes = line.pop("sizes")
    wrong = len(sizes) > MAX_BUFFERS or not all(type(size) is int and 0 <= size <= MAX_BYTES for size in sizes)
    if wrong or sum(sizes) > MAX_BYTES or line["kind"] not in (MADE, FAILED, NO_TREE, READY):
        raise ValueError(f"{line!r:.80} is no answer")
    header, buffers = wire.recv_bytes(MAX_HEADER_BYTES), []
    for size in sizes:
        buffers.append(torch.empty(size, dtype=torch.uint8))
        if size and wire.recv_bytes_into(buffers[-1].numpy()) != size:
            raise ValueError("a buffer has another size than it was announced with")
    return Answer(**line, batch=Encoded(header, buffers))
