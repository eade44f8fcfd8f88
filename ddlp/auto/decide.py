"""Whether to offload, to which sources and how: a pure function of what was measured.

`estimate` predicts one candidate, `decide` compares candidates. The model is FastFlow's (Um et al., PVLDB 16(5), 2023) for any
number of sources: what a source makes, the host need not make, but taking it costs the host processor time.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, get_args

from ddlp.auto.measured import Measured, OffloadPath, Transport

__all__ = [
    "TYPICAL_OCYCLE", "Decision", "Estimate", "Objective", "Power", "Prices", "all_sets", "check_goal", "decide", "estimate",
    "host_spare", "joules", "ocycle_ratio", "path_limit", "path_sends", "price",
]  # fmt: skip

Objective = Literal["time", "energy", "cost"]

# Ocycle / Pcycle if it was not measured: that of a 38.5 MB batch on the machine on which ddlp was developed. What the host
# sends counts as what it takes, byte for byte.
TYPICAL_OCYCLE: Mapping[Transport, float] = {"stream": 0.38, "spool": 0.06}
_S_PER_H = 3600.0
_H_PER_MONTH = 730.0  # 365 days / 12: as clouds bill storage
_ROUNDING = 1 + 1e-9
_ALL_SETS = 2_000  # a set takes about 10 us


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


def _check_given(of: Power | Prices, *names: str) -> None:
    values = {name: getattr(of, name) for name in names}
    values |= {f"{kind}[{source!r}]": value for kind in ("engine_watts", "engine_per_h")
               for source, value in getattr(of, kind, {}).items()}  # fmt: skip
    for name, value in values.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{type(of).__name__}: {name}={value!r}; give a finite number of at least 0")


@dataclass(frozen=True)
class Estimate:
    """What one candidate is expected to do. Energy and cost are None without watts and prices.

    Attributes:
        paths: the candidate: the sources that take part, each by one way; none: the host alone.
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


def estimate(
    measured: Measured, paths: tuple[OffloadPath, ...] = (), *, power: Power | None = None, prices: Prices | None = None
) -> Estimate:
    """Predict a steady state with these sources, each path of another source.

    Batches a second are ``r_cpu (1 - Ocycle/Pcycle x share) + r_off``, at most one in each training step. ``share`` is
    r_off / r_cpu: batches of sources for each batch that the host alone would make. Ocycle is taken first by processors that
    the host's path leaves free, but for one that trains; if their number is not known, there are none. Sources come first, as
    in `wrr`, and those that cost the host least before others.

    ``r_off`` of each source is the least of its own rate; its link's bandwidth / bytes, for carried data also / bytes of the
    files; what is left of the host's processors and of its links; and places in the spool / seconds that a batch holds one
    (Little's law: a lease reserves it). ``power`` and ``prices`` must name each of the sources.
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
            path_limit(path, path.batches_per_s),
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
        energy_j=None if power is None else joules(power, paths, time_s, busy),
        cost=None if prices is None else price(prices, paths, time_s), assumed=assumed,
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
        trains = min(1.0, measured.step_s * (r_cpu + sum(path.batches_per_s or 0.0 for path in measured.paths)))
    return max(0.0, (processors - trains) / p_cycle - r_cpu), processors / p_cycle


def ocycle_ratio(measured: Measured, path: OffloadPath) -> float:
    """Ocycle / Pcycle: what it costs the host to take a batch, in batches of its own path; a typical value if not known."""
    if measured.host_cpu_s_per_batch is not None and path.host_cpu_s_per_batch is not None:
        return path.host_cpu_s_per_batch / measured.host_cpu_s_per_batch
    taking = TYPICAL_OCYCLE[path.transport]
    if not path.carried:
        return taking
    size, sent = path.bytes_per_batch, path.source_bytes_per_batch
    return taking + TYPICAL_OCYCLE["stream"] * (1.0 if size is None or sent is None else sent / size)


def path_limit(path: OffloadPath, made: float | None) -> tuple[float, str]:
    """Batches a second of a path whose source makes so many and whose host has time for it, and the stage that limits them."""
    if made is None:
        return 0.0, "source"
    size, band = path.bytes_per_batch, path.bandwidth_bytes_per_s
    transfer = math.inf if size is None or band is None else band / size
    sending = path_sends(path)
    spool = math.inf
    if size is not None and path.spool_bytes is not None:
        spool = path.spool_bytes // size / (path.workers / made + 1 / transfer)
    return min((made, "source"), (transfer, "transfer"), (sending, "transfer"), (spool, "spool"))


def path_sends(path: OffloadPath) -> float:
    """Batches a second whose files the host can send to the source. A link carries both directions at full speed."""
    sent, band = path.source_bytes_per_batch, path.bandwidth_bytes_per_s
    return math.inf if not path.carried or sent is None or band is None else band / sent


def joules(power: Power, paths: tuple[OffloadPath, ...], time_s: float, busy: float) -> float:
    """Joules of so many seconds with these sources; ``busy``: the part of the host's processors that are at work, 0 to 1."""
    host = power.host_idle_watts + (power.host_busy_watts - power.host_idle_watts) * busy
    return time_s * (host + power.accelerator_watts + sum(power.engine_watts[path.source] for path in paths))


