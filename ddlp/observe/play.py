"""An epoch of measured figures, played in `Simulation` by the loader's own ledger and strategies."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddlp.auto.decide import host_spare, ocycle_ratio
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.simulate import Simulation, World
from ddlp.schedule.slots import FETCH_SLOTS, FETCHERS, host_slots
from ddlp.schedule.strategies import Strategy, Wrr

__all__ = ["QUOTA", "Played", "play_epoch"]

_PREFETCH = 2  # DataLoader's prefetch_factor
_KNOWN = 10  # batches after which a strategy takes a rate as known
QUOTA = 1024  # batches in a spool, if its room is not known: an engine's default


@dataclass(frozen=True)
class Played:
    """A simulated epoch.

    Attributes:
        batches: its batches.
        seconds: from its beginning until the last batch was trained on.
        waiting_s: the seconds of these in which training had no batch.
        taken: batches that the host took from each source.
    """

    batches: int
    seconds: float
    waiting_s: float
    taken: Mapping[str, int]


class _Queue:
    """What does one piece of work after the other."""

    def __init__(self) -> None:
        self._until = 0.0

    def add(self, now: float, seconds: float) -> float:
        """Add work; returns when it is done."""
        self._until = max(now, self._until) + seconds
        return self._until


def play_epoch(
    measured: Measured,
    paths: tuple[OffloadPath, ...] = (),
    strategy: type[Strategy] = Wrr,
    *,
    batches: int,
    workers: int = 1,
    about: Callable[[float], float] = lambda seconds: seconds,
    slots: tuple[int, int] | None = None,
    room: int = QUOTA,
    known: bool = True,
    simulation_of: Callable[[Ledger, World, Callable[[Ledger, Rates], Strategy]], Simulation] = Simulation,
) -> Played:
    """Play an epoch.

    A batch that the host takes keeps its processors from making one, as far as none is free for that and no worker rests: the
    host's next batch takes so much longer. Nor are more taken than all its processors can. The batches of a link follow one
    another, as do those of all links together. Leases and fetches reserve places in the spool. Without ``about``, durations do
    not vary.

    Args:
        measured: the step's time and the host's rate must be known, and the rate of each path.
        paths: the sources that take part.
        strategy: one of ddlp's, or a user's.
        batches: of the epoch.
        workers: of the host; together they have the measured rate.
        about: returns a duration near the given one.
        slots: how many batches the host may hold, made by itself and taken; None: as the loader does.
        room: places in a spool at most.
        known: the rates are known from an epoch before.
        simulation_of: makes the simulation.
    """
    step_s, r_cpu, p_cycle = measured.step_s, measured.host_batches_per_s, measured.host_cpu_s_per_batch
    assert step_s is not None and r_cpu is not None
    by_source = {path.source: path for path in paths}
    ratios = {path.source: ocycle_ratio(measured, path) for path in paths}
    free, _ = host_spare(measured)
    own_links, all_links, takers = {name: _Queue() for name in by_source}, _Queue(), _Queue()
    taken = Counter(dict.fromkeys(by_source, 0))
    owed, owed_at = 0.0, 0.0  # batches that the host can't make since it has taken others, and when that was
    busy: list[float] = []  # until when each of the host's workers that is at work
    soon = free and FETCH_SLOTS * max(ratios.values(), default=0.0)  # owed for batches at hand: free processors see to that

    def pay(until: float) -> None:
        """Processors that are free, and those of workers that rest, have taken batches meanwhile."""
        nonlocal owed, owed_at
        resting = 1 - len(busy) / workers
        owed, owed_at = max(0.0, owed - (free + resting * r_cpu) * (until - owed_at)), until

    def settle() -> None:
        while busy and busy[0] <= simulation.now:
            pay(busy[0])
            heapq.heappop(busy)
        pay(simulation.now)

    def host_s(position: int) -> float:
        nonlocal owed
        settle()
        late = max(0.0, owed - soon)
        owed -= late
        seconds = (about(1 / r_cpu) + late / r_cpu) * workers
        heapq.heappush(busy, simulation.now + seconds)
        return seconds

    def fetch_s(position: int) -> float:
        nonlocal owed
        settle()
        entry = simulation.ledger.entry(position)
        assert entry is not None and entry.device is not None
        path, ratio, now = by_source[entry.device], about(ratios[entry.device]), simulation.now
        size, band = path.bytes_per_batch or 0.0, path.bandwidth_bytes_per_s
        owed += ratio
        taken[path.source] += 1
        return max(
            own_links[path.source].add(now, about(size / band) if band else 0.0),
            all_links.add(now, size / (measured.transfer_bytes_per_s or math.inf)),
            takers.add(now, ratio / (r_cpu + free)),
        ) - now  # fmt: skip

    def device_s(path: OffloadPath) -> Callable[[int], float]:
        return lambda position: about(path.workers / path.batches_per_s)

    places = {path.source: int(path.spool_bytes // path.bytes_per_batch)
              for path in paths if path.spool_bytes and path.bytes_per_batch}  # fmt: skip
    world = World(
        host_s=host_s, train_s=lambda position: about(step_s), fetch_s=fetch_s, host_workers=workers,
        device_s={path.source: device_s(path) for path in paths}, workers_of={path.source: path.workers for path in paths},
        quota=room, quota_of={name: min(room, count) for name, count in places.items()},
        host_cpu_s=None if p_cycle is None else lambda position: about(p_cycle),
        taking_cpu_s=max((path.host_cpu_s_per_batch or 0.0 for path in paths), default=0.0),
    )  # fmt: skip
    host, fetched = (host_slots(workers, _PREFETCH, bool(paths)), FETCH_SLOTS) if slots is None else slots
    simulation = simulation_of(Ledger(batches, host_slots=host, fetch_slots=fetched), world, strategy.make)
    simulation.rates.epoch_begins(workers, 1, int(max((path.bytes_per_batch or 0.0 for path in paths), default=0.0)))
    if known:
        _know(simulation.rates, measured, paths, workers)
    outcome = simulation.run()
    return Played(len(outcome.order), outcome.seconds, outcome.waiting_s, taken)


def _know(rates: Rates, measured: Measured, paths: tuple[OffloadPath, ...], workers: int) -> None:
    """Tell what an epoch before has shown: a loader's rates outlive its epochs."""
    assert measured.step_s is not None and measured.host_batches_per_s is not None
    for path in paths:
        rates.joined(path.source, path.workers)
    for _ in range(_KNOWN):
        rates.host.add(workers / measured.host_batches_per_s)
        rates.trained(measured.step_s)
        for path in paths:
            rates.device(path.source).add(path.workers / path.batches_per_s)
            if path.bytes_per_batch and path.bandwidth_bytes_per_s:
                link_s = path.bytes_per_batch / path.bandwidth_bytes_per_s
                waits = FETCHERS if link_s * path.batches_per_s >= 1 else 1  # each fetch for those before it
                rates.fetched(path.source, waits * link_s, 1.0, FETCHERS)
