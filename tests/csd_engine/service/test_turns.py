"""Whose turn it is on the engine's thread, by counts: turns go by key, and the time that they take is paid for."""

from __future__ import annotations

from collections import Counter

import pytest

from csd_engine.service.turns import Inbox, Turns


class Thread:
    """The engine's thread. It has turns to give for ever, and its clock goes by what they take."""

    def __init__(self, **cost_s: float) -> None:
        self.turns, self.now, self.cost_s = Turns(), 100.0, cost_s
        self.served: Counter[str] = Counter()

    def step(self, *waiting: str) -> None:
        """Give a turn to one of these, or let a millisecond pass where all rest."""
        key = self.turns.next([key for key in waiting if not self.turns.rest_s(key, self.now)])
        if key is None:
            self.now += 0.001
            return
        self.now += self.cost_s[key]
        self.turns.rest(key, self.cost_s[key], self.now)
        self.turns.ended(key, self.cost_s[key], self.now)
        self.served[key] += 1

    def spent_s(self, key: str) -> float:
        return self.served[key] * self.cost_s[key]


@pytest.mark.parametrize("cost_s", [0.0001, 0.001, 0.004])
def test_short_turns_share_the_time_and_not_the_number(cost_s):
    thread = Thread(a=0.0001, b=cost_s)
    for _ in range(20_000):
        thread.step("a", "b")
    assert thread.spent_s("a") == pytest.approx(thread.spent_s("b"), rel=0.1)


@pytest.mark.parametrize("cost_s", [0.006, 0.05, 0.25])
def test_after_a_long_turn_a_key_rests_while_others_are_served(cost_s):
    thread = Thread(honest=0.0001, hostile=cost_s)
    begin = thread.now
    while thread.served["hostile"] < 50:
        thread.step("honest", "hostile")
    assert thread.spent_s("hostile") < 0.3 * (thread.now - begin)
    assert thread.spent_s("honest") > 0.6 * (thread.now - begin)


def test_who_is_alone_does_not_rest():
    thread = Thread(a=0.1, b=0.001)
    thread.step("b")
    thread.now += 5.0
    for _ in range(10):
        thread.step("a")
    assert thread.served["a"] == 10


def test_no_rest_is_so_long_that_a_host_takes_the_engine_for_lost():
    thread = Thread(a=60.0, b=0.001, c=0.001)
    for key in thread.cost_s:
        thread.turns.ended(key, thread.cost_s[key], thread.now)
    thread.turns.rest("a", 60.0, thread.now)
    assert 0 < max(thread.turns.rest_s(key, thread.now) for key in thread.cost_s) <= 2.0


def test_what_a_key_did_not_want_is_not_made_up_for():
    thread = Thread(a=0.001, b=0.001)
    for _ in range(5000):
        thread.step("a")
    thread.served.clear()
    for _ in range(1000):
        thread.step("a", "b")
    assert 450 <= thread.served["b"] <= 550


# -- what waits


def test_each_keys_messages_stay_in_their_order():
    inbox = Inbox()
    for number in range(6):
        assert inbox.add("ab"[number % 2], b"%d" % (number % 3), [b"%d" % number]) is None
    assert sorted(inbox.keys) == ["a", "b"]
    assert [inbox.take("a") for _ in range(3)] == [(b"0", [b"0"]), (b"2", [b"2"]), (b"1", [b"4"])]
    assert inbox.keys == ["b"]
    inbox.forget("b", b"0")
    inbox.forget("a", b"0")
    assert [inbox.take("b") for _ in range(2)] == [(b"1", [b"1"]), (b"2", [b"5"])]
    assert not inbox.keys


@pytest.mark.parametrize("large", [True, False])
def test_the_connection_of_which_most_waits_is_ended(large):
    inbox = Inbox(max_messages=100, max_bytes=10_000)
    for _ in range(20):
        assert inbox.add("a", b"few", [b"x"]) is None
        assert inbox.add("b", b"other key", [b"x" * 400]) is None
    greedy = [inbox.add("a", b"many", [b"x" * (900 if large else 1)]) for _ in range(200)]
    ended = [peer for peer in greedy if peer is not None]
    assert ended and set(ended) == {b"many"}
    while "a" in inbox.keys:
        peer, _ = inbox.take("a")
    assert [inbox.take("b")[0] for _ in range(20)] == [b"other key"] * 20


def test_what_waits_is_bounded_by_key_and_not_by_connection():
    inbox, waiting = Inbox(max_messages=1000, max_bytes=1 << 20), 0
    for number in range(5000):
        ended = inbox.add("a", b"%d" % (number % 40), [b"x" * 4096])
        waiting += 1
        if ended is not None:
            left = []
            while inbox.keys:
                left.append(inbox.take("a"))
            assert ended not in {peer for peer, _ in left}
            for one in left:
                inbox.add("a", *one)
            waiting = len(left)
        assert waiting * 4096 <= 1 << 20
