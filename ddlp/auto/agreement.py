"""One decision of all ranks of a training, for `strategy="auto"`. Pure: `ddlp.auto.rank_exchange` carries what is said here.

Each rank measures its windows of batches. Rank 0 says of each window whose figures count: the slowest rank's. All ranks judge
these figures, each by its own controller. Judging is pure, so all come to the same decision, and no rank is asked for it: one
that loses the others goes on from where all of them were.

What was agreed is numbered. First comes what rank 0 remembers of an earlier run, then the windows. A rank measures once it has
judged what was agreed before, and then waits for what counts. Ranks that train in step feel each other's devices begin and end.
So after a change nobody measures before all have made it, and windows that are not alike are measured again.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from csd_engine.protocol.fields import MAX_INT, MAX_TEXT, Check, integer, list_of, number, optional, truth
from csd_engine.protocol.schema import checked_fields, text_of
from ddlp.auto.measured import Measured

__all__ = ["LATE", "Agreed", "Agreement", "WindowFigures", "alike", "slowest"]

AGAIN = 2  # times in a row that a window is measured again
LATE = 200  # batches that rank 0 waits for other ranks' windows, after its own; the others wait twice as long for rank 0

IN_STEP = 0.25  # ranks may train in step if a batch takes all of them as long but for this part: short windows are noisy
UNLIKE = 0.2  # the part of a window in which another rank's sources may still have been on their way

_RANK = integer(0, MAX_INT)


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
_CHECKS = {field.name: _BY_TYPE[str(field.type)] for field in fields(WindowFigures)}


@dataclass(frozen=True)
class Agreed:
    """What all ranks judge next.

    Attributes:
        rank: whose figures these are.
        window: a window of batches; None: at the beginning, and where there is nothing to judge and the ranks may measure.
        known: at the beginning: what rank 0 remembers of an earlier run; None: nothing.
        sources: at the beginning: the names of rank 0's sources.
        without: ranks that have sent no figures of this window.
    """

    rank: int = 0
    window: WindowFigures | None = None
    known: Measured | None = None
    sources: tuple[str, ...] = ()
    without: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return it as a text, for `from_json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Agreed:
        """Return what a text of `to_json` has. Raises ValueError if it is damaged."""
        checks = {
            "rank": _RANK, "window": optional(WindowFigures.from_data), "known": optional(Measured.from_data),
            "sources": NAMES, "without": list_of(_RANK, 1 << 20),
        }  # fmt: skip
        return Agreed(**checked_fields("Agreed", json.loads(text), checks, {}))


@dataclass
class Agreement:
    """A rank's part in it, for all epochs of a loader.

    Two threads use it, without a lock: training offers windows and takes what was agreed, and another one carries that.

    Attributes:
        name: of the loader, the same on all ranks.
        rank, ranks: of the training.
        sources: the names of this rank's sources.
        known: what rank 0 remembers of an earlier run.
        offered: what this rank waits with: the number of what is due, and its window; without a window it is ready to measure.
            None: it does not wait.
        heard: how many agreements have come.
        absent: ranks that rank 0 does not wait for, since they were late.
        lost: why this rank decides by itself from now on; empty: it does not.
        wake: called when there is something to carry.
    """

    name: str
    rank: int
    ranks: int
    sources: tuple[str, ...] = ()
    known: Measured | None = None
    offered: tuple[int, WindowFigures | None] | None = None
    heard: int = 0
    absent: frozenset[int] = frozenset()
    lost: str = ""
    wake: Callable[[], None] = lambda: None
    _waited: int = 0  # batches since the last offer
    _taken: int = 0
    _again: int = 0
    _inbox: deque[Agreed] = field(default_factory=deque)

    @property
    def leads(self) -> bool:
        """Whether this rank says what counts."""
        return self.rank == 0

    # -- the training thread -------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the beginning was taken: before that nothing is offered."""
        return self._taken > 0

    def offer(self, window: WindowFigures | None) -> None:
        """Offer a window that this rank has measured; None: it is ready to measure one. From then on it waits."""
        self._waited, self.offered = 0, (self._taken, window)
        self.wake()

    def delivered(self) -> None:
        """Note a batch."""
        self._waited += 1
        if not self.lost and self.offered is not None and self._waited > 2 * LATE:
            self.lost = f"{'the store' if self.leads else 'rank 0'} has said nothing for {2 * LATE} batches"
            self.wake()

    def take(self) -> Agreed | None:
        """Return what is to be judged next, each once; None: nothing has come."""
        if not self._inbox:
            return None
        self.offered = None  # before the next one can be sent as an answer to what is judged only now
        self._taken += 1
        return self._inbox.popleft()

    # -- the thread that carries ---------------------------------------------------------------------------------

    @property
    def to_send(self) -> tuple[int, WindowFigures | None] | None:
        """What this rank offers, if that is due."""
        offered = self.offered
        return offered if offered is not None and offered[0] == self.heard else None

    @property
    def late(self) -> bool:
        """Whether rank 0 has waited long enough for the others."""
        return self._waited > LATE

    def agree(self, offered: Mapping[int, WindowFigures | None]) -> Agreed | None:
        """Return what counts, on rank 0; None: a rank is still waited for.

        Args:
            offered: what each rank has offered that is not behind.
        """
        missing = frozenset(range(self.ranks)) - offered.keys()
        if missing - self.absent and not self.late:
            return None
        self.absent, without = missing, tuple(sorted(missing))
        windows = {rank: window for rank, window in offered.items() if window is not None}
        if not windows:
            return Agreed(without=without)
        if self._again < AGAIN and not alike(windows):
            self._again += 1
            return Agreed(without=without)
        self._again, rank = 0, slowest(windows)
        return Agreed(rank, windows[rank], without=without)

    def left(self, rank: int) -> None:
        """Note, on rank 0, that a rank decides by itself."""
        self.absent |= {rank}

    def hear(self, agreed: Agreed) -> None:
        """Hand over what was agreed. A rank with other devices than rank 0 decides by itself."""
        if not self.heard and agreed.sources != self.sources:
            self.lost = f"its devices are {', '.join(self.sources)}, and those of rank 0 are {', '.join(agreed.sources)}"
            return
        self.heard += 1
        self._inbox.append(agreed)


def slowest(windows: Mapping[int, WindowFigures]) -> int:
    """Return the rank whose window counts for all, the one whose batches take longest.

    Ranks that train in step take the same time for a batch, whoever waits for data: the others wait for that rank within their
    step. So of the ranks that are equally slow the one with the shortest step counts.
    """
    longest_s = max(window.taken_s for window in windows.values())
    level = [rank for rank, window in windows.items() if window.taken_s >= (1 - IN_STEP) * longest_s]
    return min(level, key=lambda rank: (windows[rank].step_s or math.inf, rank))


def alike(windows: Mapping[int, WindowFigures]) -> bool:
    """Whether ranks that train in step have measured at the same time. Until its sources are there a rank slows all others."""
    latest = max(window.began for window in windows.values())
    return all(latest - window.began <= UNLIKE * window.length for window in windows.values())
