"""No ring is lost, and who rings a thread that is at work pays for nothing."""

import select
import threading
from collections import deque

from ddlp.sources.engine.wakeup import Bell

LONG_S = 30.0


def readable(bell, timeout_s):
    return bool(select.select([bell.descriptor], [], [], timeout_s)[0])


def test_no_work_is_overlooked():
    bell, inbox, done = Bell(), deque(), []

    def rests():
        while len(done) < 4000:
            bell.rest()
            bell.awake(readable(bell, 0 if inbox else LONG_S))
            while inbox:
                done.append(inbox.popleft())

    def rings(first):
        for number in range(first, first + 1000):
            inbox.append(number)
            bell.ring()

    threads = [threading.Thread(target=rests), *(threading.Thread(target=rings, args=(1000 * k,)) for k in range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S / 2)
    assert not any(thread.is_alive() for thread in threads) and sorted(done) == list(range(4000))
    bell.close()


def test_it_is_written_to_only_while_the_thread_rests():
    bell = Bell()
    bell.awake(False)
    bell.ring()
    assert not readable(bell, 0)
    bell.rest()
    bell.ring()
    assert readable(bell, 0)
    bell.awake(True)
    assert not readable(bell, 0)
    bell.close()


def test_a_closed_bell_is_silent():
    bell = Bell()
    bell.rest()
    bell.close()
    bell.ring()
    bell.close()
