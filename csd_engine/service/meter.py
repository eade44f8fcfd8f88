"""How many images a second: a count over the last seconds. Pure; the time comes in."""

from __future__ import annotations

from collections import deque
from typing import Deque, List

__all__ = ["WINDOW_S", "Meter"]

WINDOW_S = 10.0
_LEAST_SPAN_S = 1.0  # one image after a millisecond is no thousand a second
_SLOT_S = 0.5  # counts closer together than this are kept as one


class Meter:
    """Counts images; `now` is any monotonic clock's, in seconds, and never goes back."""

    def __init__(self, now: float) -> None:
        self.total = 0
        self._began = now
        self._slots: Deque[List[float]] = deque()  # [when it was begun, images]

    def add(self, images: int, now: float) -> None:
        """Count images that are done now."""
        self.total += images
        if self._slots and now - self._slots[-1][0] < _SLOT_S:
            self._slots[-1][1] += images
        else:
            self._forget(now)
            self._slots.append([now, images])

    def per_s(self, now: float) -> float:
        """Images a second over the last WINDOW_S, or since the meter began where that is less, but at least a second."""
        self._forget(now)
        span = max(_LEAST_SPAN_S, min(WINDOW_S, now - self._began))
        return sum(images for _, images in self._slots) / span

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] > WINDOW_S:
            self._slots.popleft()
