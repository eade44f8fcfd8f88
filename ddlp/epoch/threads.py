"""The threads of an epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Threads"]


class Threads:
    """Daemon threads, named ddlp-0, ddlp-1 and so on. Started and joined by one thread at a time.

    Args:
        failed: called by a thread with an error that its loop does not expect.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._all: list[threading.Thread] = []
        self._may_hang: set[threading.Thread] = set()

    def start(self, loop: Callable[[], None], may_hang: bool = False) -> None:
        """Start a thread. ``may_hang``: one of its system calls may never return."""
        thread = threading.Thread(target=self._run, args=(loop,), name=f"ddlp-{len(self._all)}", daemon=True)
        self._all.append(thread)
        if may_hang:
            self._may_hang.add(thread)
        thread.start()

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            self._failed(error)

    def forget_owner(self) -> None:
        """Call nobody any more: the owner holds this object, and the cycle would keep all that it holds."""
        self._failed = lambda error: None

    def join(self, limit_s: float) -> bool:
        """Wait until all have ended, but not longer than ``limit_s`` for those that may hang. False if some are left."""
        until = time.monotonic() + limit_s
        for thread in self._all:
            if thread is not threading.current_thread() and thread.ident is not None:  # None: it could not be started
                thread.join(max(0.0, until - time.monotonic()) if thread in self._may_hang else None)
        return not self.at_work

    @property
    def at_work(self) -> bool:
        """Whether any thread still runs, apart from the caller's."""
        return any(thread.is_alive() for thread in self._all if thread is not threading.current_thread())
