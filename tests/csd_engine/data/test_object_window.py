"""The number of requests in flight, with storages that are simulated: times are numbers here."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from csd_engine.data.objects.window import LEAST, MOST, Window


def simulate(
    window: Window, answers: int, latency_s: Callable[[float], float], rate: float = 0.0, begin_s: float = 0.0
) -> tuple[float, float]:
    """Ask as often as the window allows. Returns the answers per second of the last half, and the time at the end.

    The storage answers after ``latency_s`` (of the time), give or take a tenth, and ``rate`` times a second at most: other
    requests queue.
    """
    now, last, half_s, flying = begin_s, begin_s, begin_s, []
    drawn = random.Random(4)
    for count in range(answers):
        while len(flying) < window.size:
            due = now + latency_s(now) * drawn.uniform(0.9, 1.1)
            last = max(due, last + 1 / rate) if rate else due
            heapq.heappush(flying, last)
        now = heapq.heappop(flying)
        window.answered(now, len(flying) + 1 >= window.size)
        if count == answers // 2:
            half_s = now
    return (answers - answers // 2) / (now - half_s), now


@pytest.mark.parametrize("latency_s", [0.02, 0.1])
def test_an_unlimited_storage_gets_all_requests_soon(latency_s):
    window = Window()
    _, now = simulate(window, 1000, lambda _: latency_s)
    assert window.size == MOST and now < 40 * latency_s


@pytest.mark.parametrize("rate, latency_s", [(500, 0.02), (100, 0.01), (500, 0.1), (2000, 0.1), (1000, 0.02)])
def test_a_limited_storage_gets_what_it_answers_and_few_that_queue(rate, latency_s):
    window = Window()
    found, _ = simulate(window, 6000, lambda _: latency_s, rate)
    assert found > 0.95 * rate
    assert window.size <= max(2 * LEAST, 5 * rate * latency_s)


def test_a_storage_that_becomes_slower_and_faster_again():
    window = Window()
    _, now = simulate(window, 3000, lambda _: 0.02, 4000)
    assert window.size > 64
    found, now = simulate(window, 60_000, lambda _: 0.02, 400, now)
    assert window.size <= 32 and found > 0.95 * 400
    found, _ = simulate(window, 60_000, lambda _: 0.02, 4000, now)
    assert window.size >= 56 and found > 0.9 * 4000


def test_what_does_not_ask_says_nothing():
    window = Window()
    for k in range(1000):
        window.answered(k * 0.1, False)
    assert window.size == LEAST


def test_batches_of_fewer_requests_than_a_round_tell_as_well():
    """16 objects, then a pause, and so on: more than 16 in flight bring nothing."""
    window, now = Window(), 0.0
    for _ in range(20):
        asked, flying = 0, []
        while asked < 16 or flying:
            while asked < 16 and len(flying) < window.size:
                heapq.heappush(flying, now + 0.02 + 1e-4 * asked)
                asked += 1
            now = heapq.heappop(flying)
            window.answered(now, len(flying) + 1 >= window.size)
        now += 0.05
    assert window.size == 16


def test_single_failures_change_nothing_and_many_do():
    window = Window()
    simulate(window, 3000, lambda _: 0.02)
    for k in range(3000):
        now = 1000 + k * 0.02 / MOST
        if k % 100 == 0:
            window.failed()
        window.answered(now, True)
    assert window.size > MOST / 2
    for _ in range(MOST):
        window.failed()
    assert window.size < MOST / 4
    for _ in range(MOST):
        window.failed()
    assert window.size == LEAST
