"""Whether training waits for data, what that costs, and what each remedy would bring at most. This module is pure.

A step's own speed is a ceiling if it was measured without loading (`DDLPLoader.replay`). Without that, only the training
thread's time between two batches is known. It has all that the loop does there, a slowdown by the host's workers included. Work
that the loop leaves to an accelerator without waiting for it is missing. Texts say which of the two it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddlp.stats.words import number, step_time

__all__ = ["MIN_BATCHES", "Ceiling", "Remedy", "WaitingVerdict", "judge"]

MIN_BATCHES = 20
HARDLY = 0.05  # a smaller part of the time is no reason to change anything


@dataclass(frozen=True)
class Ceiling:
    """What `DDLPLoader.replay` has measured: the mean seconds of a training step without loading, over so many steps."""

    step_s: float
    steps: int


@dataclass(frozen=True)
class Remedy:
    """A change against waiting. ``at_most``: with it training is so many times as fast, or less."""

    name: str
    at_most: float


@dataclass(frozen=True)
class WaitingVerdict:
    """The verdict on an epoch, or on its part so far. As a string it is one line for people. The first batch does not count.

    Attributes:
        batches: how many batches it is on. Of fewer than `MIN_BATCHES` nothing is said.
        period_s: seconds from one batch to the next.
        waited: the part (0 to 1) of the time in which the training thread waited for a batch.
        step_s: seconds of a step: by a replay if there was one, else by the training thread's time between two batches.
        between_s: the training thread's time between two batches.
        replayed: ``step_s`` was measured without loading.
        at_most: without waiting training is so many times as fast, or less.
        remedies: what can be changed.
        start_s: seconds of waiting for the first batch.
        itself: the training thread did not wait for others, but prepared the batches itself.
    """

    batches: int
    period_s: float = 0.0
    waited: float = 0.0
    step_s: float = 0.0
    between_s: float = 0.0
    replayed: bool = False
    at_most: float = 1.0
    remedies: tuple[Remedy, ...] = ()
    start_s: float = 0.0
    itself: bool = False

    @property
    def lost(self) -> float:
        """The part (0 to 1) of the time that loading costs: by waiting, and, if a step was replayed, by slower steps."""
        return 1 - 1 / self.at_most

    def __str__(self) -> str:
        if self.batches < MIN_BATCHES:
            return f"Too few batches to say whether training waits for data: {self.batches}, and {MIN_BATCHES} are wanted."
        return " ".join([f"{self._head()}: {self._speeds()}.", *self._tail()])

    def _head(self) -> str:
        waited = f"{_percent(self.waited)} of the time"
        if self.waited < HARDLY:
            slower = ", but loading slows its steps down" if self.lost >= HARDLY else ""
            return f"Training does not wait for data ({waited}){slower}"
        if self.itself:
            return f"The training thread prepares the batches itself, {waited}"
        if self.lost < HARDLY:
            return f"Training's thread waits for data {waited}, but work goes on meanwhile"
        return f"Training waits for data {waited}"

    def _speeds(self) -> str:
        speed = f"{number(1 / self.step_s)} batches/s"
        if not self.replayed:
            step = f"by the time between two batches a step takes {step_time(self.step_s)} ({speed})"
        else:
            beside = f", {step_time(self.between_s)} while data are loaded" if self.between_s > 1.1 * self.step_s else ""
            step = f"a step alone takes {step_time(self.step_s)} ({speed}, replayed){beside}"
        return f"{step}; batches come at {number(1 / self.period_s)} a second"

    def _tail(self) -> Iterator[str]:
        if self.lost < HARDLY:
            yield f"No remedy brings more than {max(1, math.ceil(100 * (self.at_most - 1) - 1e-9))} %."
        else:
            by = "At most" if self.replayed else "By this measure, at most"
            named = [f"{number(remedy.at_most)} with {remedy.name}" for remedy in self.remedies]
            yield f"{by} {', '.join([f'{number(self.at_most)} times as fast without waiting', *named])}."
        if not self.replayed and max(self.lost, self.waited) >= HARDLY:
            yield "loader.replay() measures the step itself."
        if self.start_s >= HARDLY * (self.start_s + self.batches * self.period_s):
            yield f"The wait for the first batch, {step_time(self.start_s)}, comes on top."


def judge(
    batches: int,
    seconds: float,
    waiting_s: float,
    *,
    start_s: float = 0.0,
    ceiling: Ceiling | None = None,
    host_per_s: float | None = None,
    devices_per_s: Mapping[str, float] | None = None,
    workers: int | None = None,
    processors: int | None = None,
    travels: bool = True,
) -> WaitingVerdict:
    """Return the verdict on ``batches`` batches that came within ``seconds``, of which training waited ``waiting_s``.

    Both are without ``start_s``, the wait for the first batch. More workers can take away no more than the waiting. A device
    takes work from the host as well, so steps that the host's workers slow down may become faster. A side is taken to grow with
    its workers, and to cost the others nothing: so each figure is an upper bound.

    Args:
        ceiling: a step that was measured without loading.
        host_per_s: batches a second of the host, all its workers busy; None: not measured.
        devices_per_s: the same of each device at work.
        workers: the host's; 0: one thread makes the batches; None: not known, or the host makes none.
        processors: that this process may use; None: not known.
        travels: a device could make the batches. If not, and without workers, the training thread itself makes them.
    """
    if batches < MIN_BATCHES or seconds <= 0:
        return WaitingVerdict(min(batches, MIN_BATCHES - 1))
    period_s, waited = seconds / batches, min(1.0, max(0.0, waiting_s / seconds))
    between_s = max(period_s * (1 - waited), 1e-9)
    step_s = between_s if ceiling is None else max(ceiling.step_s, 1e-9)
    at_most = max(1.0, period_s / step_s)
    devices, host = devices_per_s or {}, host_per_s
    if host is None:  # torch's workers are all busy while training waits; without workers it waits while it makes a batch
        made_s = period_s * waited if workers == 0 and waited else period_s
        host = 0.0 if workers is None else 1 / made_s
    able = max(1 / period_s, host + sum(devices.values()))  # batches a second of all sides

    def times(more_per_s: float, limit: float = math.inf) -> float:
        return max(1.0, min(at_most, limit, (able + more_per_s) * period_s))

    remedies = []
    now = max(1, workers or 0)
    more = min(2 * now, processors or 2 * now)
    if workers is not None and more > now:
        remedies.append(Remedy(f"num_workers={more}", times(host * (more / now - 1), period_s / between_s)))
    if devices:
        name = max(devices, key=lambda device: devices[device])
        which = "a second device" if len(devices) == 1 else "one more device"
        remedies.append(Remedy(f"{which} like {name}", times(devices[name])))
    elif host_per_s is not None and travels:
        remedies.append(Remedy("a device as fast as this host", times(host_per_s)))
    return WaitingVerdict(
        batches, period_s, waited, step_s, between_s, ceiling is not None, at_most, tuple(remedies), start_s,
        itself=workers == 0 and not travels,
    )  # fmt: skip


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 or not part else f"{100 * part:.1g} %"
