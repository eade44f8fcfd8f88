"""How many workers a loader should have, from what was measured: the decision of ``num_workers="auto"``. This module is pure.

A worker makes a batch in ``busy_s``, and takes a processor for ``cpu_s`` of that; for ``queued_s`` it is ready and waits for a
processor, and for the rest for disks, networks or whatever else. So n workers make n / busy_s batches a second, until they and
training take all processors:

    batches a second <= processors / (cpu_s + step_cpu_s)

More workers than (busy_s - queued_s) / (cpu_s + step_cpu_s) for each processor would only wait longer for one, also where it is
another program that they wait for. Training takes 1 / step_s. The fewest workers with which it doesn't wait are those that make
the smaller of these two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ddlp.stats.words import step_time

__all__ = ["LEAST", "AutoWorkers", "Figures", "Workers", "first_count", "workers"]

LEAST = 20  # batches that must be measured before a decision
SPARE = 0.1  # workers are to make so many more batches than training takes, as a part
HARDLY = 0.05  # of what the processors can make: another worker is not worth so little
MOST_A_PROCESSOR = 8  # workers, for pipelines that wait for others
MOST = 64  # workers in all
PREFETCH = 2, 8  # batches for each worker, the fewest and the most
LONGEST = 3  # standard deviations by which a long batch is longer than the mean
MEMORY = 0.5  # part of the available memory that workers and their batches may take
FULL = 0.85  # of the processors in use: from there on workers hold each other up
QUEUED = 0.05  # part of a worker's time in wait for a processor that is worth a word
WAITS = 0.05  # part of the time: if training waits less, no more workers are tried
FEWER = 0.75  # of the workers: if at most so many will do, the others end
ALIKE = 0.03  # epochs that differ by less, as a part, are as fast as each other


@dataclass(frozen=True)
class Figures:
    """What was measured of an epoch; seconds and bytes of full batches.

    Attributes:
        count: the workers that it was measured with.
        busy_s: seconds of one worker.
        cpu_s: processor seconds of the host to make one.
        step_s: seconds of a training step that does not wait.
        step_cpu_s: processor seconds of the training process for a step, without making batches.
        spread: the standard deviation of ``busy_s``, as a part of it.
        period_s: seconds from one batch to the next.
        waited: the part (0 to 1) of the time in which training waited.
        batch_bytes: of a batch in memory; 0: not known.
        worker_bytes: that a worker takes by itself.
        start_s: seconds in which an epoch starts one worker; 0: they are there already, or are threads.
        batches: of an epoch; of use with ``start_s``.
        queued_s: the part of ``busy_s`` in which the worker was ready to run and had no processor; 0: not known, or none.
    """

    count: int
    busy_s: float
    cpu_s: float
    step_s: float
    step_cpu_s: float = 0.0
    spread: float = 0.0
    period_s: float = 0.0
    waited: float = 0.0
    batch_bytes: float = 0.0
    worker_bytes: float = 0.0
    start_s: float = 0.0
    batches: int = 0
    queued_s: float = 0.0

    @property
    def unqueued_s(self) -> float:
        """Seconds of a worker that has a processor whenever it wants one."""
        return max(self.busy_s - self.queued_s, min(self.cpu_s, self.busy_s))

    def load(self) -> float:
        """Return how many processors the workers and training took, about."""
        per_s = min(self.count / self.busy_s, 1 / self.step_s)
        return per_s * (self.cpu_s + self.step_cpu_s)


@dataclass(frozen=True)
class Workers:
    """A decision: the number of workers, the batches that each prefetches (DataLoader's ``prefetch_factor``), and why."""

    count: int
    prefetch: int
    why: str


def first_count(processors: float) -> int:
    """Return the number of workers to begin with: a processor for each, and one for training."""
    return max(1, math.ceil(processors) - 1)


def workers(figures: Figures, processors: float, memory_bytes: float = math.inf) -> Workers:
    """Return the fewest workers with which training does not wait, or else those with which it waits least.

    Args:
        figures: what was measured.
        processors: that this process and its workers may use; may be a fraction.
        memory_bytes: available memory.
    """
    wanted = (1 + SPARE) * figures.busy_s / figures.step_s
    cpu_s = figures.cpu_s + figures.step_cpu_s
    able = processors * figures.unqueued_s / max(cpu_s, 1e-9)
    prefetch = min(PREFETCH[1], max(PREFETCH[0], math.ceil(1 + LONGEST * figures.spread)))
    each = figures.worker_bytes + (prefetch + 1) * figures.batch_bytes
    room = max(1, math.floor(MEMORY * memory_bytes / each)) if each and memory_bytes < math.inf else MOST
    most = min(MOST, _whole(MOST_A_PROCESSOR * processors))
    takes = f"a worker takes {step_time(figures.busy_s)} for a batch, {_part(figures.cpu_s / figures.busy_s)} of it a processor"
    if (queued := 1 - figures.unqueued_s / figures.busy_s) >= QUEUED:
        takes += f", {_part(queued)} in wait for one"
    limits = (
        (_whole(wanted), f"training takes one in {step_time(figures.step_s)}"),
        (_whole((1 - HARDLY) * able), f"{processors:.3g} processors make no more"),
        (most, f"more than {most} are not tried on {processors:.3g} processors"),
        (room, "memory has no room for more"),
    )
    count, why = min(limits, key=lambda limit: limit[0])
    if figures.start_s:
        batch_s = max(figures.step_s, cpu_s / processors)
        epochs_s = [n * figures.start_s + figures.batches * max(batch_s, figures.busy_s / n) for n in range(1, count + 1)]
        fewest = 1 + next((n for n, epoch_s in enumerate(epochs_s) if epoch_s <= (1 + ALIKE) * min(epochs_s)), 0)
        if fewest < count:
            count = fewest
            why = f"to start more, each in {step_time(figures.start_s)}, saves nothing in {figures.batches} batches"
    return Workers(max(1, count), prefetch, f"{takes}; {why}")


@dataclass
class AutoWorkers:
    """What ``num_workers="auto"`` knows from epoch to epoch, and decides between two of them. One for all epochs of a loader.

    Attributes:
        processors: that this process and its workers may use.
        count: the number of workers now.
        prefetch: the batches that each prefetches.
        why: why so many; empty: nothing is decided yet.
    """

    processors: float
    count: int = 0
    prefetch: int = PREFETCH[0]
    why: str = ""
    _decided: bool = False
    _alone: Figures | None = None  # the last figures of workers that did not hold each other up
    _tried: dict[int, float] = field(default_factory=dict)  # seconds from batch to batch, by the number of workers

    def __post_init__(self) -> None:
        self.count = self.count or first_count(self.processors)

    @property
    def line(self) -> str:
        """One line for the user."""
        begins = f"to begin with, on {self.processors:.3g} processors; an epoch of {LEAST} batches shows more"
        return f"{self.count} worker{'s' * (self.count != 1)}, {self.prefetch} batches each ({self.why or begins})"

    def know(self, count: int, prefetch: int) -> None:
        """Begin with what an earlier run has found."""
        self.count, self.prefetch, self.why, self._decided = count, prefetch, "found by an earlier run", True

    def measured(self, figures: Figures, memory_bytes: float = math.inf) -> None:
        """Take an epoch's figures, and decide.

        After the first decision the number stays, unless training waits and more workers can help, or much fewer will do. While
        training waits, no number is taken that was tried and was slower.
        """
        self._tried[figures.count] = figures.period_s
        choice = workers(self._held_up_by_none(figures), self.processors, memory_bytes)
        wanted, now = choice.count, figures.count
        if self._decided and not (wanted > now and figures.waited > WAITS) and wanted > FEWER * now:
            wanted = now
        if figures.waited > WAITS and wanted in self._tried:
            best = min(self._tried.values())
            wanted = min(count for count, period_s in self._tried.items() if period_s <= (1 + ALIKE) * best)
        tried = " and ".join(map(str, sorted(self._tried)))
        self.why = choice.why if wanted == choice.count else f"the fewest that are as fast as any tried: {tried}"
        self.count, self.prefetch, self._decided = wanted, choice.prefetch, True

    def _held_up_by_none(self, figures: Figures) -> Figures:
        """Return the figures with the time that a worker takes while others leave it a processor.

        If all processors are in use, a worker's time has waits for one. Then what fewer workers took is nearer the truth.
        """
        alone = self._alone
        if alone is None or figures.load() <= FULL * self.processors:
            self._alone = figures
            return figures
        waits_s = min(figures.unqueued_s - figures.cpu_s, alone.unqueued_s - alone.cpu_s)
        return replace(figures, busy_s=figures.cpu_s + waits_s, queued_s=0.0)


def _whole(number: float) -> int:
    """Return the next whole number, but not for a rounding error."""
    return math.ceil(number - 1e-9)


def _part(part: float) -> str:
    return f"{100 * min(1.0, part):.0f} %"
