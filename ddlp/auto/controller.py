"""`Controller` decides, while training goes on, which sources take part. It is what `strategy="auto"` adds to wrr.

It measures windows of batches: first the host alone, then with all sources. `ddlp.auto.decide` judges the figures, and the
sources that it does not choose rest. After each further window it decides anew. The last word has what was measured: if two
windows in a row were slower than the host alone was, all sources rest, and are tried again much later.

Where several ranks train, they judge the same windows: those of the slowest rank (`ddlp.auto.agreement`).

It is pure: durations come in, `Rates.resting` goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

from ddlp.auto.agreement import Agreement, WindowFigures
from ddlp.auto.decide import Decision, Goal, decide
from ddlp.auto.measured import Measured, OffloadPath, Transport
from ddlp.auto.scaling import Scaler
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rate, Rates

__all__ = ["Controller"]

WARM_UP = 3  # batches of the first epoch that are not measured
HOST_WINDOW = 30  # batches of the first window, of the host alone; it ends earlier, after
HOST_LEAST = 10  # batches, once the standard error of their times is at most
HOST_ERROR = 0.02  # of the mean: devices rest meanwhile
TRIAL_WINDOW = 50  # batches of the window in which a source is measured
WINDOW = 100  # batches of every other window
TRIAL_BATCHES = 3  # that each source must have made before its window begins
TRIAL_WAIT = 50  # batches: a window begins after so many even if a source has made none
ABORT_AFTER = 20  # batches of a repeated try: it ends if they took longer than the host alone by
ABORT_SLOWER = 0.10  # this part
RETRY = 1000  # batches until sources that were sent to rest are tried again; twice as many after each time
MOVED = 0.10  # a rate that has changed by this part allows another decision before `RETRY` batches
PAUSE = 20  # batches after the number of a pool's engines has changed that are not measured
SLOW_WINDOWS = 2  # so many windows in a row that were slower than the host alone end the offloading; slower by
SLOWER = 0.01  # this part at least: where training does not wait for either, times differ by less, and hardly vary


@dataclass
class _Window:
    """Batches in a row, each from the moment when training had the one before. Sizes are parts of full batches."""

    totals: Mapping[int, tuple[int, float]]  # of each rate, by its id, at the beginning: batches, and the sum of their seconds
    began: int  # batches since the last agreement of the ranks
    batches: int = 0
    size: float = 0.0
    seconds: float = 0.0
    before_s: float = 0.0  # of the trial that its sources had before it
    shared: bool = False  # a source took part
    times: Rate = field(default_factory=Rate)  # of the single batches

    @property
    def batch_s(self) -> float:
        """Seconds a full batch."""
        return self.seconds / self.size


@dataclass(frozen=True)
class _Alone:
    """The host without sources: seconds a batch, the part of them that is processor time, and whether training waited."""

    batch_s: float
    cpu_s: float
    waits: bool


@dataclass
class Controller:
    """Measures, decides, and writes `Rates.resting`. One for all epochs of a loader.

    Attributes:
        rates: how fast each side is.
        goal: what to make small.
        processors: that this process may use; None: not known.
        decision: the last one; None: not enough is measured yet.
        measured: what it was made from.
        transports: how each source's batches come, as far as that is known.
        carried: the sources to which the host sends the files of their batches.
        stopped: what was measured has ended the offloading.
        agreement: with the other ranks; None: this one decides by itself.
        scaler: says how many engines the pool should have, if all sources are those of a pool that can grow and shrink; None:
            no such pool. Its engines rest all or not at all.
        want: asks the pool for so many engines.
    """

    rates: Rates
    goal: Goal = field(default_factory=Goal)
    processors: float | None = None
    decision: Decision | None = None
    measured: Measured | None = None
    transports: dict[str, Transport] = field(default_factory=dict)
    carried: set[str] = field(default_factory=set)
    stopped: bool = False
    agreement: Agreement | None = None
    scaler: Scaler | None = None
    want: Callable[[int], None] = lambda engines: None
    _ledger: Ledger | None = None
    _batches: int = 0
    _warm_up: int = WARM_UP
    _length: int = HOST_WINDOW
    _window: _Window | None = None
    _alone: _Alone | None = None
    _alive: frozenset[str] = frozenset()
    _trial: dict[str, int] | None = None  # sources on trial: the batches that each must have made before its window begins
    _trial_until: int = 0
    _trial_s: float = 0.0  # seconds of the trial before its window
    _on_trial: bool = False  # the window is a trial's
    _not_before: int = 0  # sources are not tried before so many batches
    _retries: int = 0
    _at_most: dict[str, float] = field(default_factory=dict)  # batches a second of sources that have made none in their window
    _slow: int = 0  # slower windows in a row
    _changed_at: int = 0
    _changed_rates: dict[str, float] = field(default_factory=dict)  # when the decision changed last
    _without: tuple[int, ...] = ()  # ranks that were missing from the last agreement
    _judged: int | None = None  # the rank whose window was judged last
    _agreed_at: int = 0

    @property
    def engines(self) -> int:
        """How many engines the pool should have; 0 without a pool that can grow and shrink."""
        return 0 if self.scaler is None else self.scaler.engines

    def asks(self, want: Callable[[int], None]) -> None:
        """Take what asks the pool for so many engines."""
        self.want = want

    def begin(self, ledger: Ledger) -> None:
        """Begin an epoch. Raises ValueError if watts or prices of a source are missing."""
        self.goal.check(set(ledger.devices))
        self._ledger, self._alive = ledger, frozenset()
        if self._alone is None:
            self.rates.rest(ledger.devices)  # the host is measured alone first
        elif not self._batches:
            self._begin_as_known()

    def know(self, measured: Measured) -> None:
        """Begin with what an earlier run has measured: the first window has the sources that were right then."""
        if measured.host_batches_per_s is None or measured.step_s is None:
            return
        batch_s = max(measured.step_s, 1 / measured.host_batches_per_s)
        self._alone = _Alone(batch_s, 0.0, batch_s > measured.step_s)
        self._warm_up, self._length, self.measured = WARM_UP, WINDOW, measured
        self.decision = decide(measured, self.goal)
        self._not_before = 0 if self.decision.offloads else RETRY

    def _begin_as_known(self) -> None:
        assert self._ledger is not None
        if self.decision is not None:
            self._rest_all_but({path.source for path in self.decision.chosen.paths}, set(self._ledger.devices))

    def delivered(self, waited_s: float, step_s: float | None, part: float) -> str | None:
        """Note a batch. Returns a line for the user if what was measured ends the offloading, or other ranks are lost.

        Args:
            waited_s: seconds that training waited for it.
            step_s: seconds of training between the batch before and the request for this one; None: it is an epoch's first.
            part: the size of the batch before, as a part of a full one.
        """
        if step_s is None:  # it waited for the epoch's beginning
            return None
        self._batches += 1
        if self.agreement is not None and (news := self._follow(self.agreement)) is not None:
            return news
        if self._warm_up > 0:
            self._warm_up -= 1
            return None
        self._look_for_joined()
        if self.agreement is not None and self.agreement.offered is not None:
            return None  # the next window begins once this one is judged
        if self._trial is not None and self._trial_begins():
            self._trial_s, self._window = 0.0 if self._window is None else self._window.seconds, None
        window = self._window = self._window or _Window(self._totals(), self._batches - 1 - self._agreed_at)
        usual = self.rates.training
        if usual.count >= Rates.STEPS:
            step_s = min(step_s, Rates.PAUSE * usual.seconds * part)
        window.batches, window.seconds = window.batches + 1, window.seconds + waited_s + step_s
        window.size += part
        window.times.add(waited_s + step_s, part)
        window.shared = window.shared or bool(self._taking_part())
        failed = self._fails(window)
        if not failed:
            if self._trial is not None or not (window.batches >= self._length or self._known_early(window)):
                return None
            if not window.size:
                return None
            if self.agreement is not None and not self.agreement.begun:
                return None
        figures = self._figures(window, failed)
        self._window, self._length, self._trial, self._on_trial = None, WINDOW, None, False
        if self.agreement is None:
            return self._judge(figures)
        self.agreement.offer(figures)
        return None

    def _fails(self, window: _Window) -> bool:
        """True if a repeated try is clearly slower than the host alone. The first one is measured to its end."""
        if not (self._on_trial and self._retries and window.shared and window.batches >= ABORT_AFTER and window.size):
            return False
        return window.batch_s > (1 + ABORT_SLOWER) * self._alone_s(self._mean(self.rates.training, window), self._cpu_now_s())

    def _known_early(self, window: _Window) -> bool:
        if self._alone is not None or self.scaler is not None:  # a number of engines wants better figures than yes or no
            return False
        return window.batches >= HOST_LEAST and window.times.known(HOST_ERROR, HOST_WINDOW)

    @property
    def offloads(self) -> tuple[str, ...] | None:
        """The sources that should take part, by the decision of now; None: it is not taken yet."""
        if self.decision is None:
            return None
        return () if self.stopped else tuple(path.source for path in self.decision.chosen.paths)

    @property
    def to_remember(self) -> Measured | None:
        """What the next run of the same may begin with: without sources that made training slower. None: nothing yet."""
        return replace(self.measured, paths=()) if self.measured is not None and self.stopped else self.measured

    def note(self) -> str:
        """Return a line for the report."""
        if self.decision is None and self.agreement is not None and self.agreement.offered is not None:
            return f"auto waits for the other {self.agreement.ranks - 1} ranks' measurements"
        if self.decision is None:
            have = self._window.batches if self._window is not None else 0
            what = "the host alone" if self._alone is None else "its sources"
            return f"auto measures {what} ({min(have, self._length)} of {self._length} batches)"
        ranks = "" if self.agreement is None or self._judged is None else (
            f" All {self.agreement.ranks} ranks go by the figures of the slowest, rank {self._judged}."
        )  # fmt: skip
        if self.stopped:
            return f"auto: with its sources training was slower than with the host alone, so they rest.{ranks}"
        return f"auto: {self.decision.why}{ranks}"

    # -- with other ranks ----------------------------------------------------------------------------------------

    def _follow(self, agreement: Agreement) -> str | None:
        """Judge what the ranks have agreed on, one at a time. Returns a line for the user."""
        agreement.delivered()
        begun, offered, resting = agreement.begun, agreement.offered, set(self.rates.resting)
        agreed = agreement.take()
        if agreed is None:
            if not agreement.lost:
                return None
            self.agreement = None
            return f"rank {agreement.rank} decides by itself from now on which devices take part: {agreement.lost.rstrip('.')}."
        self._agreed_at, news = self._batches, None
        if agreed.window is not None:
            self._window, self._judged = None, agreed.rank
            if self._trial is None:
                self._length, self._on_trial = WINDOW, False
            news = self._judge(agreed.window)
        elif begun:
            self._window = None
            if offered is not None and offered[1] is not None and offered[1].trial:
                self._length, self._on_trial = TRIAL_WINDOW, True
        elif agreed.known is not None and not agreement.leads:  # rank 0 has begun with it
            self._window = None
            self.know(agreed.known)
            self._begin_as_known()
        if agreed.known is not None or resting != self.rates.resting:
            agreement.offer(None)
        before, self._without = self._without, agreed.without
        if not agreement.leads:  # one rank tells it
            return None
        if agreed.without and agreed.without != before:
            lacking = ", ".join(map(str, agreed.without))
            news = f"{news or ''} Which devices take part is decided without the measurements of rank {lacking}.".strip()
        return news

    # -- sources -------------------------------------------------------------------------------------------------

    def _taking_part(self) -> frozenset[str]:
        return self._alive - self.rates.resting

    def _look_for_joined(self) -> None:
        assert self._ledger is not None
        alive = frozenset(name for name, account in self._ledger.devices.items() if account.at_work)
        joined = alive - self._alive - self.rates.resting
        if alive != self._alive:
            self._alive, self._window = alive, None  # a window has the same sources from its beginning to its end
            if self.scaler is not None:
                self._warm_up = PAUSE
        if self._alone is None:
            self.rates.rest(joined)  # the host is measured alone first
        elif any(not self.rates.device(name).count for name in joined):
            self._try(joined)

    def _try(self, names: frozenset[str]) -> None:
        """Let sources take part, and measure them."""
        self.rates.work(names)
        self._trial = {name: self.rates.device(name).count + TRIAL_BATCHES for name in names}
        self._trial_until = self._batches + TRIAL_WAIT
        self._window, self._length, self._on_trial = None, TRIAL_WINDOW if self.scaler is None else WINDOW, True

    def _trial_begins(self) -> bool:
        """True once all sources on trial have made some batches, or have had the time to."""
        assert self._trial is not None
        have_batches = all(self.rates.device(name).count >= count for name, count in self._trial.items() if name in self._alive)
        if have_batches or self._batches >= self._trial_until:
            self._trial = None
            return True
        return False

    def _rest_all_but(self, chosen: set[str], of: Set[str]) -> None:
        self.rates.rest(of - chosen)
        self.rates.work(chosen)

    # -- judging a window ----------------------------------------------------------------------------------------

    def _judge(self, window: WindowFigures) -> str | None:
        """Judge a window. What comes of it follows from the windows that were judged so far, and from nothing else."""
        if window.failed:
            return self._stop(window)
        if not window.shared:
            self._judge_alone(window)
            if window.batches >= self._not_before:
                self._scale(window)
            return None
        self._scale(window)
        self.stopped = False
        slower = window.batch_s > self._alone_s(window.step_s, window.host_cpu_now_s) * (1 + max(SLOWER, window.error))
        self._slow = self._slow + 1 if slower else 0
        self.measured = self._with_host_alone(window)
        if self._slow >= SLOW_WINDOWS and self.goal.objective == "time":
            return self._stop(window)
        decision = decide(self.measured, self.goal)
        chosen = {path.source for path in decision.chosen.paths}
        if self.scaler is not None and (chosen or self.scaler.engines > self.scaler.least):
            chosen = set(window.taking_part)
        if chosen == set(window.taking_part):
            self.decision = decision
            if window.batches - self._changed_at >= RETRY:
                self._retries = 0  # it has held
        elif window.trial or self._may_change(window.batches):
            self.decision = decision
            self._rest_all_but(chosen, set(window.alive))
            self._changed(window)
        return None

    def _scale(self, window: WindowFigures) -> None:
        """Ask the pool for as many engines as the scaler wants now."""
        if self.scaler is None:
            return
        assert self._alone is not None
        before, alone_s = self.scaler.engines, max(self._alone.batch_s if self._alone.waits else 0.0, window.step_s)
        now_s = self._alone_s(window.step_s, window.host_cpu_s)
        if abs(now_s / alone_s - 1) > MOVED:  # else it scatters more than it has changed
            alone_s = now_s
        measured = replace(window.measured, host_batches_per_s=1 / alone_s if alone_s else None)
        if self.scaler.window(len(window.taking_part), window.taken_s, measured) != before:
            self._scaled(self.scaler.engines)

    def _scaled(self, engines: int) -> None:
        self._warm_up = PAUSE
        self.rates.work()
        self.want(engines)

    def _judge_alone(self, window: WindowFigures) -> None:
        """Judge a window of the host alone. Sources are tried if training waits, unless they had to rest not long ago."""
        waits = window.taken_s > (1 + self.goal.threshold) * window.step_s
        self._alone = _Alone(window.taken_s, window.host_cpu_s, waits)
        sources = frozenset(window.sources)  # also those that have not joined yet: they take part as soon as they have
        if sources and (waits or self.goal.objective != "time") and window.batches >= self._not_before:
            self._try(sources)
            return
        self.measured = self._with_host_alone(window)
        decision = decide(self.measured, self.goal)
        if not (self.stopped or decision.offloads):  # else sources that rest may be worth a try, later
            self.decision = decision

    def _alone_s(self, step_s: float, cpu_s: float) -> float:
        """Seconds a batch that the host alone would take now: its processor time and the training step may have changed."""
        alone = self._alone
        assert alone is not None
        drift_s = cpu_s - alone.cpu_s if cpu_s and alone.cpu_s else 0.0  # what does not take processor time stays as it was
        return max(alone.batch_s + drift_s if alone.waits else 0.0, step_s)

    def _stop(self, window: WindowFigures) -> str:
        """End the offloading, since it was slower than the host alone."""
        names = window.taking_part
        self.rates.rest(window.alive)
        self.stopped, self._slow = True, 0
        self._changed(window)
        if self.scaler is not None and self.scaler.give_back():
            self.want(self.scaler.engines)
        alone_s = self._alone_s(window.step_s, window.host_cpu_now_s)
        return (
            f"batches take {window.batch_s:.3g} s with {', '.join(sorted(names))}, and the host alone takes "
            f"{alone_s:.3g} s: {'it rests' if len(names) == 1 else 'they rest'}, and a try follows after "
            f"{self._not_before - window.batches:,} batches."
        )

    def _changed(self, window: WindowFigures) -> None:
        """Note that the decision has changed. If all sources rest, they are tried later after each such time."""
        self._changed_at, self._changed_rates = window.batches, self._rates_now()
        if window.alive and self.rates.resting.issuperset(window.alive):
            self._not_before = window.batches + RETRY * 2**self._retries
            self._retries += 1

    def _may_change(self, batches: int) -> bool:
        """True if there was no change yet, the last one is long ago, or a rate has moved since."""
        if not self._changed_rates or batches - self._changed_at >= RETRY:
            return True
        before, now = self._changed_rates, self._rates_now()
        return any(abs(now[name] / before[name] - 1) > MOVED for name in now if before.get(name))

    def _rates_now(self) -> dict[str, float]:
        measured = self.measured
        assert measured is not None
        rates = {path.source: path.batches_per_s for path in measured.paths}
        return rates | {"host": measured.host_batches_per_s or 0.0, "step": measured.step_s or 0.0}

    def _with_host_alone(self, window: WindowFigures) -> Measured:
        alone_s = self._alone_s(window.step_s, window.host_cpu_now_s)
        return replace(window.measured, host_batches_per_s=1 / alone_s if alone_s else None)

    # -- figures -------------------------------------------------------------------------------------------------

    def _totals(self) -> dict[int, tuple[int, float]]:
        rates = (*self.rates.devices.values(), self.rates.training, self.rates.host, self.rates.host_cpu)
        return {id(rate): (rate.count, rate.total_s) for rate in rates}

    @staticmethod
    def _mean(rate: Rate, window: _Window) -> float:
        """Return the mean seconds of the window's batches; without any, those of the batches before; 0: not known."""
        return rate.mean_since(window.totals.get(id(rate), (0, 0.0))) or rate.seconds

    def _cpu_now_s(self) -> float:
        return self.rates.host_cpu.seconds / self.rates.host.parallel

    def _figures(self, window: _Window, failed: bool) -> WindowFigures:
        """Return what a window has shown that is over."""
        assert self._ledger is not None
        window.before_s, self._trial_s = self._trial_s, 0.0
        host, cpu_s = self.rates.host, self._mean(self.rates.host_cpu, window)
        sources = (name for name, account in self._ledger.devices.items() if self.scaler is None or account.there)
        measured = Measured(
            step_s=self._mean(self.rates.training, window) or None,
            host_cpu_s_per_batch=cpu_s or None,
            host_processors=self.processors,
            paths=tuple(self._path(name, window) for name in sorted(self._alive) if self._source_rate(name, window)),
        )
        return WindowFigures(
            batches=self._batches, began=max(0, window.began), length=window.batches,
            batch_s=window.batch_s, error=window.times.error,
            host_s=self._mean(host, window) / host.parallel, host_cpu_s=cpu_s / host.parallel, host_cpu_now_s=self._cpu_now_s(),
            shared=window.shared, trial=self._on_trial, failed=failed,
            sources=tuple(sorted(sources)), alive=tuple(sorted(self._alive)),
            taking_part=tuple(sorted(self._taking_part())), measured=measured,
        )  # fmt: skip

    def _source_rate(self, name: str, window: _Window) -> float:
        """Return the full batches a second that a source makes; 0: not known."""
        assert self._ledger is not None
        rate, works = self.rates.device(name), name not in self.rates.resting
        if not rate.count:
            if works and window.seconds:
                self._at_most[name] = 1 / (window.before_s + window.seconds)
            return self._at_most.get(name, 0.0)
        batches = rate.count - window.totals.get(id(rate), (0, 0.0))[0]
        per_s = rate.parallel / self._mean(rate, window) / rate.ranks
        if works and batches < per_s * window.seconds / 2 - 1 and self._ledger.devices[name].outstanding:
            return (batches + 0.5) / window.seconds  # it has slowed down, and its last batch was still a quick one
        return per_s

    def _path(self, name: str, window: _Window) -> OffloadPath:
        assert self._ledger is not None
        rate, rates, account = self.rates.device(name), self.rates, self._ledger.devices[name]
        size = float(rates.full_batch * rates.sample_bytes) or 1.0  # if it is not known, all sizes are in batches
        link, taking = rates.link_per_s(name), rates.taking_cpu.get(name)
        return OffloadPath(
            source=name, transport=self.transports.get(name, "stream"), workers=rate.parallel,
            batches_per_s=self._source_rate(name, window),
            host_cpu_s_per_batch=taking.seconds if taking is not None and taking.count else None,
            bytes_per_batch=size, bandwidth_bytes_per_s=link * size if rates.link_s(name) else None,
            spool_bytes=account.quota * size, carried=name in self.carried,
        )  # fmt: skip
