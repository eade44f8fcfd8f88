"""No wake-up is lost, and waking a thread that is at work costs nothing."""

import select
import threading
from collections import deque

from ddlp.sources.engine.wire import Wakeup

LONG_S = 30.0


def readable(wakeup, timeout_s):
    return bool(select.select([wakeup.descriptor], [], [], timeout_s)[0])


def test_no_work_is_overlooked():
    wakeup, inbox, done = Wakeup(), deque(), []

    def rests():
        while len(done) < 4000:
            wakeup.rest()
            wakeup.awake(readable(wakeup, 0 if inbox else LONG_S))
            while inbox:
                done.append(inbox.popleft())

    def rings(first):
        for number in range(first, first + 1000):
            inbox.append(number)
            wakeup.ring()

    threads = [threading.Thread(target=rests), *(threading.Thread(target=rings, args=(1000 * k,)) for k in range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S / 2)
    assert not any(thread.is_alive() for thread in threads) and sorted(done) == list(range(4000))
    wakeup.close()


def test_it_is_written_to_only_while_the_thread_rests():
    wakeup = Wakeup()
    wakeup.awake(False)
    wakeup.ring()
    assert not readable(wakeup, 0)
    wakeup.rest()
    wakeup.ring()
    assert readable(wakeup, 0)
    wakeup.awake(True)
    assert not readable(wakeup, 0)
    wakeup.close()


def test_a_closed_bell_is_silent():
    wakeup = Wakeup()
    wakeup.rest()
    wakeup.close()
    wakeup.ring()
    wakeup.close()