def price(prices: Prices, paths: tuple[OffloadPath, ...], time_s: float) -> float:
    """What so many seconds with these sources cost."""
    engines = sum(prices.engine_per_h[path.source] for path in paths)
    stored_gb = sum(path.spool_bytes or 0.0 for path in paths) / 1e9
    storage = stored_gb * prices.stored_per_gb_month / _H_PER_MONTH
    return time_s / _S_PER_H * (prices.host_per_h + prices.accelerator_per_h + engines + storage)


def decide(
    measured: Measured,
    threshold: float = 0.02,
    objective: Objective = "time",
    max_slowdown: float | None = None,
    prices: Prices | None = None,
    power: Power | None = None,
) -> Decision:
    """Choose the sources that take part, and the way of each.

    Candidates are the host alone and every set of sources, each source by each of its ways. If these are more than 2,000, only
    some of the sets are looked at (`_some_sets`). A path without a rate is no candidate. Of all that come within ``threshold``
    of the best, less twice the error of the measurements, the one with the fewest sources is chosen: if training does not wait
    for data, that is the host alone, and the devices rest. Of ways that are equally good, the one with the fewest bytes.

    Args:
        measured: what was measured.
        threshold: the part by which more sources must be better than fewer.
        objective: what to make small, a batch: seconds, joules or price.
        max_slowdown: choose no candidate that takes more than (1 + max_slowdown) times as long as the fastest; None: any.
        prices: for the objective "cost". Without that, only for the estimates.
        power: for the objective "energy". Without that, only for the estimates.

    Raises ValueError for an argument that is wrong, and if prices or watts are missing.
    """
    usable = [path for path in measured.paths if path.batches_per_s is not None]
    check_goal(threshold, objective, max_slowdown, prices, power, {path.source for path in usable})
    none = estimate(measured, power=power, prices=prices)
    if none.time_s is None:
        return Decision(none, (none,), objective, "The host's rate is not known, so the devices rest.")

    def rank(one: Estimate) -> tuple[float, float]:
        return one.value(objective), -one.capacity_batches_per_s

    tried: dict[tuple[OffloadPath, ...], Estimate] = {}
    few = _number_of_sets(usable) <= _ALL_SETS
    for paths in all_sets(usable) if few else _some_sets(usable, lambda paths: rank(tried[paths])):
        if paths not in tried:
            tried[paths] = estimate(measured, paths, power=power, prices=prices)
    estimates = tuple(tried.values())
    if measured.step_s is None:
        why = "How long a training step takes is not known, nor whether training waits for data, so the devices rest."
        return Decision(none, estimates, objective, why)
    slowest_s = math.inf if max_slowdown is None else (1 + max_slowdown) * min(one.value("time") for one in estimates)
    allowed = [one for one in estimates if one.value("time") <= slowest_s * _ROUNDING]
    least = min(one.value(objective) for one in allowed)
    margin = max(0.0, threshold - 2 * (measured.relative_error or 0.0))  # what looks like less may be more than the threshold
    near = [one for one in allowed if one.value(objective) <= least * (1 + margin) * _ROUNDING]
    chosen = min(near, key=lambda one: (len(one.paths), rank(one), sum(_moved(path) for path in one.paths)))
    return Decision(chosen, estimates, objective, _why(none, chosen, least, margin, objective, bool(usable)))


