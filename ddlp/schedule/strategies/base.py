"""`Strategy`: how it describes itself, the questions that it answers, and the rules that all strategies share.

A strategy is told no events. It reads the ledger and the rates and answers four questions, with None for "nothing now":
`next_claim`, `next_lease`, `next_fetch`, `next_delivery`. `hanging_fetch` and `late_device` say what is not waited for any
more.

Two rules hold in every strategy, so that no schedule locks up. A batch that came back is the host's: before all others, or in
the order of delivery where that is fixed. And where it is fixed, one host slot and one fetch slot are kept for the batch whose
turn it is.
"""

from __future__ import annotations

import enum
import math
from typing import ClassVar

from ddlp.schedule.ledger import Ledger
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.rates import Rates
from ddlp.schedule.states import CsdCopy, Entry, HostCopy

# A lease that has not moved for so long is taken back, also by a strategy that would rather wait; and a fetch is given up.
STALLED_S = 30.0  # while the device's speed is not known; a fetch, or a device that is about to join: in any case
STALLED_AT_LEAST_S = 5.0
GUESS = 16.0  # the host's speed over a device's, before either is known
SLACK = 0.5  # of a device's batch: leased so much earlier than its speed asks for
STALLED_BATCHES = 4  # the time of so many batches: its turn may come after another lease's, or another job's
SLOWEST_BYTES_S = 1 << 19  # of a fetch, beside others: through a link that brings less a device is of no use


class Order(enum.Enum):
    """The order in which a strategy promises to deliver an epoch's batches."""

    SAMPLER = "the sampler's"
    FROM_BOTH_ENDS = "up from the first batch, and from some batch on down from the last"
    ANY = "any"


