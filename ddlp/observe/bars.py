"""`progress(loader)`: a loader's epoch as it goes on, on the terminal or as a few lines in a log.

    for images, labels in ddlp.observe.progress(loader, "epoch 1"):
        ...

    epoch 1:  42%|████▏     | 42/100 [00:10<00:14, 1034 img/s, 96% of bound, csd 29%, waiting 3%]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tqdm import tqdm

from ddlp.epoch.iterator import EpochIterator
from ddlp.observe.pace import Pace, Window, overall
from ddlp.process.finalizers import when_dropped
from ddlp.process.ranks import here
from ddlp.schedule.ledger import Side
from ddlp.schedule.strategies import called
from ddlp.sources.host.torch_workers import samples_in
from ddlp.stats.live import Live, Sums, counted, length
from ddlp.stats.report import Counts

__all__ = ["Progress", "figures", "progress"]

_WINDOW_S = 10.0  # while the epoch runs, images/s and waiting are of the last so many seconds
_WORTH_A_CAUSE = 0.05  # part of the time: if training waits longer, the cause is named


class Progress:
    """A loader's batches, with a progress bar: iterate over it instead of the loader, in one epoch or in several.

    It shows batches, images a second and the part of the time that training waited (both of the last 10 s; of the whole epoch
    at its end), how near that is to the bound r_cpu + r_csd, and the devices' share. Where ``file`` is no terminal it prints a
    line now and then instead: after 5 s, 15 s, 35 s and so on, in the end once a minute, and at the end.

    Args:
        loader: a DDLPLoader. Anything else that gives batches works too, but without rates of its sides and without the bound.
        desc, total, leave, file: as in tqdm; ``total`` is in batches. By default the loader's length, and standard error.
        disable: True: nothing is shown. False: every rank shows. None: of several ranks only the first one shows.
    """

    def __init__(
        self, loader: Any, desc: str = "", total: int | None = None, leave: bool = True, file: TextIO | None = None,
        disable: bool | None = None,
    ) -> None:  # fmt: skip
        self.loader = loader
        self._desc, self._total, self._leave, self._file, self._disable = desc, total, leave, file, disable

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        ranks = here()
        inner = iter(self.loader)
        if self._disable or (self._disable is None and ranks is not None and ranks.rank > 0):
            return inner
        total = length(self.loader) if self._total is None else self._total
        inner, look = _live_of(self.loader, inner, total)
        rank = "" if ranks is None else f" (rank {ranks.rank} of {ranks.ranks})"
        file = sys.stderr if self._file is None else self._file
        desc, display = f"{self._desc}{rank}".strip(), None
        if file.isatty() and os.environ.get("TERM") != "dumb":
            display = _Tqdm(desc, total, look().delivered, file, self._leave)
        return _Shown(inner, _Bar(display or _Lines(desc, total, file), look))


progress = Progress
"""The name by which it is called, as tqdm is."""


def _live_of(loader: Any, inner: Iterator[Any], total: int | None) -> tuple[Iterator[Any], Callable[[], Live]]:
    """The iterator, and a function that gives its numbers. An iterator without counts of its own gets a counter."""
    if isinstance(inner, EpochIterator):
        return inner, inner.live
    counts = getattr(inner, "counts", None)
    if not isinstance(counts, Counts):
        counts = Counts()
        inner = _Counted(inner, counts, getattr(loader, "_auto_collation", True))
    return inner, lambda: counted(counts, Sums().plus(counts), total)


class _Counted:
    """Counts the batches of any iterator."""

    def __init__(self, inner: Iterator[Any], counts: Counts, in_batches: bool) -> None:
        self._inner, self._counts, self._in_batches = inner, counts, in_batches

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        asked_s = time.monotonic()
        batch = next(self._inner)
        samples = samples_in(batch) if self._in_batches else 1
        self._counts.delivered(0, Side.HOST, samples, asked_s, time.monotonic())
        return batch


class _Shown:
    """The iterator over one epoch. It keeps no batch. It passes errors on; the user may go on after them, as without a bar."""

    def __init__(self, inner: Iterator[Any], bar: _Bar) -> None:
        self._inner, self._bar = inner, bar
        self._closer = when_dropped(self, bar.close)

    def __iter__(self) -> _Shown:
        return self

    def __next__(self) -> Any:
        bar = self._bar
        bar.steps += 1
        if time.monotonic() >= bar.due_s:
            bar.show()
        try:
            return next(self._inner)
        except StopIteration:
            self._closer.detach()
            bar.close()
            raise


class _Bar:
    """What is shown of one epoch. It holds no iterator, so that an unused one can be freed."""

    def __init__(self, display: _Tqdm | _Lines, look: Callable[[], Live]) -> None:
        self.steps = -1  # batches asked for; training is done with all but the last
        self._before = look().delivered  # batches delivered before a resume
        self._display, self._look = display, look
        self._window = Window(_WINDOW_S)
        self._over = False
        self.due_s = time.monotonic() + display.pause_s

    def show(self) -> None:
        live = self._look()
        self._display.show(self._before + self.steps, live, self._window.pace(live))
        self.due_s = time.monotonic() + self._display.pause_s

    def close(self) -> None:
        """End the bar, however the epoch ended. May be called twice."""
        if self._over:
            return
        self._over, self.due_s = True, float("inf")
        live = self._look()
        self._display.close(self._before + max(0, self.steps), live, overall(live))


def figures(live: Live, pace: Pace, long: bool = False) -> str:
    """The figures of one moment, in a few words."""
    report, bound = live.report, live.bound
    parts = [f"{_rate(pace.samples_per_s)} img/s"]
    if bound:
        of = f" ({_rate(bound)} img/s)" if long else ""
        parts.append(f"{pace.samples_per_s / bound:.0%} of bound{of}")
    if called(report.strategy).uses_device:
        share = report.batches_csd / max(1, report.batches_cpu + report.batches_csd)
        parts.append(f"host {1 - share:.0%}, csd {share:.0%}" if long else f"csd {share:.0%}")
    cause, part = max(pace.waiting.items(), key=lambda wait: wait[1])
    parts.append(f"waiting {pace.waited:.0%}" + (f" ({cause})" if part >= _WORTH_A_CAUSE else ""))
    return ", ".join(parts)


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.1f}"


class _Tqdm:
    """tqdm's bar."""

    pause_s = 0.2

    def __init__(self, desc: str, total: int | None, done: int, file: TextIO, leave: bool) -> None:
        form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        self._bar = tqdm(
            desc=f"{desc}: " if desc else None, total=total, initial=done, leave=leave, file=file, dynamic_ncols=True,
            mininterval=0, miniters=0, bar_format="{desc}{n_fmt} batches [{elapsed}{postfix}]" if total is None else form,
        )  # fmt: skip

    def show(self, done: int, live: Live, pace: Pace) -> None:
        self._bar.set_postfix_str(figures(live, pace), refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self, done: int, live: Live, pace: Pace) -> None:
        self.show(done, live, pace)
        self._bar.close()


class _Lines:
    """Lines for a file: the first ones come soon, later ones more rarely."""

    def __init__(self, desc: str, total: int | None, file: TextIO) -> None:
        self._desc, self._total, self._file = desc, total, file
        self.pause_s = 5.0

    def show(self, done: int, live: Live, pace: Pace) -> None:
        self._print(done, live, pace)
        self.pause_s = min(60.0, 2 * self.pause_s)

    def _print(self, done: int, live: Live, pace: Pace) -> None:
        head = f"{self._desc}: " if self._desc else ""
        of = "" if self._total is None else f"/{self._total}"
        seconds = round(live.report.seconds)
        clock = f"{seconds // 60}:{seconds % 60:02d} min"
        print(f"{head}{done}{of} batches, {clock}, {figures(live, pace, long=True)}", file=self._file, flush=True)

    close = _print