def _moved(path: OffloadPath) -> float:
    """Bytes that a batch moves, both ways."""
    return (path.bytes_per_batch or 0.0) + (path.source_bytes_per_batch or 0.0) * path.carried


def all_sets(paths: Sequence[OffloadPath]) -> Iterator[tuple[OffloadPath, ...]]:
    """Yield every set of sources, each source by each of its ways. The first set is empty: the host alone."""
    sources = dict.fromkeys(path.source for path in paths)
    ways = [(None, *(path for path in paths if path.source == source)) for source in sources]
    for chosen in itertools.product(*ways):
        yield tuple(path for path in chosen if path is not None)


def _number_of_sets(paths: Sequence[OffloadPath]) -> int:
    return math.prod(1 + ways for ways in Counter(path.source for path in paths).values())


def _some_sets(
    paths: Sequence[OffloadPath], rank: Callable[[tuple[OffloadPath, ...]], tuple[float, float]]
) -> Iterator[tuple[OffloadPath, ...]]:
    """Yield the sets that a local search comes by; ``rank`` tells of one that was yielded how good it is (low is good).

    To the best of k sources it adds one more by its best way. What is best alone need not be best beside others: then it
    changes the way of single sources as long as that makes the set better. With this alone, 2 of 3,000 random workloads took
    more than 3 % longer than the best, at worst 11 %.
    """
    best: dict[str, OffloadPath] = {}
    yield ()
    for _ in range(len({path.source for path in paths})):
        moves = [best | {path.source: path} for path in paths if path.source not in best]
        while moves:
            yield from (tuple(one.values()) for one in moves)
            new = min(moves, key=lambda one: rank(tuple(one.values())))
            if len(new) == len(best) and rank(tuple(new.values())) >= rank(tuple(best.values())):
                break
            best = new
            moves = [best | {path.source: path} for path in paths if best.get(path.source, path) != path]


def check_goal(
    threshold: float, objective: str, max_slowdown: float | None, prices: Prices | None, power: Power | None,
    sources: Set[str] = frozenset(),
) -> None:  # fmt: skip
    """Check these arguments of `decide`. Raises ValueError for one that is wrong, and if prices or watts are missing."""
    if objective not in get_args(Objective):
        raise ValueError(f"objective={objective!r}; give one of {', '.join(get_args(Objective))}")
    for name, value in (("threshold", threshold), ("max_slowdown", max_slowdown)):
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name}={value!r}; give a part of at least 0, such as 0.02 for 2 %")
    if objective == "cost" and prices is None:
        raise ValueError("objective='cost' and no prices; ddlp has none built in. Give prices=Prices(host_per_h=..., "
                         "accelerator_per_h=..., engine_per_h={source: ...})")  # fmt: skip
    if objective == "energy" and power is None:
        raise ValueError("objective='energy' and no watts. Give power=Power(host_idle_watts=..., host_busy_watts=..., "
                         "accelerator_watts=..., engine_watts={source: ...}), as measured or from a data sheet")  # fmt: skip
    given = {"prices.engine_per_h": prices.engine_per_h} if prices else {}
    given |= {"power.engine_watts": power.engine_watts} if power else {}
    for name, known in given.items():
        if missing := sorted(sources - set(known)):
            raise ValueError(f"{name} lacks {', '.join(map(repr, missing))}; give a number for each source, 0 for none")


def _why(none: Estimate, chosen: Estimate, least: float, margin: float, objective: Objective, any_usable: bool) -> str:
    alone = _amount(none.value(objective), objective)
    if chosen.paths:
        stage = "training" if chosen.limit == "training" else f"the {chosen.limit}"
        return f"With {chosen} a batch takes {_amount(chosen.value(objective), objective)} instead of {alone}; {stage} limits."
    if objective == "time" and none.limit == "training":
        return f"Training does not wait for data: the host alone keeps up with its {alone} a batch, so the devices rest."
    if not any_usable:
        return f"No source has a measured rate, so the host works alone: {alone} a batch."
    gain = max(0.0, none.value(objective) / least - 1)
    return f"The host alone takes {alone} a batch, and the best sources win {gain:.1%}, not {margin:.1%}: the devices rest."


def _amount(value: float, objective: Objective) -> str:
    return f"{value:.4g}{ {'time': ' s', 'energy': ' J', 'cost': ' (price)'}[objective]}"
