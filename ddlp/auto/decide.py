"""Whether to offload, and to which sources: a pure function of what was measured.

`estimate` predicts one candidate, `decide` compares candidates. The model is FastFlow's (Um et al., PVLDB 16(5), 2023) for any
number of sources: what a source makes, the host need not make, but taking it costs the host processor time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, get_args

from ddlp.auto.measured import Measured, OffloadPath, Transport

__all__ = [
    "TYPICAL_OCYCLE", "Decision", "Estimate", "Goal", "Objective", "Power", "Prices", "all_sets", "decide", "estimate",
    "host_spare", "ocycle_ratio", "path_limit",
]  # fmt: skip

Objective = Literal["time", "energy", "cost"]

# Ocycle / Pcycle if it was not measured: that of a 38.5 MB batch on the machine on which ddlp was developed. What the host
# sends counts as what it takes.
TYPICAL_OCYCLE: Mapping[Transport, float] = {"stream": 0.38, "spool": 0.06}
_S_PER_H = 3600.0
_H_PER_MONTH = 730.0  # 365 days / 12: as clouds bill storage
_ROUNDING = 1 + 1e-9
_ALL_SETS_OF = 10  # sources; a set takes about 10 us


@dataclass(frozen=True)
class Power:
    """Watts. As in the paper's Table VIII, the accelerator and each engine count for the whole time, with or without work.

    Attributes:
        host_idle_watts: of the host without work.
        host_busy_watts: of the host with all its processors busy; between the two it is linear.
        accelerator_watts: of the accelerator.
        engine_watts: of each source, by its name, if it takes part.
    """

    host_idle_watts: float
    host_busy_watts: float
    accelerator_watts: float
    engine_watts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_given(self, "host_idle_watts", "host_busy_watts", "accelerator_watts")

    def joules(self, paths: tuple[OffloadPath, ...], time_s: float, busy: float) -> float:
        """Joules of so many seconds with these sources; ``busy``: the part of the host's processors at work, 0 to 1."""
        host = self.host_idle_watts + (self.host_busy_watts - self.host_idle_watts) * busy
        return time_s * (host + self.accelerator_watts + sum(self.engine_watts[path.source] for path in paths))


@dataclass(frozen=True)
class Prices:
    """Prices in one currency, whichever it is.

    Attributes:
        host_per_h: of an hour of this host.
        accelerator_per_h: of an hour of its accelerator.
        engine_per_h: of an hour of each source, by its name, if it takes part.
        stored_per_gb_month: of 10^9 bytes of spool room for a month (730 h).
    """

    host_per_h: float
    accelerator_per_h: float
    engine_per_h: Mapping[str, float] = field(default_factory=dict)
    stored_per_gb_month: float = 0.0

    def __post_init__(self) -> None:
        _check_given(self, "host_per_h", "accelerator_per_h", "stored_per_gb_month")

    def cost(self, paths: tuple[OffloadPath, ...], time_s: float) -> float:
        """What so many seconds with these sources cost."""
        engines = sum(self.engine_per_h[path.source] for path in paths)
        storage = sum(path.spool_bytes or 0.0 for path in paths) / 1e9 * self.stored_per_gb_month / _H_PER_MONTH
        return time_s / _S_PER_H * (self.host_per_h + self.accelerator_per_h + engines + storage)


def _check_given(of: Power | Prices, *names: str) -> None:
    values = {name: getattr(of, name) for name in names}
    values |= {f"{kind}[{source!r}]": value for kind in ("engine_watts", "engine_per_h")
               for source, value in getattr(of, kind, {}).items()}  # fmt: skip
    for name, value in values.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{type(of).__name__}: {name}={value!r}; give a finite number of at least 0")


