"""Processes that are started while other threads fork."""

from __future__ import annotations

import os
import threading
import time

from ddlp.process.forks import no_forks


def test_another_threads_fork_waits():
    done: list[str] = []
    begins = threading.Event()

    def fork() -> None:
        begins.set()
        child = os.fork()
        if not child:
            os._exit(0)
        done.append("forked")
        os.waitpid(child, 0)

    thread = threading.Thread(target=fork)
    with no_forks():
        thread.start()
        begins.wait()
        time.sleep(0.2)  # without the lock it has forked now
        done.append("over")
    thread.join()
    assert done == ["over", "forked"]


def test_a_child_and_its_parent_may_go_on():
    with no_forks():  # by this thread it may be done
        child = os.fork()
        if not child:
            with no_forks():
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
