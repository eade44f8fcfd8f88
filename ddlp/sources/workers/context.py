"""What torch's iterators get for a multiprocessing context: their queues are pipes, and their processes begin as ddlp's do."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from ddlp import decode
from ddlp.process.allocator import keep_freed_memory
from ddlp.sources.workers.channel import Answers, Requests, Writer
from ddlp.sources.workers.hand_over import Blocks, Ring

__all__ = ["WorkerContext", "worker_died"]


class WorkerContext:
    """The processes of one iterator.

    Args:
        context: the loader's multiprocessing context; None: torch.multiprocessing, with Python's default start method.
        postpone: whether `Image.open` gives postponed images in the workers; None: as it does in this process.
        first: the number of the first worker.

    Attributes:
        blocks: the memory in which the workers' batches come.
    """

    def __init__(self, context: Any, postpone: bool | None, first: int = 0) -> None:
        self._context: Any = torch.multiprocessing if context is None else context
        self._postpone = postpone
        self._answers: Answers | None = None
        self._given: list[Any] = []  # the worker's ends that are still open here
        self._next = first
        self.blocks = Blocks()

    def Queue(self) -> Answers | Requests:  # noqa: N802  as multiprocessing names it
        """Return the answers of all workers the first time, then the requests of one worker each."""
        return self.requests() if self._answers is not None else self.answers()

    def answers(self) -> Answers:
        """Return the answers of all workers."""
        self._answers = Answers(self._pipe)
        return self._answers

    def requests(self) -> Requests:
        """Return the requests of the next worker."""
        self.started()
        return Requests(self._pipe)

    def Event(self) -> threading.Event:  # noqa: N802
        """Return an event for the training process alone: a worker sees that its pipe is closed."""
        return threading.Event()

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """Return a process that is not started."""
        requests = next(given for given in args if isinstance(given, Requests))
        assert self._answers is not None
        writer = self._answers.writer(self._next, requests)
        self._next += 1
        self._given = [requests.reader, writer]
        ends = {Requests: requests.reader, Answers: writer, threading.Event: requests.reader}
        theirs = tuple(ends.get(type(given), given) for given in args)
        given = target, theirs, writer, self.blocks.token, self._postpone
        return self._context.Process(target=_work, args=given, daemon=True)

    def started(self) -> None:
        """Note that the last worker was started, or is not to be started: it has its ends."""
        for end in self._given:
            end.close()
        self._given = []

    def _pipe(self) -> Any:
        return self._context.Pipe(duplex=False)


def _work(target: Callable[..., None], args: tuple[Any, ...], writer: Writer, token: int, postpone: bool | None) -> None:
    """Run in a worker process: get it ready, then run torch's loop."""
    gc.freeze()  # else each worker searches all objects of the training process for garbage, which takes up to a second
    keep_freed_memory()
    if postpone is not None:
        (decode.install if postpone else decode.uninstall)()
    writer.packed = Ring(token).packed
    target(*args)


def worker_died(process: Any, worker: int) -> RuntimeError:
    """Return the error for a worker process that has ended without being asked to."""
    process.join(1.0)  # its pipe may be closed before it has ended
    code = process.exitcode
    who = f"DataLoader worker {worker} (pid {process.pid})"
    if code is None or code >= 0:
        return RuntimeError(f"{who} exited unexpectedly, with code {code}")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = ". The system does so when memory runs out: `dmesg` tells" if -code == signal.SIGKILL else ""
    return RuntimeError(f"{who} was killed by {name}{why}")