@dataclass(frozen=True)
class Goal:
    """What `strategy="auto"` makes small.

    Attributes:
        objective: seconds, joules or price of a batch.
        threshold: the part by which a decision with more sources must be better.
        max_slowdown: no decision may take more than (1 + max_slowdown) times as long as the fastest; None: any.
        prices: for the objective "cost"; else for the estimates alone.
        power: for the objective "energy"; else for the estimates alone.
        model: a name of what is trained. What a run has measured is kept for the next run of the same model, data and host.
        remember: False: nothing is kept, and nothing of an earlier run is used.

    Raises ValueError for a value out of its range, and if prices or watts are missing.
    """

    objective: Objective = "time"
    threshold: float = 0.02
    max_slowdown: float | None = None
    prices: Prices | None = None
    power: Power | None = None
    model: str = ""
    remember: bool = True

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise ValueError(f"objective={self.objective!r}; give one of {', '.join(get_args(Objective))}")
        for name in ("threshold", "max_slowdown"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}; give a part of at least 0, such as 0.02 for 2 %")
        if self.objective == "cost" and self.prices is None:
            raise ValueError(
                "objective='cost' and no prices; ddlp has none built in. Give prices=Prices(host_per_h=..., "
                "accelerator_per_h=..., engine_per_h={source: ...})"
            )
        if self.objective == "energy" and self.power is None:
            raise ValueError(
                "objective='energy' and no watts. Give power=Power(host_idle_watts=..., host_busy_watts=..., "
                "accelerator_watts=..., engine_watts={source: ...}), as measured or from a data sheet"
            )

    def check(self, sources: Set[str]) -> None:
        """Raise ValueError if watts or prices were given, but not those of all these sources."""
        given = {"prices.engine_per_h": self.prices.engine_per_h} if self.prices else {}
        given |= {"power.engine_watts": self.power.engine_watts} if self.power else {}
        for name, known in given.items():
            if missing := sorted(sources - set(known)):
                raise ValueError(f"{name} lacks {', '.join(map(repr, missing))}; give a number for each source, 0 for none")


@dataclass(frozen=True)
class Estimate:
    """What one candidate is expected to do. Energy and cost are None without watts and prices.

    Attributes:
        paths: the candidate: the sources that take part; none: the host alone.
        time_s: seconds a batch; None if too little is known.
        limit: the stage that limits: "training", "host", "source", "transfer" or "spool"; "unknown" without a time.
        capacity_batches_per_s: batches a second of all sides together if training took no time.
        host_batches_per_s: batches a second that the host makes.
        source_batches_per_s: batches a second of each source, in the order of ``paths``.
        source_limits: the stage that limits each source, in the same order.
        energy_j: joules a batch.
        cost: price of a batch.
        assumed: what was not measured and has been assumed.
    """

    paths: tuple[OffloadPath, ...] = ()
    time_s: float | None = None
    limit: str = "unknown"
    capacity_batches_per_s: float = 0.0
    host_batches_per_s: float = 0.0
    source_batches_per_s: tuple[float, ...] = ()
    source_limits: tuple[str, ...] = ()
    energy_j: float | None = None
    cost: float | None = None
    assumed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " and ".join(str(path) for path in self.paths) or "the host alone"

    @property
    def engine_s(self) -> float:
        """Seconds of engines that a batch takes: each one that takes part counts for the whole time."""
        return len(self.paths) * (self.time_s or 0.0)

    def value(self, objective: Objective) -> float:
        """What the objective makes small; infinite if it is not known."""
        known = {"time": self.time_s, "energy": self.energy_j, "cost": self.cost}[objective]
        return math.inf if known is None else known


@dataclass(frozen=True)
class Decision:
    """What to do. ``estimates`` has every candidate, the host alone first. ``why`` is one sentence."""

    chosen: Estimate
    estimates: tuple[Estimate, ...]
    objective: Objective
    why: str

    @property
    def offloads(self) -> bool:
        """False: the devices rest."""
        return bool(self.chosen.paths)


