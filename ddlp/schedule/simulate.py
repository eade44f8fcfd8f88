"""An epoch in simulated time: the loader's ledger and strategy with given durations and faults.

The simulator plays the parts around them (the host's workers, the devices, the fetches, the accelerator) as events on
a heap, so that a schedule of thousands of batches takes milliseconds and replays exactly. The property tests set faults in
`World`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ddlp.schedule.ledger import Ledger, Side
from ddlp.schedule.rates import Rates
from ddlp.schedule.slots import FETCHERS
from ddlp.schedule.strategies import Strategy


@dataclass
class World:
    """Durations in seconds by a batch's position, and the faults. They are callables, so that they may be random."""

    host_s: Callable[[int], float]
    train_s: Callable[[int], float] = lambda position: 0.0
    device_s: dict[str, Callable[[int], float]] = field(default_factory=dict)
    fetch_s: Callable[[int], float] = lambda position: 0.0  # infinite: it hangs
    host_cpu_s: Callable[[int], float] | None = None  # processor seconds of the host's own path, to be measured; None: none are
    taking_cpu_s: float = 0.0  # processor seconds of the host to take a device's batch; 0: they are not measured
    host_workers: int = 1
    device_workers: int = 1
    quota: int = 1 << 30
    workers_of: dict[str, int] = field(default_factory=dict)  # of single devices; the others have ``device_workers``
    quota_of: dict[str, int] = field(default_factory=dict)  # the same, for ``quota``
    joins_s: float = 0.0  # infinite: it hangs
    fetch_ok: Callable[[int], bool] = lambda position: True
    lease_fails: Callable[[int], bool] = lambda position: False
    late_copy: Callable[[int], bool] = lambda lease: False  # a cancelled lease is published all the same
    doubled: Callable[[int], bool] = lambda lease: False  # the message that it is published comes twice
    device_dies_s: dict[str, float] = field(default_factory=dict)
    device_retires_s: dict[str, float] = field(default_factory=dict)  # when it is told to
    device_returns_s: dict[str, float] = field(default_factory=dict)  # after it has died or retired
    absent: frozenset[str] = frozenset()  # not there at the beginning, and not expected
    moves: tuple[tuple[float, str, bool], ...] = ()  # when, which device; True: it joins, False: it leaves
    sampler: tuple[int, int] | None = None  # (batches, window): the sampler is read as the epoch goes
    progress: tuple[float, ...] = (0.25, 0.5, 0.75)  # parts of a batch after which a device says how far it is


@dataclass
class Outcome:
    """What happened: positions in the order delivered, who made each, and the times."""

    order: list[int] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)
    seconds: float = 0.0
    waiting_s: float = 0.0
    released: set[int] = field(default_factory=set)  # leases whose space was given back

    @property
    def from_csd(self) -> int:
        """Batches that a device made."""
        return sum(side is Side.CSD for side in self.sides)


class Decides(Protocol):
    """What decides while the epoch goes on, such as `ddlp.auto.controller.Controller`.

    Attributes:
        rates: the epoch's.
    """

    rates: Rates

    def begin(self, ledger: Ledger) -> None:
        """Begin the epoch."""

    def delivered(self, waited_s: float, step_s: float | None, part: float) -> str | None:
        """Note a batch: as `ddlp.auto.controller.Controller.delivered`."""


class Locked(RuntimeError):
    """Nothing can happen any more and the epoch is not over."""


