"""What a worker process does at this moment, in memory that the training process sees, also once the worker is gone."""

from __future__ import annotations

import enum
import faulthandler
import mmap
import os
import signal
import time
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

from ddlp.process.shared_memory import share

__all__ = ["Doing", "Mark", "here"]

_SIZE = 4096
_STACK_AT = 64  # the worker's stack is written from here on
_STACKS = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else 0
"""A worker writes its stack when it gets this signal, also while it waits for a lock. Others seldom use it."""


class Doing(enum.IntEnum):
    """What a worker does."""

    STARTS = 0  # no code of ours has run: it imports modules, or waits for a lock that was held at its fork
    BEGINS = 1  # worker_init_fn, and what torch does around it
    WAITS = 2  # for a request
    MAKES = 3  # a batch


class Mark:
    """The worker writes it, but for `closed`, and the training process reads it.

    A forked worker has the object, another one gets it pickled.
    """

    def __init__(self) -> None:
        self._take(*share(_SIZE))

    def _take(self, memory: Any, descriptor: int) -> None:
        self._file = descriptor
        self.numbers = memoryview(memory).cast("q")  #: `Doing`; the place of the sample in its batch, -1: not known; `closed`
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> Any:
        return _received, (DupFd(self._file),)

    # -- in the worker -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that the worker has begun. `here` is this mark from now on."""
        global here
        here = self
        if _STACKS:
            os.lseek(self._file, _STACK_AT, os.SEEK_SET)
            faulthandler.register(_STACKS, self._file, all_threads=False)
        self.numbers[0] = Doing.BEGINS

    @property
    def closed(self) -> bool:
        """Whether the training process has said that the worker is to end. One that was killed has not."""
        return bool(self.numbers[2])

    # -- in the training process ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Note that the worker is to end."""
        self.numbers[2] = 1

    @property
    def doing(self) -> Doing:
        """What the worker does, or did last."""
        return Doing(self.numbers[0])

    def told(self, request: Any) -> str:
        """Return in words what the worker does, or did last.

        ``request``: the oldest that has no answer; None: none. It may have ``at(place)``, the words for a sample's place.
        """
        if self.doing is Doing.STARTS:
            return "before any code of yours has run in it"
        if self.doing is Doing.BEGINS:
            return "in worker_init_fn, or before it"
        if self.doing is Doing.WAITS or request is None:
            return "while it waited for work"
        return request.at(self.numbers[1]) if hasattr(request, "at") else "while it made a batch"

    def stack(self, pid: int) -> str:
        """Return where the worker is: the innermost lines of its Python stack, or what the kernel says of it; "": not known."""
        if _STACKS and self.doing is not Doing.STARTS:
            try:
                os.kill(pid, _STACKS)
            except OSError:
                return ""
            for _ in range(20):
                time.sleep(0.01)
                lines = os.pread(self._file, _SIZE, _STACK_AT).decode(errors="replace").strip("\0\n ").split("\n")
                if len(lines) > 1:
                    return "; ".join(line.strip() for line in lines[1:4])
        try:
            with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
                waits = file.read().strip("0\n")
            return f"the kernel says it waits in {waits}" if waits else "it computes"
        except OSError:
            return ""


def _received(passed_on: Any) -> Mark:
    mark = Mark.__new__(Mark)
    descriptor = passed_on.detach()
    mark._take(mmap.mmap(descriptor, _SIZE), descriptor)
    return mark


here: Mark | None = None
"""The mark of this worker process; None in any other process."""
