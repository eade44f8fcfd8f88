"""Ends of things that the garbage collector finds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

WAIT_S = 2.0


def end_aside(pid: int, close: Callable[[], None]) -> None:
    """For `weakref.finalize`: run ``close`` in a thread of its own, and wait for it, but not for ever.

    The collector calls a finalizer in whatever thread allocates next, with whatever locks of ours that thread holds; a
    ``close`` that joins threads or takes locks could wait there for itself. In a fork of the process ``pid`` nothing is done.
    """
    if os.getpid() != pid:
        return
    thread = threading.Thread(target=close, name="ddlp-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down and starts no thread any more
        close()
        return
    if not threading.current_thread().name.startswith("ddlp-"):
        thread.join(WAIT_S)
