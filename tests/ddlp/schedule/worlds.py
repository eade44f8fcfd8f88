"""Random schedules for the real ledger and strategies, and what must hold at each moment of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from benchmarks.papers.scaling import Pool
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.simulate import Simulation, World
from ddlp.schedule.slots import FETCHERS
from ddlp.schedule.strategies import STRATEGIES, Order
from ddlp.schedule.strategies.base import HANDED_OVER

MOVES = 10  # joins and leaves of an elastic schedule at least, each


class Watched(Simulation):
    """Each time nothing more can be decided, checks that no side waits, and no space is used, against the promises."""

    def _pump(self) -> None:
        super()._pump()
        ledger, strategy = self.ledger, self.strategy
        in_any_order = strategy.order is Order.ANY
        # Beside those that were handed over there is the turn's batch, and the one of the turn before, if the host was quicker.
        assert ledger.free_host_slots >= 0 and ledger.free_fetch_slots >= -(HANDED_OVER + FETCHERS if ledger.retired else 0)
        assert ledger.free_host_slots == ledger.host_slots - ledger.host_in_work - len(ledger.ready_host)
        for account in ledger.devices.values():
            assert 0 <= account.held <= account.quota and len(account.outstanding) <= account.window
        if self._over():
            return
        ready = [*ledger.ready_host, *ledger.ready_csd]
        if not self._training:
            if in_any_order:
                assert not ready, "training may wait only if nothing is ready"
            else:
                assert strategy.turn() not in ready, "training waits though the batch whose turn it is is ready"
        room = ledger.free_host_slots >= (1 if in_any_order else 2)
        if self._host_idle and room and not strategy.needs_device:
            assert not ledger.free and not ledger.returned, "an idle worker, a slot and a batch to prepare"
        for device, account in ledger.devices.items():
            idle = account.at_work and not account.outstanding and account.held < account.quota
            if strategy.uses_device and idle:
                pays = strategy.needs_device or strategy.worth_leasing(device)
                assert not (ledger.free and pays), "an idle device and work for it"


def random_world(rng: random.Random, strategy: str, n: int | None = None) -> tuple[int, Ledger, World, dict[str, Any]]:
    n = rng.choice([0, 1, 2, 3, 5, rng.randint(4, 30), rng.randint(20, 60)]) if n is None else n
    devices = ["a", "b", "c"][: rng.choice([0, 1, 1, 1, 2, 3])] if STRATEGIES[strategy].uses_device else []
    bad = rng.choice([0.0, 0.0, 0.1, 0.5, 1.0])

    def luck(p: float) -> Callable[[int], bool]:
        return lambda _: rng.random() < p

    def speed(mean: float, stalls: float = 0.0) -> Callable[[int], float]:
        spread = rng.choice([0.0, 0.3, 1.0])
        return lambda _: math.inf if rng.random() < stalls else mean * math.exp(spread * rng.gauss(0, 1))

    stalls, hangs = rng.choice([0.0, 0.0, 0.05, 0.3]), rng.choice([0.0, 0.0, 0.05, 0.3])
    ends_s = rng.choice([math.inf, 20.0, 60.0])  # after this time a fetch that hangs fails

    def fetch_speed(mean: float) -> Callable[[int], float]:
        usual = speed(mean)
        return lambda position: ends_s if rng.random() < hangs else usual(position)

    retire = {d for d in devices if rng.random() < 0.3}
    world = World(
        host_s=speed(1.0),
        train_s=speed(rng.choice([0.0, 0.1, 1.0, 3.0])),
        device_s={d: speed(rng.choice([0.3, 1, 3, 10, 40]), stalls) for d in devices},
        fetch_s=fetch_speed(rng.choice([0.0, 0.05, 2.0])),
        host_workers=rng.randint(1, 4),
        device_workers=rng.randint(1, 3),
        quota=rng.choice([1, 2, 3, 8, 1000]),
        joins_s=rng.choice([0.0, 0.0, 0.5, 0.5, 5.0, 5.0, 40.0, math.inf]),
        fetch_ok=luck(1 - bad * rng.random()),
        lease_fails=luck(bad * rng.random()),
        late_copy=luck(rng.choice([0.0, 0.5])),
        doubled=luck(rng.choice([0.0, 0.5])),
        device_dies_s={d: rng.uniform(0, 30) for d in devices if d not in retire and rng.random() < 0.3},
        device_retires_s={d: rng.uniform(0, 30) for d in devices if d in retire},
        device_returns_s={d: rng.uniform(0.1, 10) for d in devices if rng.random() < 0.5},
    )
    slots = rng.randint(2, 8)
    if not STRATEGIES[strategy].needs_length and rng.random() < 0.3:
        world.sampler = (n, rng.randint(1, 12))
        return n, Ledger(None, host_slots=slots), world, {}
    delivered = [] if rng.random() < 0.8 else [(0, n // 3), (n - n // 4, n)]
    options = {"host_batches": rng.randint(0, n)} if strategy == "mte" and rng.random() < 0.4 else {}
    return n, Ledger(n, host_slots=slots, delivered=delivered), world, options


class Elastic(Watched, Pool):
    """Engines of a pool are started, retired and killed all the time, and killed ones come back."""

    def __init__(self, *arguments: Any, rng: random.Random, every_s: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rng, self._every_s = rng, every_s
        self.joins = self.leaves = self.retired = 0
        self.want(rng.randint(0, len(self.world.device_s)))
        self._at(0.0, self._change)

    def _change(self) -> None:
        alive = sorted(name for name, account in self.ledger.devices.items() if account.alive)
        if alive and self._rng.random() < 0.4:
            name = self._rng.choice(alive)
            self._die(name)
            self._at(self._rng.uniform(0.0, 3 * self._every_s), lambda: self._come_back(name))
        else:
            self.want(self._rng.randint(0, len(self.world.device_s)))
        enough = min(self.joins, self.leaves) >= MOVES
        if not self._over():
            self._at(self._rng.uniform(0.0, 2 * self._every_s) * (20 if enough else 1), self._change)

    def _come_back(self, name: str) -> None:
        if name in self._wants and name in self._dead:
            self._return(name)

    def _join(self, name: str) -> None:
        super()._join(name)
        self.joins += 1

    def _die(self, name: str) -> None:
        self.leaves += self.ledger.devices[name].alive
        self.retired += self.ledger.devices[name].has_retired
        super()._die(name)


def elastic(name: str, seed: int) -> tuple[Elastic, int, int]:
    """Play an epoch of a strategy with a pool whose engines join and leave. Returns how many batches were lost, and doubled."""
    rng = random.Random(seed)
    n, ledger, world, options = random_world(rng, name, rng.randint(40, 80))
    pool = tuple("abcd"[: rng.randint(1, 4)])
    speeds = {engine: rng.choice([0.3, 1.0, 3.0]) for engine in pool}

    def about(mean: float) -> Callable[[int], float]:
        return lambda _: mean * rng.uniform(0.5, 1.5)

    world.device_s = {engine: about(mean) for engine, mean in speeds.items()}
    world.device_dies_s, world.device_returns_s, world.device_retires_s = {}, {}, {}
    per_s = world.host_workers + world.device_workers * sum(1 / mean for mean in speeds.values())
    least_s = (n - len(list(ledger.delivered))) / per_s
    starts_s = rng.choice([0.0, 0.005, 0.02]) * least_s
    already = set(ledger.delivered)
    make = lambda led, rates: STRATEGIES[name](led, rates, **options)  # noqa: E731
    simulation = Elastic(ledger, world, make, rng=rng, every_s=least_s / 80, starts_s=starts_s)
    order = simulation.run().order
    assert all(account.held == len(account.outstanding) for account in ledger.devices.values())
    came = set(order)
    return simulation, len(set(range(n)) - already - came), len(order) - len(came - already)
