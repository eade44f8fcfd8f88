"""Counts images a second over the last seconds. The caller gives the time."""

from __future__ import annotations

from collections import deque
from typing import Deque, List

__all__ = ["WINDOW_S", "Meter"]

WINDOW_S = 10.0
_LEAST_SPAN_S = 1.0  # else one image in the first millisecond would be a thousand a second
_SLOT_S = 0.5  # counts that are closer together are kept as one


class Meter:
    """Counts images. `now` is the time of any monotonic clock, in seconds; it never goes back."""

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
        """Return images a second over the last WINDOW_S, or since the meter's start if that is later (at least 1 s)."""
        self._forget(now)
        span = max(_LEAST_SPAN_S, min(WINDOW_S, now - self._began))
        return sum(images for _, images in self._slots) / span

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] > WINDOW_S:
            self._slots.popleft()
