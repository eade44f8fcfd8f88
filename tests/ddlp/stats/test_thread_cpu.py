"""How long a thread waits for a processor: beside another process on one processor, and alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from ddlp.stats.thread_cpu import ELSEWHERE, thread_queued_s

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="the kernel tells no run queues")

SPUN_S = 0.2
SPINS = "while True: pass"


def spun_beside(others: int) -> float:
    """Spin on one processor beside so many processes that do; return how long this thread waited for the processor."""
    found: list[float] = []

    def spin() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread, and of those that it starts
        spinning = [subprocess.Popen([sys.executable, "-c", SPINS]) for _ in range(others)]
        before_s, until = thread_queued_s(), time.thread_time() + SPUN_S
        while time.thread_time() < until:
            pass
        found.append(thread_queued_s() - before_s)
        for one in spinning:
            one.kill()
            one.wait()

    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_that_shares_its_processor_waits_for_it() -> None:
    assert spun_beside(2) > 0.2 * SPUN_S, "it has a third of the processor"


def test_others_waits_at_its_work_count() -> None:
    before_s = thread_queued_s()
    ELSEWHERE.queued_s += 100.0
    try:
        assert 99.9 < thread_queued_s() - before_s < 200.0
    finally:
        ELSEWHERE.queued_s -= 100.0
