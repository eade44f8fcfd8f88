"""What a window of batches has shown on one rank: plain data, from which `ddlp.auto.controller` judges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from csd_engine.protocol.fields import MAX_INT, MAX_TEXT, Check, integer, list_of, number, truth
from ddlp.auto.measured import Measured
from ddlp.schema import checked_fields, text_of

__all__ = ["NAMES", "WindowFigures", "alike", "slowest"]

IN_STEP = 0.25  # ranks may train in step if a batch takes all of them as long but for this part: short windows are noisy
UNLIKE = 0.2  # the part of a window in which another rank's sources may still have been on their way


@dataclass(frozen=True)
class WindowFigures:
    """A window of batches, at its end. Seconds are those of a full batch; 0: not known.

    Attributes:
        batches: that the rank has trained on since its loader's beginning.
        began: batches between what the rank judged last and the window's beginning.
        length: batches of the window.
        batch_s: from one batch to the next, waiting and training step.
        error: the standard error of ``batch_s``, as a part of it.
        host_s: of the host with all its workers at work, if nothing waits.
        host_cpu_s: the processor time among these.
        host_cpu_now_s: the same of the last batches.
        shared: a source took part.
        trial: sources were on trial.
        failed: it has ended early, since it was clearly slower than the host alone.
        sources: the names of all sources of the epoch.
        alive: those at work.
        taking_part: those of them that do not rest.
        measured: the other figures, without the host's rate alone.
    """

    batches: int
    began: int
    length: int
    batch_s: float
    error: float
    host_s: float
    host_cpu_s: float
    host_cpu_now_s: float
    shared: bool
    trial: bool
    failed: bool
    sources: tuple[str, ...]
    alive: tuple[str, ...]
    taking_part: tuple[str, ...]
    measured: Measured

    @property
    def step_s(self) -> float:
        """Seconds of the training step, that of ``measured``."""
        return self.measured.step_s or 0.0

    @property
    def taken_s(self) -> float:
        """Seconds a batch takes. Batches that were ready before the window hide for a while what the host alone takes."""
        return self.batch_s if self.shared else max(self.batch_s, self.host_s)

    @staticmethod
    def from_data(data: Any) -> WindowFigures:
        """Return the figures that `dataclasses.asdict` has made data of. Raises Misfit if they are not what they must be."""
        return WindowFigures(**checked_fields("WindowFigures", data, _CHECKS, {}))


NAMES = list_of(text_of(MAX_TEXT), 1000)  # of sources
_BY_TYPE: dict[str, Check] = {
    "int": integer(0, MAX_INT), "float": number(0, math.inf), "bool": truth, "tuple[str, ...]": NAMES,
    "Measured": Measured.from_data,
}  # fmt: skip
_CHECKS = {one.name: _BY_TYPE[str(one.type)] for one in fields(WindowFigures)}


def slowest(windows: Mapping[int, WindowFigures]) -> int:
    """Return the rank whose window counts for all, the one whose batches take longest.

    Ranks that train in step take the same time for a batch, whoever waits for data: the others wait for that rank within their
    step. So of the ranks that are equally slow the one with the shortest step counts.
    """
    longest_s = max(one.taken_s for one in windows.values())
    level = [rank for rank, one in windows.items() if one.taken_s >= (1 - IN_STEP) * longest_s]
    return min(level, key=lambda rank: (windows[rank].step_s or math.inf, rank))


def alike(windows: Mapping[int, WindowFigures]) -> bool:
    """Whether ranks that train in step have measured at the same time. Until its sources are there a rank slows all others."""
    latest = max(one.began for one in windows.values())
    return all(latest - one.began <= UNLIKE * one.length for one in windows.values())
