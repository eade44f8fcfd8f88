"""A loader looked at while it works: its numbers, and how fast its epoch gets on at this time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ddlp.loader import DDLPLoader
from ddlp.stats.live import Live
from ddlp.stats.report import CAUSES

__all__ = ["Live", "Pace", "Window", "live", "overall"]


def live(loader: DDLPLoader) -> Live:
    """A loader's numbers now, as `DDLPLoader.live` gives them."""
    return loader.live()


@dataclass(frozen=True)
class Pace:
    """The pace over some seconds: samples a second, and the parts (0 to 1) of the time that training waited, by `CAUSES`."""

    seconds: float
    samples_per_s: float
    waiting: Mapping[str, float]

    @property
    def waited(self) -> float:
        """The part of the time that training waited, for all causes."""
        return sum(self.waiting.values())


_Mark = tuple[float, int, Mapping[str, float]]  # at (seconds of the epoch), samples and seconds waited until then
_BEGIN: _Mark = (0.0, 0, dict.fromkeys(CAUSES, 0.0))


def _mark(live: Live) -> _Mark:
    return live.report.seconds, live.report.samples, live.report.waiting


def _pace(since: _Mark, until: _Mark) -> Pace:
    seconds = until[0] - since[0]
    if seconds <= 0:
        return Pace(0.0, 0.0, _BEGIN[2])
    waiting = {cause: (until[2][cause] - since[2][cause]) / seconds for cause in CAUSES}
    return Pace(seconds, (until[1] - since[1]) / seconds, waiting)


def overall(live: Live) -> Pace:
    """The pace of the epoch so far."""
    return _pace(_BEGIN, _mark(live))


class Window:
    """The pace over the last ``seconds`` of an epoch, or over the whole time since the last look if that is longer ago."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._epoch = 0
        self._marks: deque[_Mark] = deque()

    def pace(self, live: Live) -> Pace:
        """Look at the numbers now; returns the pace. A new epoch begins a new window."""
        if live.total.epochs != self._epoch:
            self._epoch, self._marks = live.total.epochs, deque([_BEGIN])
        self._marks.append(_mark(live))
        while len(self._marks) > 2 and self._marks[1][0] <= live.report.seconds - self._seconds:
            self._marks.popleft()
        return _pace(self._marks[0], self._marks[-1])
