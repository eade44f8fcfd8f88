"""`Strategy`: the attributes that describe it, the questions that it answers, and the rules that all strategies share.

A strategy receives no events. It reads the ledger and the rates and answers four questions, with None for "nothing now":
`next_claim`, `next_lease`, `next_fetch`, `next_delivery`. `hanging_fetch` and `late_device` name a fetch or a device for which
the epoch should not wait any longer.

Two rules hold in every strategy, so that no schedule locks up. First, the host makes a batch that came back: before all others,
or in the order of delivery if that is fixed. Second, if the order is fixed, one host slot and one fetch slot are kept for the
batch whose turn it is.
"""

from __future__ import annotations

import enum
import math
from typing import ClassVar

from ddlp.schedule.ledger import Ledger
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.rates import Rates
from ddlp.schedule.states import CsdCopy, Entry, HostCopy

# A lease without progress for so long is taken back, even by a strategy that would rather wait. A fetch is given up.
STALLED_S = 30.0  # for a lease while the device's speed is not known; for a fetch, or a device that is about to join, always
STALLED_AT_LEAST_S = 5.0
GUESS = 16.0  # the host's speed divided by a device's, while either is not known
SLACK = 0.5  # of a device's time for a batch: a batch is leased so much earlier than the device's speed demands
STALLED_BATCHES = 4  # the limit is the time of so many batches: another lease or another job may come first
SLOW_FETCH_S = 0.1  # a quicker fetch takes as long as this host's threads let it, and not the network
HANDED_OVER = 4  # batches of devices that retire, in memory beside those for which there are slots
SLOWEST_BYTES_S = 1 << 19  # of a fetch beside others: over a slower link a device is of no use


class Order(enum.Enum):
    """The order in which a strategy promises to deliver an epoch's batches."""

    SAMPLER = "the sampler's"
    FROM_BOTH_ENDS = "up from the first batch, and from some batch on down from the last"
    ANY = "any"


