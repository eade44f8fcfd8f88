"""Closes objects that the garbage collector finds, and those that are left when the interpreter exits."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

WAIT_S = 2.0

_pending: set[weakref.finalize[Any, Any]] = set()
_left: list[tuple[int, Callable[[], None]]] = []  # calls for which `_end_aside` could start no thread


class SharedHandle:
    """What a loader and its iterators hold of something that is closed once the last of them drops this."""


def when_dropped(thing: object, close: Callable[[], None]) -> weakref.finalize[Any, Any]:
    """Call ``close`` once ``thing`` is dropped, or at the interpreter's exit. Forks of this process don't call it.

    ``close`` may join threads and take locks; it must not hold ``thing``. Returns the finalizer, for `detach`.
    """
    _register()
    left, _left[:] = _left[:], []
    for call in left:
        _end_aside(*call)
    # A copy, since other threads add to it.
    _pending.difference_update([finalizer for finalizer in list(_pending) if not finalizer.alive])
    finalizer = weakref.finalize(thing, _end_aside, os.getpid(), close)
    finalizer.atexit = False  # _end_all calls it
    _pending.add(finalizer)
    return finalizer


def _end_aside(pid: int, close: Callable[[], None]) -> None:
    """Run ``close`` in a thread of its own, and wait for it, but not for ever.

    The collector calls a finalizer in any thread that allocates memory, and that thread may hold locks of ours. A ``close``
    that joins threads or takes locks could wait there for itself. If no thread can be started, ``close`` is left for later. In
    a fork of the process ``pid`` nothing is done.
    """
    if os.getpid() != pid:
        return
    thread = threading.Thread(target=close, name="ddlp-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads are allowed, or the interpreter is shutting down
        _left.append((pid, close))
        return
    if not threading.current_thread().name.startswith("ddlp-"):
        thread.join(WAIT_S)


@functools.cache
def _register() -> None:
    atexit.register(_end_all)


def _end_all() -> None:
    """At exit: close what is left, and wait for our threads to end.

    When the interpreter exits, it ends by force each daemon thread that waits for the GIL. In torch's code, for example while a
    last tensor is freed, that aborts the whole process ("terminate called without an active exception").
    """
    for finalizer in list(_pending):
        finalizer()
    while _left:
        pid, close = _left.pop()
        if os.getpid() == pid:
            close()
    until = time.monotonic() + WAIT_S
    for thread in threading.enumerate():
        if thread.name.startswith("ddlp-") and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
