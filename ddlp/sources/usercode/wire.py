"""`WireNode`: a node that runs the user's code, at the other end of a socket.

What the node is sent is a pickle; what it answers is not: a line of JSON, the header of a batch, then its buffers. Each buffer
is received into memory of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from ddlp.sources.usercode.tree import MAX_BUFFERS, MAX_BYTES, MAX_HEADER_BYTES, Encoded
from ddlp.sources.usercode.work import FAILED, GONE, MADE, NO_TREE, READY, Answer, Work
from ddlp.sources.workers.keyed_samples import KeyedBatch

__all__ = ["NodeGone", "NodeUnfit", "Starter", "WireNode", "frames", "receive"]

_MAX_LINE = 1 << 20


class NodeGone(Exception):
    """The node does not start, has ended, or says what can't be understood. The text says why."""


class NodeUnfit(Exception):
    """The node can't make the host's samples. The text says why."""


class WireNode:
    """A node behind a socket: one elsewhere, for which a process of this machine passes on what is said (`ray_node`).

    It takes this side's end for the end of the work, and may go on for others. One thread calls the methods; only `close` may
    come from another one. All but that raise NodeGone.

    Args:
        reach: returns the socket, or raises NodeGone.
        why: why the node is gone when its socket is closed.
    """

    def __init__(self, reach: Callable[[], socket.socket] | None = None, why: str = "") -> None:
        self._reach, self._gone = reach, why
        self._socket: socket.socket | None = None
        self._wire: Connection | None = None
        self._has = ""  # the digest of the work that it has

    def begin(self, work: Work) -> None:
        """Make the node ready for tasks of this work, and start it if need be. It blocks. No task is under way then.

        Raises:
            NodeUnfit: it can't load the work, for example since a module is not installed there.
        """
        if self._wire is None:
            self._start()
        if self._has != work.digest:
            self._send(work.content)
            answered = self._receive()
            if answered.kind != READY:
                raise NodeUnfit(f"it can't load the data set: {answered.text}")
            self._has = work.digest

    def submit(self, task: int, batch: KeyedBatch) -> None:
        """Give the node a task. It makes tasks one after another."""
        self._send((task, batch))

    def result(self) -> Answer:
        """Wait for the answer to the oldest task that is not answered."""
        return self._receive()

    def close(self) -> None:
        """End the connection, for forks that have it open too, and a call that waits for it. May be called twice."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _start(self) -> None:
        """Start the node. Raises NodeGone if it does not start."""
        assert self._reach is not None
        self._connect(self._reach())

    def _connect(self, ours: socket.socket) -> None:
        self._socket, self._wire = ours, Connection(os.dup(ours.fileno()))

    def _why(self) -> str:
        """Return why the node is gone."""
        return self._gone

    def _send(self, message: Any) -> None:
        assert self._wire is not None
        try:
            self._wire.send(message)
        except (OSError, ValueError):
            raise NodeGone(self._why()) from None

    def _receive(self) -> Answer:
        assert self._wire is not None
        try:
            answer = receive(self._wire)
        except (EOFError, OSError):
            raise NodeGone(self._why()) from None
        except ValueError as error:
            raise NodeGone(f"its answer is damaged: {error}") from None
        if answer.kind == GONE:
            raise NodeGone(answer.text)
        return answer


Starter = Callable[[], WireNode]
"""Makes a node, which starts with `WireNode.begin`."""


def frames(answer: Answer) -> Iterator[Any]:
    """Yield an answer as the messages that carry it: bytes and arrays of uint8."""
    sizes = list(map(len, answer.batch.buffers))
    line = {"task": answer.task, "kind": answer.kind, "text": answer.text, "busy_s": answer.busy_s, "sizes": sizes}
    yield json.dumps(line).encode("ascii")
    yield answer.batch.header
    for buffer in answer.batch.buffers:
        if len(buffer):
            yield buffer.numpy()


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
    if wrong or sum(sizes) > MAX_BYTES or line["kind"] not in (MADE, FAILED, NO_TREE, READY, GONE):
        raise ValueError(f"{line!r:.80} is no answer")
    header, buffers = wire.recv_bytes(MAX_HEADER_BYTES), []
    for size in sizes:
        buffers.append(torch.empty(size, dtype=torch.uint8))
        if size and wire.recv_bytes_into(buffers[-1].numpy()) != size:
            raise ValueError("a buffer has another size than it was announced with")
    return Answer(**line, batch=Encoded(header, buffers))