class Strategy:
    """The choices of one epoch. A subclass describes itself by class attributes, and overrides what it decides differently.

    By default any ready batch is delivered: in the sampler's order if `order` says so, else a device's batches come before
    the host's. The host works from the head of the epoch, and devices work from its tail.

    Attributes:
        name: a short name of its own, for reports and recordings. A class without one can't be given to a loader.
        line: what it does, in one line, for ``explain()``.
        order: the order of batches that it promises. ddlp's checker tests that it keeps the promise.
        uses_device: False: no device is used, and no engine is started.
        needs_device: True: the host makes batches only for a device that fails. Samples that can't travel, and an engine that
            does not start, are errors.
        needs_length: True: it needs the whole epoch's batches at the beginning, and so one of torch's own samplers.
        takes_ratio: True: the loader's argument ``ratio`` is for it.
        rank_after_rank: True: a device that several ranks share works for the lowest rank that has leases. False: it works for
            all in turn.
        decides: True: a `ddlp.auto.controller.Controller` measures while training goes on, and lets devices rest.
    """

    name: ClassVar[str] = ""
    line: ClassVar[str] = ""
    order: ClassVar[Order] = Order.ANY
    uses_device: ClassVar[bool] = True
    needs_device: ClassVar[bool] = False
    needs_length: ClassVar[bool] = False
    takes_ratio: ClassVar[bool] = False
    rank_after_rank: ClassVar[bool] = False
    decides: ClassVar[bool] = False

    def __init__(self, ledger: Ledger, rates: Rates) -> None:
        if self.needs_length and not ledger.closed:
            raise ValueError(f"{self.name} needs the epoch's length")
        self.ledger = ledger
        self.rates = rates

    @classmethod
    def make(cls, ledger: Ledger, rates: Rates, ratio: float | None = None) -> Strategy:
        """Make the strategy of an epoch. ``ratio``: the loader's argument, the host's share, 0 to 1; None if it has none."""
        return cls(ledger, rates)

    # -- answers that a subclass may override --------------------------------------------------------------------

    def turn(self) -> int | None:
        """Return the only batch that may be delivered next; None if any may, or if that is not known yet."""
        if self.order is not Order.SAMPLER:
            return None
        first = self.ledger.delivered.first_missing()
        return first if first < self.ledger.length else None

    def free_for_host(self) -> int | None:
        """Return the free batch that the host should claim."""
        return self.first(self.ledger.free) if self.ledger.free else None

    def free_for_device(self, device: str) -> int | None:
        """Return the free batch to give to a device that has room."""
        return self.ledger.free.last() if self.ledger.free and self.worth_leasing(device) else None

    # -- the four questions --------------------------------------------------------------------------------------

    def next_delivery(self) -> int | None:
        """Return the batch to train on now."""
        turn = self.turn()
        if turn is not None:
            return turn if self.ledger.is_ready(turn) else None
        ready = self.ledger.ready_csd or self.ledger.ready_host
        return ready.first() if ready else None

    def next_claim(self, now: float) -> int | None:
        """Return the batch that an idle worker of the host should claim."""
        ledger = self.ledger
        slots = ledger.free_host_slots
        turn = self.turn()
        entry = ledger.entry(turn) if turn is not None else None
        if turn is not None and (entry is None or entry.host is HostCopy.NONE):
            if slots >= 1 and self._claim_turn(turn, entry, now):
                return turn
            # One slot is kept for that batch. It is kept as well if a device's copy of it is ready or on its way: delivering
            # such a copy frees no host slot, and the batch after it may need one.
            slots -= 1
        if slots < 1:
            return None
        free = self.free_for_host()
        if ledger.returned:
            back = self.first(ledger.returned)
            # A batch is not made before others that are due earlier: such batches would fill the slots until their turn, and
            # the host could make only one batch at a time.
            return back if turn is None or free is None else self.first(RangeSet(((back, back + 1), (free, free + 1))))
        return free if free is not None else self._take_back(now)

    def next_lease(self, device: str) -> int | None:
        """Return the batch to lease to a device now."""
        return self.free_for_device(device) if self.ledger.can_lease(device) else None

    def next_fetch(self) -> int | None:
        """Return the published batch to fetch now."""
        ledger = self.ledger
        if not ledger.in_spool:
            return None
        turn = self.turn()
        if ledger.free_fetch_slots < 1:
            if ledger.retired and turn is not None and turn in ledger.in_spool:
                return turn  # batches that were handed over have its slot
            return self._handed_over()
        position = self.first(ledger.in_spool)
        if turn is not None and position != turn and ledger.free_fetch_slots < 2:
            entry = ledger.entry(turn)
            if entry is None or entry.csd not in (CsdCopy.FETCHING, CsdCopy.READY):
                return self._handed_over()  # the last slot is for the batch whose turn it is
        return position

    def hanging_fetch(self, now: float) -> int | None:
        """Return the lease whose fetch should be given up, since the file system or the device does not answer any more."""
        for lease, (device, since) in self.ledger.fetching.items():
            account = self.ledger.devices[device]
            # A fetch over a socket ends by itself when its link is lost. So the time counts anew from the device's loss.
            begun = since if account.alive else max(since, account.left_s)
            if now - begun > self._fetch_limit_s(device):
                return lease
        return None

    def late_device(self, now: float) -> str | None:
        """Return a device that is joining for too long, so that nobody should wait for it any longer."""
        late = (d for d, account in self.ledger.devices.items() if account.joining and now - account.expected_s > STALLED_S)
        return next(late, None)

    # -- rules ---------------------------------------------------------------------------------------------------

    def first(self, positions: RangeSet) -> int:
        """Return the position that comes first in the order of delivery."""
        return positions.first()

    def _handed_over(self) -> int | None:
        """Return a published batch of a device that retires, to fetch although no slot is left: the device waits for that."""
        ledger = self.ledger
        if not ledger.retired:
            return None
        retiring = {name for name, account in ledger.devices.items() if account.alive and account.retiring}
        if not retiring or ledger.free_fetch_slots <= -HANDED_OVER:
            return None
        entries = (ledger.entry(position) for position in ledger.in_spool)
        return next((entry.position for entry in entries if entry is not None and entry.device in retiring), None)

    def _claim_turn(self, turn: int, entry: Entry | None, now: float) -> bool:
        """True if the host should claim the batch whose turn it is. The host does not hold that batch."""
        if entry is None:
            return True
        return self._late(entry, now) if entry.csd is CsdCopy.LEASED else self._arrives_late(entry, now)

    def _arrives_late(self, entry: Entry, now: float) -> bool:
        """True if the host would be ready with a published batch before it has come from the device."""
        host, ledger = self.rates.host, self.ledger
        assert entry.device is not None and entry.lease is not None
        if entry.csd is CsdCopy.READY or not host.count:
            return False
        if fetch_s := self.rates.link_s(entry.device):
            since = ledger.fetching[entry.lease][1] if entry.csd is CsdCopy.FETCHING else now
            # The time is infinite if the batch has been read: what is left to do is the host's.
            left_s = fetch_s + since - now
            if left_s < 0:  # it takes longer than they usually do, and may take as long again
                left_s = -left_s
            return self._slow_network(entry.device) and host.seconds < left_s < math.inf
        begun = min((since for device, since in ledger.fetching.values() if device == entry.device), default=now)
        return now - begun > max(host.seconds, 10 * SLOW_FETCH_S)  # the first fetches take longer than the host would

    def _slow_network(self, device: str) -> bool:
        """True if a device's batches arrive more slowly than training takes batches."""
        step = self.rates.training
        arriving_per_s = self.rates.link_per_s(device)
        return self.rates.link_s(device) > SLOW_FETCH_S and step.count > 0 and step.seconds * arriving_per_s < 1.0

    def _stalled(self, entry: Entry, now: float) -> bool:
        """True if a device answers, but makes no progress on a lease: its worker hangs, or others fill its spool."""
        assert entry.device is not None
        if self.ledger.devices[entry.device].shut_out:
            return True
        rate = self.rates.device(entry.device)
        limit = max(STALLED_AT_LEAST_S, STALLED_BATCHES * rate.seconds) if rate.count else STALLED_S
        return now - entry.progress_s > limit

    def _fetch_limit_s(self, device: str) -> float:
        """Return how long a fetch may take. A slow or distant spool gets more time, unless its device is gone."""
        if not self.ledger.devices[device].alive:
            return STALLED_AT_LEAST_S
        slow_s = self.rates.full_batch * self.rates.sample_bytes / SLOWEST_BYTES_S
        return max(STALLED_S, STALLED_BATCHES * self.rates.device(device).seconds, slow_s)

    def _late(self, entry: Entry, now: float) -> bool:
        """True if the host would be ready with a leased batch before the device."""
        assert entry.device is not None
        if self._stalled(entry, now):
            return True
        idle = now - entry.progress_s
        host, device = self.rates.host, self.rates.device(entry.device)
        if not host.count or not device.count:
            return host.count > 0  # it is not known how long the device will take
        left = (1.0 - entry.progress) * device.seconds - idle
        return left > host.seconds or idle > 2 * device.seconds

    def _take_back(self, now: float) -> int | None:
        """Return the batch of the least advanced lease, for a host with nothing else to claim. The first verified copy wins.

        Without such a lease, return the published batch that is fetched last, or of those on their way the one that comes last,
        if the host would be ready with it before.
        """
        leases = [e for e in self.ledger.leased() if e.host is HostCopy.NONE]
        if leases:
            return min(leases, key=lambda e: e.progress).position
        if (position := self._fetched_last()) is not None:
            return position
        late = [entry for entry in self.ledger.on_their_way() if self._arrives_late(entry, now)]
        return late[-1].position if late else None

    def _fetched_last(self) -> int | None:
        spool, host = self.ledger.in_spool, self.rates.host
        if not spool or not host.count:
            return None
        from_the_end = self.first(spool) == spool.first()
        position: int | None = spool.last() if from_the_end else spool.first()
        while position is not None:
            entry = self.ledger.entry(position)
            assert entry is not None and entry.device is not None
            if not self._slow_network(entry.device) or len(spool) / self.rates.link_per_s(entry.device) <= host.seconds:
                return None
            if entry.host is HostCopy.NONE:
                return position
            position = spool.at_most(position - 1) if from_the_end else spool.at_least(position + 1)
        return None

    def _backlog(self, device: str) -> float:
        """Return how much of its leases the device has still to make, in batches."""
        leases = self.ledger.devices[device].outstanding
        entries = (self.ledger.entry(p) for p in leases.values())
        return sum(1.0 - e.progress for e in entries if e is not None)

    def _ready_s(self, device: str) -> float | None:
        """Return the seconds until one more batch of the device would be in memory; None while its speed is not known.

        The time of this batch's own fetch is left out. It counts only where batches queue for the network.
        """
        rate = self.rates.device(device)
        if rate.per_s is None:
            return None
        queue_s = self.ledger.devices[device].held / self.rates.link_per_s(device) if self._slow_network(device) else 0.0
        return max(self._backlog(device) / rate.per_s + rate.seconds, queue_s)

    def worth_leasing(self, device: str) -> bool:
        """True if the device would be ready with one more batch before the host has made all remaining batches."""
        r_cpu, ready_s = self.rates.host.per_s, self._ready_s(device)
        if r_cpu is None or ready_s is None:
            return True
        return ready_s <= (len(self.ledger.free) + 0.5 * self.ledger.host_in_work) / r_cpu

    def made_meanwhile(self, device: str) -> int:
        """Return how many free batches must come before a batch that is leased now, so that it is ready at its turn.

        That is what the host makes while the device makes its backlog and this batch, and some more. An early batch waits in
        the spool; a late one makes training wait, or is made twice.
        """
        r_cpu, ready_s = self.rates.host.per_s, self._ready_s(device)
        if r_cpu is None or ready_s is None:
            return min(math.ceil(GUESS * (self._backlog(device) + 1)), len(self.ledger.free) // 2)
        return math.ceil(r_cpu * (ready_s + SLACK * self.rates.device(device).seconds)) + 1