class Strategy:
    """The choices of one epoch. A subclass says in class attributes what it is, and overrides what it decides otherwise.

    As it stands here, a batch that is ready is delivered: in the sampler's order if `order` says so, else a device's before
    the host's. The host works from the head of the epoch, devices from its tail.

    Attributes:
        name: a short one of its own, for reports and recordings. A class without one can't be given to a loader.
        line: what it does, in one line, for ``explain()``.
        order: what it promises of the order of batches. ddlp's checker holds it to that.
        uses_device: False: no device is asked for, and no engine is started.
        needs_device: True: the host only steps in for a device that fails. Samples that can't travel, and an engine that does
            not start, are errors.
        needs_length: True: it needs the whole epoch's batches when it begins, so one of torch's own samplers.
        takes_ratio: True: the loader's argument ``ratio`` is for it.
        rank_after_rank: of several ranks, a device works for the lowest that has leases, instead of in turn.
    """

    name: ClassVar[str] = ""
    line: ClassVar[str] = ""
    order: ClassVar[Order] = Order.ANY
    uses_device: ClassVar[bool] = True
    needs_device: ClassVar[bool] = False
    needs_length: ClassVar[bool] = False
    takes_ratio: ClassVar[bool] = False
    rank_after_rank: ClassVar[bool] = False

    def __init__(self, ledger: Ledger, rates: Rates) -> None:
        if self.needs_length and not ledger.closed:
            raise ValueError(f"{self.name} needs the epoch's length")
        self.ledger = ledger
        self.rates = rates
        self.sample_bytes = 0  # of a device's batch; 0: not known

    @classmethod
    def make(cls, ledger: Ledger, rates: Rates, ratio: float | None = None) -> Strategy:
        """The strategy of an epoch. ``ratio``: the host's share, 0 to 1, as the loader was given it; else None."""
        return cls(ledger, rates)

    # -- what a subclass answers ---------------------------------------------------------------------------------

    def turn(self) -> int | None:
        """The only batch that may be delivered next; None where any may, or where it is not known yet."""
        if self.order is not Order.SAMPLER:
            return None
        first = self.ledger.delivered.first_missing()
        return first if first < self.ledger.length else None

    def free_for_host(self) -> int | None:
        """The free batch that the host should take up."""
        return self.first(self.ledger.free) if self.ledger.free else None

    def free_for_device(self, device: str) -> int | None:
        """The free batch to give to a device that has room."""
        return self.ledger.free.last() if self.ledger.free and self.worth_leasing(device) else None

    # -- the four questions --------------------------------------------------------------------------------------

    def next_delivery(self) -> int | None:
        """The batch to train on now."""
        turn = self.turn()
        if turn is not None:
            return turn if self.ledger.is_ready(turn) else None
        ready = self.ledger.ready_csd or self.ledger.ready_host
        return ready.first() if ready else None

    def next_claim(self, now: float) -> int | None:
        """The batch that an idle worker of the host should take up."""
        ledger = self.ledger
        slots = ledger.free_host_slots
        turn = self.turn()
        entry = ledger.entry(turn) if turn is not None else None
        if turn is not None and (entry is None or entry.host is HostCopy.NONE):
            if slots >= 1 and self._claim_turn(turn, entry, now):
                return turn
            # Kept for it, and where a device's copy is ready for the one after it: delivering that frees no slot here.
            slots -= 1
        if slots < 1:
            return None
        free = self.free_for_host()
        if ledger.returned:
            back = self.first(ledger.returned)
            # What is due later is not made sooner: it would fill the slots until its turn, and the host make one at a time.
            return back if turn is None or free is None else self.first(RangeSet(((back, back + 1), (free, free + 1))))
        return free if free is not None else self._take_back(now)

    def next_lease(self, device: str) -> int | None:
        """The batch to lease to a device now."""
        return self.free_for_device(device) if self.ledger.can_lease(device) else None

    def next_fetch(self) -> int | None:
        """The published batch to bring into memory now."""
        ledger = self.ledger
        if not ledger.in_spool or ledger.free_fetch_slots < 1:
            return None
        turn = self.turn()
        position = self.first(ledger.in_spool)
        if turn is not None and position != turn and ledger.free_fetch_slots < 2:
            entry = ledger.entry(turn)
            if entry is None or entry.csd not in (CsdCopy.FETCHING, CsdCopy.READY):
                return None  # the last slot is for the batch whose turn it is
        return position

    def hanging_fetch(self, now: float) -> int | None:
        """The lease whose fetch should be given up: its file system, or its device, does not answer any more."""
        for lease, (device, since) in self.ledger.fetching.items():
            account = self.ledger.devices[device]
            # What comes over a socket ends with its link: a loss is news to be waited for, not what the fetch hung by.
            begun = since if account.alive else max(since, account.left_s)
            if now - begun > self._fetch_limit_s(device):
                return lease
        return None

    def late_device(self, now: float) -> str | None:
        """The device that should not be waited for any more: it is about to join, and has been for too long."""
        late = (d for d, account in self.ledger.devices.items() if account.joining and now - account.expected_s > STALLED_S)
        return next(late, None)

    # -- rules behind --------------------------------------------------------------------------------------------

    def first(self, positions: RangeSet) -> int:
        """The one of these that comes first in the order of delivery."""
        return positions.first()

    def _claim_turn(self, turn: int, entry: Entry | None, now: float) -> bool:
        """True where the host should take up the batch whose turn it is, which it does not hold."""
        if entry is None:
            return True
        return entry.csd is CsdCopy.LEASED and self._late(entry, now)

    def _stalled(self, entry: Entry, now: float) -> bool:
        """True where a device that answers does not get on with a lease: its worker hangs, or others fill its spool."""
        assert entry.device is not None
        if self.ledger.devices[entry.device].shut_out:
            return True
        rate = self.rates.device(entry.device)
        limit = max(STALLED_AT_LEAST_S, STALLED_BATCHES * rate.seconds) if rate.count else STALLED_S
        return now - entry.progress_s > limit

    def _fetch_limit_s(self, device: str) -> float:
        """A spool that is slow, or far, is given its time; but where the device is gone that is the likely reason."""
        if not self.ledger.devices[device].alive:
            return STALLED_AT_LEAST_S
        slow_s = self.rates.full_batch * self.sample_bytes / SLOWEST_BYTES_S
        return max(STALLED_S, STALLED_BATCHES * self.rates.device(device).seconds, slow_s)

    def _late(self, entry: Entry, now: float) -> bool:
        """True where the host would be ready with a leased batch before the device."""
        assert entry.device is not None
        if self._stalled(entry, now):
            return True
        idle = now - entry.progress_s
        host, device = self.rates.host, self.rates.device(entry.device)
        if not host.count or not device.count:
            return host.count > 0  # nobody knows how long it will take
        left = (1.0 - entry.progress) * device.seconds - idle
        return left > host.seconds or idle > 2 * device.seconds

    def _take_back(self, now: float) -> int | None:
        """With nothing left to claim: the lease that is least advanced. The first verified copy wins."""
        leases = [e for e in self.ledger.leased() if e.host is HostCopy.NONE]
        return min(leases, key=lambda e: e.progress).position if leases else None

    def _backlog(self, device: str) -> float:
        """Leased batches that the device has still to make, in batches."""
        leases = self.ledger.devices[device].outstanding
        entries = (self.ledger.entry(p) for p in leases.values())
        return sum(1.0 - e.progress for e in entries if e is not None)

    def _ready_s(self, device: str) -> float | None:
        """Seconds until the device would be ready with one more batch; None while its speed is not known."""
        rate = self.rates.device(device)
        return self._backlog(device) / rate.per_s + rate.seconds if rate.per_s is not None else None

    def worth_leasing(self, device: str) -> bool:
        """True where the device would be ready with one more batch before the host has made all that is left."""
        r_cpu, ready_s = self.rates.host.per_s, self._ready_s(device)
        if r_cpu is None or ready_s is None:
            return True
        return ready_s <= (len(self.ledger.free) + 0.5 * self.ledger.host_in_work) / r_cpu

    def made_meanwhile(self, device: str) -> int:
        """Free batches that must lie before one that is leased now, so that it is ready when its turn comes.

        What the host makes while the device makes its backlog and this batch, and some more: a batch that is early waits in
        the spool, one that is late makes training wait or is made twice.
        """
        r_cpu, ready_s = self.rates.host.per_s, self._ready_s(device)
        if r_cpu is None or ready_s is None:
            return min(math.ceil(GUESS * (self._backlog(device) + 1)), len(self.ledger.free) // 2)
        return math.ceil(r_cpu * (ready_s + SLACK * self.rates.device(device).seconds)) + 1