def estimate(measured: Measured, paths: tuple[OffloadPath, ...] = (), goal: Goal = Goal()) -> Estimate:
    """Predict a steady state with these sources, and what it takes of watts and prices if the goal has them for each source.

    Batches a second are ``r_cpu (1 - Ocycle/Pcycle x share) + r_off``, at most one in each training step. ``share`` is
    r_off / r_cpu: batches of sources for each batch that the host alone would make. Ocycle is taken first by processors that
    the host's path leaves free, but for one that trains; if their number is not known, there are none. Sources come first, as
    in `wrr`, and those that cost the host least before others.

    ``r_off`` of each source is the least of its own rate; its link's bandwidth / bytes; what is left of the host's processors
    and of its links; and places in the spool / seconds that a batch holds one (Little's law: a lease reserves it).
    """
    r_cpu = measured.host_batches_per_s
    if r_cpu is None:
        return Estimate(paths)
    ratios = {path.source: ocycle_ratio(measured, path) for path in paths}
    assumed = tuple(f"taking a batch of {path} costs the host {ratios[path.source]:.0%} of making one"
                    for path in paths if None in (measured.host_cpu_s_per_batch, path.host_cpu_s_per_batch))  # fmt: skip
    free, most = host_spare(measured)
    link, taking, rates, limits = measured.transfer_bytes_per_s or math.inf, 0.0, {}, {}
    for path in sorted(paths, key=lambda path: (ratios[path.source], path.source)):
        size, ratio = path.bytes_per_batch or 0.0, ratios[path.source]
        rate, limits[path.source] = min(
            path_limit(path),
            (link / size if size else math.inf, "transfer"),
            (max(0.0, r_cpu + free - taking) / ratio if ratio else math.inf, "host"),
        )
        rates[path.source], taking, link = rate, taking + rate * ratio, max(0.0, link - rate * size)
    capacity = sum(rates.values()) + max(0.0, r_cpu - max(0.0, taking - free))
    trains = measured.step_s is not None and capacity * measured.step_s * _ROUNDING >= 1  # training need not wait
    time_s = measured.step_s if measured.step_s is not None and trains else 1 / capacity
    wanted = 1 / time_s
    for source, rate in rates.items():  # in the order of before
        rates[source] = min(rate, wanted)
        wanted -= rates[source]
    if trains:
        limit = "training"
    elif wanted * time_s >= 0.5:
        limit = "host"
    else:
        limit = limits[max(rates, key=lambda source: rates[source])]
    busy = min(1.0, (wanted + sum(rate * ratios[source] for source, rate in rates.items())) / most)
    return Estimate(
        paths=paths, time_s=time_s, limit=limit, capacity_batches_per_s=capacity, host_batches_per_s=wanted,
        source_batches_per_s=tuple(rates[path.source] for path in paths),
        source_limits=tuple(limits[path.source] for path in paths),
        energy_j=None if goal.power is None else goal.power.joules(paths, time_s, busy),
        cost=None if goal.prices is None else goal.prices.cost(paths, time_s), assumed=assumed,
    )  # fmt: skip


def host_spare(measured: Measured) -> tuple[float, float]:
    """The host's processors, in batches a second of its own path: those that this path leaves free, and all.

    One of the free ones trains. Where there are less than two, training and the host's path share one: it trains for as long as
    the steps take with all sides at work. If too little is known, none is free.
    """
    r_cpu, p_cycle, processors = measured.host_batches_per_s or 0.0, measured.host_cpu_s_per_batch, measured.host_processors
    if p_cycle is None or processors is None:
        return 0.0, r_cpu
    trains = 1.0
    if processors < 2 and measured.step_s is not None:
        trains = min(1.0, measured.step_s * (r_cpu + sum(path.batches_per_s for path in measured.paths)))
    return max(0.0, (processors - trains) / p_cycle - r_cpu), processors / p_cycle


def ocycle_ratio(measured: Measured, path: OffloadPath) -> float:
    """Ocycle / Pcycle: what it costs the host to take a batch, in batches of its own path; a typical value if not known."""
    if measured.host_cpu_s_per_batch is not None and path.host_cpu_s_per_batch is not None:
        return path.host_cpu_s_per_batch / measured.host_cpu_s_per_batch
    return TYPICAL_OCYCLE[path.transport] + TYPICAL_OCYCLE["stream"] * path.carried