class Simulation:
    """One epoch. ``make`` builds the strategy for the ledger and the rates; ``run`` plays it to its end.

    ``controller``: decides which devices take part, for a strategy that wants that. Its rates are the epoch's.

    Raises `Locked` if nothing is left to happen and the epoch is not over.
    """

    def __init__(
        self, ledger: Ledger, world: World, make: Callable[[Ledger, Rates], Strategy], *, stop_after: int | None = None,
        controller: Decides | None = None,
    ) -> None:  # fmt: skip
        self.ledger, self.world, self._controller = ledger, world, controller
        self.rates = Rates() if controller is None else controller.rates
        self.rates.epoch_begins(world.host_workers, 1, 0)
        self.strategy = make(ledger, self.rates)
        self.outcome = Outcome()
        self.now = 0.0
        self.stop_after = stop_after
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._host_idle = world.host_workers
        self._device_idle = {name: self._workers(name) for name in world.device_s}
        self._queues: dict[str, list[tuple[int, int]]] = {name: [] for name in world.device_s}
        self._cancelled: set[int] = set()
        self._dead: set[str] = set(world.absent)
        self._lives = dict.fromkeys(world.device_s, 0)
        self._training = self._looks_again = False
        self._step_s: float | None = None  # of the last training step
        self._waiting_since: float | None = 0.0
        self._there = self._at_first()  # all that the ledger may give leases to
        for name in self._there:
            ledger.expect(name, self.now)
            if name in world.absent:
                ledger.no_longer_expect(name)
            elif not math.isinf(world.joins_s):
                self._at(world.joins_s, partial(self._join, name))
        for name, when in world.device_dies_s.items():
            self._at(when, partial(self._die, name))
        for name, when in world.device_retires_s.items():
            self._at(when, partial(self._retire, name, False))
        for when, name, joins in world.moves:
            self._at(when, partial(self._return if joins else self._die, name))
        if controller is not None:
            controller.begin(ledger)

    def run(self) -> Outcome:
        """Play the epoch to its end (or to ``stop_after`` batches)."""
        self._pump()
        while not self._over():
            if not self._heap:
                raise Locked(f"{len(self.outcome.order)} of {self.ledger.length} batches delivered, nothing left to happen")
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
            self._pump()
        self.outcome.seconds = self.now
        return self.outcome

    def _at_first(self) -> list[str]:
        """The devices that the epoch begins with, absent ones too."""
        return list(self.world.device_s)

    def _over(self) -> bool:
        stopped = self.stop_after is not None and len(self.outcome.order) >= self.stop_after
        return not self._training and (self.ledger.done or stopped)

    def _at(self, delay: float, happen: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, happen))

    def _pump(self) -> None:
        """Ask the strategy everything until it has no more answers."""
        busy = True
        while busy:
            while (lease := self.strategy.hanging_fetch(self.now)) is not None:
                self.ledger.give_up(lease)
            while (device := self.strategy.late_device(self.now)) is not None:
                self.ledger.no_longer_expect(device)
            self._read_sampler()
            busy = self._deliver() | self._fetch() | self._lease() | self._claim()
            self._drain()

    def _read_sampler(self) -> None:
        if self.world.sampler is None or self.ledger.closed:
            return
        batches, window = self.world.sampler
        room = window - (self.ledger.length - len(self.ledger.delivered))
        self.ledger.extend(max(0, min(room, batches - self.ledger.length)))
        if self.ledger.length == batches:
            self.ledger.close()

    def _drain(self) -> None:
        for name in [name for name, account in self.ledger.devices.items() if account.has_retired]:
            self._die(name)
        effects = self.ledger.effects
        while effects:
            effect = effects.popleft()
            if effect.unpublished:
                if not self.world.late_copy(effect.lease):
                    self._cancelled.add(effect.lease)
            else:
                self.outcome.released.add(effect.lease)

    def _deliver(self) -> bool:
        if self._training or self._over():
            return False
        position = self.strategy.next_delivery()
        if position is None:
            return False
        waited_s = 0.0 if self._waiting_since is None else self.now - self._waiting_since
        self.outcome.waiting_s += waited_s
        self._waiting_since = None
        if self._controller is not None:
            self._controller.delivered(waited_s, self._step_s, 1.0)
        self.outcome.sides.append(self.ledger.deliver(position))
        self.outcome.order.append(position)
        self._training = True
        seconds = self.world.train_s(position)
        self._at(seconds, lambda: self._trained(seconds))
        return True

    def _trained(self, seconds: float) -> None:
        self.rates.trained(seconds)
        self._training, self._step_s = False, seconds
        self._waiting_since = self.now

    def _claim(self) -> bool:
        if not self._host_idle:
            return False
        position = self.strategy.next_claim(self.now)
        if position is None:
            # A real worker asks again after a while: only the clock tells that something is late.
            joining = any(account.joining for account in self.ledger.devices.values())
            late = joining or self.ledger.fetching or any(True for _ in self.ledger.leased())
            if not self._looks_again and not self.ledger.done and late:
                self._looks_again = True
                self._at(1.0, self._look_again)
            return False
        claim = self.ledger.claim(position)
        self._host_idle -= 1
        seconds = self.world.host_s(position)
        self._at(seconds, lambda: self._host_done(claim, position, seconds))
        return True

    def _look_again(self) -> None:
        self._looks_again = False

    def _host_done(self, claim: int, position: int, seconds: float) -> None:
        self._host_idle += 1
        self.rates.host.add(seconds)
        if self.world.host_cpu_s is not None:
            self.rates.host_cpu.add(self.world.host_cpu_s(position))
        self.ledger.made(claim)

    def _join(self, name: str) -> None:
        if name not in self._dead and not self.ledger.devices[name].alive:
            self.rates.joined(name, self._workers(name))
            self.ledger.join(name, quota=self.world.quota_of.get(name, self.world.quota), window=self._workers(name) + 1)

    def _workers(self, name: str) -> int:
        return self.world.workers_of.get(name, self.world.device_workers)

    def _retire(self, name: str, finishes: bool) -> None:
        """Let a device leave once all that it has is fetched. ``finishes``: it also makes what it has not begun."""
        account = self.ledger.devices[name]
        if not account.alive:
            return
        begun = None
        if not finishes:
            begun = set(account.outstanding) - {lease for lease, _ in self._queues[name]}
            self._queues[name].clear()
        self.ledger.retire(name, begun)

    def _die(self, name: str) -> None:
        self._dead.add(name)
        self._queues[name].clear()
        self.ledger.leave(name, self.now)
        if name in self.world.device_returns_s:
            self._at(self.world.device_returns_s[name], partial(self._return, name))

    def _return(self, name: str) -> None:
        """The device starts anew, with all its workers idle, whatever the former ones were doing."""
        self._dead.remove(name)
        self._lives[name] += 1
        self._device_idle[name] = self._workers(name)
        self._join(name)

    def _lease(self) -> bool:
        any_leased = False
        for name in self._there:
            queue = self._queues[name]
            if not self.ledger.devices[name].alive:
                continue
            position = self.strategy.next_lease(name)
            if position is not None:
                queue.append((self.ledger.lease(name, position, self.now), position))
                any_leased = True
            self._work(name)
        return any_leased

    def _work(self, name: str) -> None:
        queue = self._queues[name]
        while queue and self._device_idle[name]:
            lease, position = queue.pop(0)
            if lease in self._cancelled:
                continue
            self._device_idle[name] -= 1
            seconds = self.world.device_s[name](position)
            if not math.isinf(seconds):  # else it has stalled: its worker never comes back
                self._work_on(name, lease, position, seconds)

    def _work_on(self, name: str, lease: int, position: int, seconds: float) -> None:
        for part in self.world.progress:
            self._at(part * seconds, partial(self._progress, name, lease, part))
        life = self._lives[name]
        self._at(seconds, lambda: self._published(name, life, lease, position, seconds))

    def _progress(self, name: str, lease: int, part: float) -> None:
        if name not in self._dead:
            self.ledger.progressed(name, lease, part, self.now)

    def _published(self, name: str, life: int, lease: int, position: int, seconds: float) -> None:
        same_life = self._lives[name] == life
        self._device_idle[name] += same_life
        if not (same_life and name not in self._dead) and not self.world.late_copy(lease):
            return
        if lease not in self._cancelled:
            if self.world.lease_fails(position):
                self.ledger.failed(name, lease)
            else:
                for _ in range(2 if self.world.doubled(lease) else 1):
                    self.ledger.published(name, lease)
                self.rates.device(name).add(seconds)
        if name not in self._dead:
            self._work(name)

    def _fetch(self) -> bool:
        if len(self.ledger.fetching) >= FETCHERS:
            return False
        position = self.strategy.next_fetch()
        if position is None:
            return False
        device, lease = self.ledger.fetch(position, self.now)
        seconds = self.world.fetch_s(position)
        if not math.isinf(seconds):
            self._at(seconds, lambda: self._fetched(device, position, lease, seconds))
        return True

    def _fetched(self, device: str, position: int, lease: int, seconds: float) -> None:
        self.rates.fetched(device, seconds, 1.0, FETCHERS, self.world.taking_cpu_s)
        if self.world.fetch_ok(position):
            self.ledger.verified(lease)
        else:
            self.ledger.damaged(lease)
