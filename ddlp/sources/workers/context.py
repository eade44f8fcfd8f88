"""What torch's iterators get for a multiprocessing context: their queues are pipes, and their processes begin as ddlp's do."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from typing import Any

import torch.multiprocessing

from ddlp.process.allocator import keep_freed_memory
from ddlp.process.user_warnings import warn_user
from ddlp.sources.workers.channel import Answers, RequestReader, Requests, Writer
from ddlp.sources.workers.hand_over import Blocks, Ring
from ddlp.sources.workers.mark import Doing, Mark

__all__ = ["WorkerContext"]

_SILENT_S = 10.0
_ENDS_S = 1.0  # so long may a process take to end after its first pipe was closed


class WorkerContext:
    """The processes of one iterator.

    Args:
        context: the loader's multiprocessing context; None: torch.multiprocessing, with Python's default start method.
        first: the number of the first worker.

    Attributes:
        blocks: the memory in which the workers' batches come.
    """

    def __init__(self, context: Any, first: int = 0) -> None:
        self._context: Any = torch.multiprocessing if context is None else context
        self._answers: Answers | None = None
        self._given: list[Any] = []  # the worker's ends that are still open here
        self._first, self._workers = first, list[_Worker]()
        self.blocks = Blocks()

    def Queue(self) -> Any:  # noqa: N802  as multiprocessing names it
        """Return the answers of all workers the first time, then the requests of one worker each."""
        if self._answers is None:
            self._answers = Answers(self._pipe)
            return self._answers
        self.started()
        return Requests(self._pipe)

    def Event(self) -> threading.Event:  # noqa: N802
        """Return an event for the training process alone: a worker sees that its pipe is closed."""
        return threading.Event()

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """Return a process that is not started."""
        requests = next(given for given in args if isinstance(given, Requests))
        assert self._answers is not None
        number = self._first + len(self._workers)
        writer = self._answers.writer(number, requests)
        self._given = [requests.reader, writer]
        ends = {Requests: requests.reader, Answers: writer, threading.Event: requests.reader}
        theirs = tuple(ends.get(type(given), given) for given in args)
        given = target, theirs, requests.reader, writer, self.blocks.token
        process = self._context.Process(target=_work, args=given, daemon=True)
        self._workers.append(_Worker(number, process, requests, time.monotonic()))
        return process

    def started(self) -> None:
        """Note that the last worker was started, or is not to be started: it has its ends."""
        for end in self._given:
            end.close()
        self._given = []

    def look(self) -> list[int]:
        """Return the workers that have ended. Tell the user of one that has not asked for work `_SILENT_S` after its start.

        That a worker has ended is told by its pipe, unless a process of the worker's own has that too, and lives on.
        """
        ended = []
        for worker in self._workers:
            if not worker.process.is_alive():
                ended.append(worker.number)
            elif not worker.silent and worker.requests.mark.doing < Doing.WAITS:
                if time.monotonic() - worker.started_s >= _SILENT_S:
                    worker.silent = True
                    warn_user(worker.silence())
        return ended

    def died(self, number: int) -> RuntimeError:
        """Return the error for a worker that has ended without being asked to."""
        return self._workers[number - self._first].died()

    def _pipe(self) -> Any:
        return self._context.Pipe(duplex=False)


@dataclass
class _Worker:
    number: int
    process: Any
    requests: Requests
    started_s: float
    silent: bool = False  # the user was told that it is

    def __str__(self) -> str:
        return f"DataLoader worker {self.number} (pid {self.process.pid})"

    def silence(self) -> str:
        """Return what the user is told of a worker that does not begin."""
        mark = self.requests.mark
        where = mark.stack(self.process.pid)
        if mark.doing is Doing.STARTS:
            why = (
                "an import takes long, or another thread held a lock when this process forked; then the worker waits for ever, "
                "and multiprocessing_context='forkserver' helps"
            )
        else:
            why = "worker_init_fn takes long, or waits for a lock that another thread held when this process forked"
        return f"ddlp: {self} has not asked for work {_SILENT_S:.0f} s after its start{where and f' ({where})'}: {why}"

    def died(self) -> RuntimeError:
        """Return the error: what has ended the worker, and at which sample."""
        self.process.join(1.0)  # its pipe may be closed before it has ended
        code, was = self.process.exitcode, f"It was worker {self.number}, {self.requests.doing}"
        if code is None or code >= 0:
            return RuntimeError(f"DataLoader worker (pid {self.process.pid}) exited unexpectedly, with code {code}. {was}")
        memory = ". The system does so when memory runs out: see `dmesg`" if -code == signal.SIGKILL else ""
        return RuntimeError(
            f"DataLoader worker (pid {self.process.pid}) is killed by signal: {signal.strsignal(-code)}. {was}{memory}"
        )


def _work(target: Callable[..., None], args: tuple[Any, ...], reader: RequestReader, writer: Writer, token: int) -> None:
    """Run in a worker process: get it ready, then run torch's loop."""
    sys.excepthook = _say
    reader.mark.begin()
    gc.freeze()  # else each worker searches all objects of the training process for garbage, which takes up to a second
    keep_freed_memory()
    writer.packed = Ring(token).take_results().packed
    blocks = Blocks(token)  # of what large requests bring
    util.Finalize(None, _after_a_killed_trainer, (reader.mark,), exitpriority=-100)  # when this process's sockets are gone
    target(*args)
    del blocks


def _after_a_killed_trainer(mark: Mark) -> None:
    """Remove the directory for sockets that a killed training process has left. The last of its workers succeeds."""
    trainer = multiprocessing.parent_process()
    if trainer is None or mark.closed:
        return
    trainer.join(_ENDS_S)  # its pipes were closed, one of them before the one that tells its end
    if not trainer.is_alive():
        with contextlib.suppress(OSError):
            os.rmdir(util.get_temp_dir())


def _say(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print an error that nothing has caught.

    multiprocessing's thread that passes descriptors calls this too. Nobody needs to hear of it when the training process was
    killed while it took one.
    """
    if threading.current_thread() is threading.main_thread() or not isinstance(error, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, traceback)