def path_limit(path: OffloadPath) -> tuple[float, str]:
    """Batches a second of a path whose host has time for it, and the stage that limits them."""
    size, band, source = path.bytes_per_batch, path.bandwidth_bytes_per_s, path.batches_per_s
    transfer = math.inf if size is None or band is None else band / size
    spool = math.inf
    if size is not None and path.spool_bytes is not None:
        spool = path.spool_bytes // size / (path.workers / source + 1 / transfer)
    return min((source, "source"), (transfer, "transfer"), (spool, "spool"))


def decide(measured: Measured, goal: Goal = Goal()) -> Decision:
    """Choose the sources that take part.

    Candidates are the host alone and every set of sources. Of more than 10 sources only some sets are looked at: those that
    grow by the source that makes them best. Of all that come within the goal's threshold of the best, the one with the fewest
    sources is chosen: if training does not wait for data, that is the host alone, and the devices rest.

    Raises ValueError if prices or watts of a source are missing.
    """
    goal.check({path.source for path in measured.paths})
    objective, none = goal.objective, estimate(measured, goal=goal)
    if none.time_s is None:
        return Decision(none, (none,), objective, "The host's rate is not known, so the devices rest.")

    def rank(candidate: Estimate) -> tuple[float, float]:
        return candidate.value(objective), -candidate.capacity_batches_per_s

    if len(measured.paths) <= _ALL_SETS_OF:
        tried = [estimate(measured, paths, goal) for paths in all_sets(measured.paths)]
    else:
        tried, best = [none], none
        while len(best.paths) < len(measured.paths):
            grown = [estimate(measured, (*best.paths, path), goal) for path in measured.paths if path not in best.paths]
            tried, best = [*tried, *grown], min(grown, key=rank)
    if measured.step_s is None:
        why = "How long a training step takes is not known, nor whether training waits for data, so the devices rest."
        return Decision(none, tuple(tried), objective, why)
    best_s = min(candidate.value("time") for candidate in tried)
    slowest_s = math.inf if goal.max_slowdown is None else (1 + goal.max_slowdown) * best_s
    allowed = [candidate for candidate in tried if candidate.value("time") <= slowest_s * _ROUNDING]
    least = min(candidate.value(objective) for candidate in allowed)
    near = [candidate for candidate in allowed if candidate.value(objective) <= least * (1 + goal.threshold) * _ROUNDING]
    chosen = min(near, key=lambda candidate: (len(candidate.paths), rank(candidate)))
    return Decision(chosen, tuple(tried), objective, _why(none, chosen, least, goal, bool(measured.paths)))


def all_sets(paths: Sequence[OffloadPath]) -> Iterator[tuple[OffloadPath, ...]]:
    """Yield every set of sources. The first one is empty: the host alone."""
    return itertools.chain.from_iterable(itertools.combinations(paths, count) for count in range(len(paths) + 1))


def _why(none: Estimate, chosen: Estimate, least: float, goal: Goal, any_sources: bool) -> str:
    objective = goal.objective
    alone = _amount(none.value(objective), objective)
    if chosen.paths:
        stage = "training" if chosen.limit == "training" else f"the {chosen.limit}"
        return f"With {chosen} a batch takes {_amount(chosen.value(objective), objective)} instead of {alone}; {stage} limits."
    if objective == "time" and none.limit == "training":
        return f"Training does not wait for data: the host alone keeps up with its {alone} a batch, so the devices rest."
    if not any_sources:
        return f"No source has a measured rate, so the host works alone: {alone} a batch."
    gain = max(0.0, none.value(objective) / least - 1)
    wins = f"the best sources win {gain:.1%}, not {goal.threshold:.1%}"
    return f"The host alone takes {alone} a batch, and {wins}: the devices rest."


def _amount(value: float, objective: Objective) -> str:
    return f"{value:.4g}{ {'time': ' s', 'energy': ' J', 'cost': ' (price)'}[objective]}"
