"""How many requests should be in flight. It is pure: times come in from outside."""

from __future__ import annotations

__all__ = ["LEAST", "MOST", "Window"]

LEAST, MOST = 8, 256  # requests in flight
FIRST, ROUND = 32, 64  # answers of a round at least, while it doubles and later: fewer tell a rate badly
REST = 8  # rounds between two trials
DOUBLED, GROWN, SHRUNK = 1.1, 1.04, 0.98  # a trial is kept if the rate has changed by more than this factor
MANY = 8  # one of so many requests


class Window:
    """The number of requests that should be in flight, found while they are made.

    By Little's law the rate is the number of requests in flight, divided by the latency. So more requests bring more while the
    latency stays; where the storage, the line or this computer is the limit they only queue, and the latency grows instead. The
    window doubles as long as the rate grows with it. From then on it tries now and then to be a quarter larger, and in turn a
    fifth smaller, and keeps what is faster, or as fast with less.

    Attributes:
        size: requests, `LEAST` to `MOST`.
    """

    def __init__(self) -> None:
        self.size = LEAST
        self._answers = self._failures = 0  # of this round
        self._full_s = 0.0  # of this round, with as many requests in flight as the window allows
        self._last_s: float | None = None  # the last answer, if so many were in flight then
        self._before: tuple[int, float] | None = None  # size and rate before the trial that runs
        self._doubles = True
        self._grows = True  # what the next trial is
        self._rest = 0  # rounds until then

    def answered(self, now_s: float, full: bool) -> None:
        """Note an answer. ``full``: as many requests were in flight as the window allows; other times tell nothing.

        A round goes on after such a time: a batch's requests may be fewer than a round's answers.
        """
        if full and self._last_s is not None:
            self._answers += 1
            self._full_s += now_s - self._last_s
        self._last_s = now_s if full else None
        if full and self._answers >= max(FIRST if self._doubles else ROUND, 2 * self.size):
            per_s = self._answers / max(1e-9, self._full_s)
            self._anew()
            self._round(per_s)

    def failed(self) -> None:
        """Note that a request got no answer. Single ones happen; if many of a round do, the storage is asked for too much."""
        self._failures += 1
        if self._failures > self.size // MANY:
            self._anew()
            self._settle(max(LEAST, self.size // 2))

    def _anew(self) -> None:
        self._answers = self._failures = 0
        self._full_s, self._last_s = 0.0, None

    def _settle(self, size: int) -> None:
        """Stay at this size for a while; the next trial goes the other way."""
        self.size, self._before, self._doubles, self._rest = size, None, False, REST
        self._grows = not self._grows

    def _round(self, per_s: float) -> None:
        if self._before is not None:
            size, before = self._before
            least = (DOUBLED if self._doubles else GROWN) if self.size > size else SHRUNK
            if per_s < least * before:
                self._settle(self.size if self._doubles and per_s > SHRUNK * before else size)  # a trial to shrink comes next
                return
            self._before = None
        if self._rest:
            self._rest -= 1
            return
        tried = self.size - self.size // 5
        if self._grows:
            tried = 2 * self.size if self._doubles else self.size + self.size // 4
        tried = min(MOST, max(LEAST, tried))
        if tried == self.size:
            self._settle(tried)
        else:
            self._before, self.size = (self.size, per_s), tried
