"""A thread's processor time, with what other processes have spent on its work."""

from __future__ import annotations

import threading
import time

__all__ = ["ELSEWHERE", "thread_cpu_s"]


class _Elsewhere(threading.local):
    """The processor seconds that other processes have spent on work of the calling thread."""

    seconds = 0.0


ELSEWHERE = _Elsewhere()


def thread_cpu_s() -> float:
    """Return the processor seconds, user and system, of this thread and of others' work for it."""
    return time.thread_time() + ELSEWHERE.seconds
