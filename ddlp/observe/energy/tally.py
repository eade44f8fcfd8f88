"""From readings to joules, one sensor at a time. Pure: the caller gives the time."""

from __future__ import annotations

from csd_engine.machine.sensors import Reading

__all__ = ["MOST_W", "Tally", "interval_s"]

# No package, memory or rail with a counter that wraps draws more. A higher figure means that the counter began anew.
MOST_W = 4000.0
_BUSY_W = 400.0  # one of them may well draw this much
_MOST_GAUGE_W = 1e6
_SLACK_J = 50.0  # counters move in steps, and two readings may be a millisecond apart
_LONGEST_S = 60.0


def interval_s(range_j: float) -> float:
    """The longest time between two readings of a counter of this range: half the time in which it can wrap, at most 60 s."""
    return min(_LONGEST_S, range_j / MOST_W / 2) if range_j > 0 else _LONGEST_S


class Tally:
    """The joules of one sensor since its first reading.

    A counter's differences are added up. A difference across a wrap counts. It does not count if the counter began anew (a
    driver was loaded again, a device was off). A gauge's watts are taken to change evenly between two readings that are at
    most ``longest_s`` apart; the time between readings further apart is not counted.

    Args:
        longest_s: the longest time between two readings of a gauge that counts.
    """

    def __init__(self, longest_s: float) -> None:
        self.joules = 0.0
        self.covered_s = 0.0  # the seconds that the joules cover
        self.notes: list[str] = []
        self._longest_s = longest_s
        self._last: tuple[float, float] | None = None  # value and time
        self._counts = False
        self._first_s: float | None = None

    def add(self, reading: Reading, now_s: float) -> None:
        """Take a reading; ``now_s`` is the same monotonic clock's each time."""
        value = reading.joules if reading.joules is not None else reading.watts
        if value is None:
            return  # it sleeps
        if reading.joules is None and not 0 <= value <= _MOST_GAUGE_W:
            self._note(f"{reading.sensor} said {value} W, which was not counted")
            return
        last, self._last = self._last, (value, now_s)
        self._counts = reading.joules is not None
        if last is None:
            self._first_s = now_s
            return
        before, then_s = last
        seconds = now_s - then_s
        if self._counts:
            self._difference(reading, value - before, seconds)
        elif seconds <= self._longest_s:
            self._count((before + value) / 2 * seconds, seconds)
        else:
            self._note(f"{reading.sensor} gave no reading for {seconds:.1f} s, which were not counted")

    @property
    def silent(self) -> bool:
        """Whether no reading has told anything."""
        return self._last is None and not self.notes

    def _difference(self, reading: Reading, joules: float, seconds: float) -> None:
        if joules < 0:
            joules += reading.range_j
            if not 0 <= joules <= MOST_W * seconds + _SLACK_J:
                self._note(f"the counter of {reading.sensor} began anew; the {seconds:.1f} s before were not counted")
                return
        if 0 < reading.range_j < _BUSY_W * seconds:
            self._note(f"{reading.sensor} was not read for {seconds:.0f} s: if its counter wrapped twice, joules are missing")
        self._count(joules, seconds)

    def _count(self, joules: float, seconds: float) -> None:
        self.joules += joules
        self.covered_s += seconds

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 4:
            self.notes.append(text)

    def finish(self, began_s: float, ended_s: float) -> None:
        """Count the ends of a gauge's time, if they are short: the first at its mean watts, the last at its last reading."""
        if self._counts or self._last is None or self._first_s is None:
            return
        value, last_s = self._last
        first = value if self.covered_s == 0 else self.joules / self.covered_s
        for watts, seconds in ((first, self._first_s - began_s), (value, ended_s - last_s)):
            if 0 < seconds <= self._longest_s:
                self._count(watts * seconds, seconds)
