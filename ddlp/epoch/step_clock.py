"""How long training steps take, on a device that works while the training thread goes on as well.

A GPU computes asynchronously: the training thread asks for its next batch long before the GPU has done the step. So the time
between two batches tells little. `EventClock` puts an event into the GPU's queue where a step begins, and one where it ends.
Later it asks, without waiting, how much time lay between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

__all__ = ["EventClock", "cuda_clock"]

_PENDING = 64  # steps whose events are awaited; beyond that a step is not measured


class EventClock:
    """Measures steps by events, places in the device's queue. ``event`` makes one."""

    def __init__(self, event: Callable[[], torch.cuda.Event]) -> None:
        self._event = event
        self._began: torch.cuda.Event | None = None
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, float]] = deque()

    def begins(self) -> None:
        """Note that a step begins: training gets a batch."""
        self._began = None
        if len(self._pending) < _PENDING:
            self._began = self._event()
            self._began.record()

    def ends(self, part: float) -> None:
        """Note that training asks for the next batch. ``part``: the size of the step's batch, as a part of a full one."""
        if self._began is not None:
            ended = self._event()
            ended.record()
            self._pending.append((self._began, ended, part))
            self._began = None

    def done(self) -> list[tuple[float, float]]:
        """Return the seconds and the part of each step that the device has done, in their order, each once."""
        steps = []
        while self._pending and self._pending[0][1].query():
            began, ended, part = self._pending.popleft()
            steps.append((began.elapsed_time(ended) / 1000, part))
        return steps


def cuda_clock() -> EventClock | None:
    """Return a clock of the current CUDA device's current stream; None if this process has not used CUDA so far."""
    if not torch.cuda.is_initialized():
        return None
    return EventClock(lambda: torch.cuda.Event(enable_timing=True))
