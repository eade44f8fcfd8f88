"""A thread's processor time, and its waits for a processor, with those of other processes at its work."""

from __future__ import annotations

import threading
import time

__all__ = ["ELSEWHERE", "thread_cpu_s", "thread_queued_s"]


class _Elsewhere(threading.local):
    """What other processes have spent on work of the calling thread: processor seconds, and seconds in a run queue."""

    seconds = 0.0
    queued_s = 0.0


ELSEWHERE = _Elsewhere()


def thread_cpu_s() -> float:
    """Return the processor seconds, user and system, of this thread and of others' work for it."""
    return time.thread_time() + ELSEWHERE.seconds


def thread_queued_s() -> float:
    """Return the seconds in which this thread, and others' work for it, was ready to run and had no processor.

    The kernel counts them since the thread's start. 0 on other systems than Linux, and where /proc does not tell.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:  # a text would import a codec, in a thread
            return int(file.read().split()[1]) / 1e9 + ELSEWHERE.queued_s
    except (OSError, ValueError, IndexError):
        return 0.0
