"""The choice of the next source: what the host takes up, what a device is given, what is delivered next.

Pure, like the ledger they look at. A strategy is told no events; it reads the ledger and the rates and answers four
questions, with None for "nothing now": `next_claim`, `next_lease`, `next_fetch`, `next_delivery`. And by `hanging_fetch` and
`late_device` it tells what is not to be waited for any more.

Two rules hold in every strategy, so that no schedule locks up: a batch that came back is the host's, before all else or,
where the order is fixed, in that order; and there one host slot and one fetch slot are kept for the batch whose turn it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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


class Strategy:
    """What all strategies share; the order of delivery and of the leases is the subclass's."""

    name = ""
    rank_after_rank = False  # of several ranks, a device works for the lowest that has leases, instead of in turn

    def __init__(self, ledger: Ledger, rates: Rates) -> None:
        self.ledger = ledger
        self.rates = rates
        self.sample_bytes = 0  # of a device's batch; 0: not known

    # -- what a subclass answers ---------------------------------------------------------------------------------

    def turn(self) -> int | None:
        """The only batch that may be delivered next; None where any may, or where it is not known yet."""
        raise NotImplementedError

    def _next_free(self) -> int | None:
        """The free batch that the host should take up."""
        return self.first(self.ledger.free) if self.ledger.free else None

    def _next_to_lease(self, device: str) -> int | None:
        """The free batch to give to a device that has room."""
        return self.ledger.free.last() if self.ledger.free and self._worth_leasing(device) else None

    # -- the four questions --------------------------------------------------------------------------------------

    def next_delivery(self) -> int | None:
        """The batch to train on now."""
        turn = self.turn()
        return turn if turn is not None and self.ledger.is_ready(turn) else None

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
        free = self._next_free()
        if ledger.returned:
            back = self.first(ledger.returned)
            # What is due later is not made sooner: it would fill the slots until its turn, and the host make one at a time.
            return back if turn is None or free is None else self.first(RangeSet(((back, back + 1), (free, free + 1))))
        return free if free is not None else self._take_back(now)

    def next_lease(self, device: str) -> int | None:
        """The batch to lease to a device now."""
        return self._next_to_lease(device) if self.ledger.can_lease(device) else None

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

    def _worth_leasing(self, device: str) -> bool:
        """True where the device would be ready with one more batch before the host has made all that is left."""
        r_cpu, ready_s = self.rates.host.per_s, self._ready_s(device)
        if r_cpu is None or ready_s is None:
            return True
        return ready_s <= (len(self.ledger.free) + 0.5 * self.ledger.host_in_work) / r_cpu

    def _made_meanwhile(self, device: str) -> int:
        """Free batches that must lie before one that is leased now, so that it is ready when its turn comes.

        What the host makes while the device makes its backlog and this batch, and some more: a batch that is early waits in
        the spool, one that is late makes training wait or is made twice.
        """
        r_cpu, ready_s = self.rates.host.per_s, self._ready_s(device)
        if r_cpu is None or ready_s is None:
            return min(math.ceil(GUESS * (self._backlog(device) + 1)), len(self.ledger.free) // 2)
        return math.ceil(r_cpu * (ready_s + SLACK * self.rates.device(device).seconds)) + 1


class Cpu(Strategy):
    """The host alone, in the sampler's order: the baseline, and the drop-in without a device."""

    name = "cpu"

    def turn(self) -> int | None:
        """The first undelivered batch."""
        first = self.ledger.delivered.first_missing()
        return first if first < self.ledger.length else None

    def _next_to_lease(self, device: str) -> int | None:
        return None


class Csd(Cpu):
    """The devices alone, in the sampler's order: the other baseline. The host steps in for what they can't do."""

    name = "csd"

    def _next_free(self) -> int | None:
        return None if self.ledger.devices_there else super()._next_free()

    def _claim_turn(self, turn: int, entry: Entry | None, now: float) -> bool:
        if entry is None:
            return turn in self.ledger.returned or not self.ledger.devices_there
        return entry.csd is CsdCopy.LEASED and self._stalled(entry, now)

    def _take_back(self, now: float) -> int | None:
        return None

    def _next_to_lease(self, device: str) -> int | None:
        return self.ledger.free.first() if self.ledger.free else None


class Ordered(Cpu):
    """The sampler's order with both sides at work: a device gets batches so far ahead that they are ready in time."""

    name = "ordered"

    def _next_to_lease(self, device: str) -> int | None:
        free, ahead = self.ledger.free, self._made_meanwhile(device)
        if ahead < len(free):
            return free.nth(ahead)
        return super(Cpu, self)._next_to_lease(device)  # the epoch's last ones: as long as it pays


class Wrr(Strategy):
    """Weighted round robin: what a device has ready, else what the host has. Follows the speeds; order not fixed."""

    name = "wrr"

    def turn(self) -> int | None:
        """Any batch may be next."""
        return None

    def next_delivery(self) -> int | None:
        """A device's batch if one is ready, else the host's first."""
        for ready in (self.ledger.ready_csd, self.ledger.ready_host):
            if ready:
                return ready.first()
        return None


class Mte(Strategy):
    """Moving towards each other: the first batches ascending, all of them the host's; then from the end, descending.

    ``host_batches`` is the split s; None calibrates: until both rates are known the host's batches are trained on as they
    come, then `split` chooses. Neither side ever rests: while training goes down from the end the host makes batches of that
    part too. So the devices leave out every so many-th of them, evenly spread: by the time training has come to one of those
    the host has made it, and its slot is free again for the next.
    """

    name = "mte"
    rank_after_rank = True  # as the paper's: one rank's directory is filled before the next one's
    # A split that is too small costs nothing, one that is too large costs time; and the rates are known within 5 %.
    EARLY, SURE = 0.9, 0.95

    def __init__(self, ledger: Ledger, rates: Rates, host_batches: int | None = None) -> None:
        super().__init__(ledger, rates)
        if not ledger.closed:
            raise ValueError("mte needs the epoch's length")
        self.host_batches = None if host_batches is None else min(max(host_batches, 0), ledger.length)
        self._frontier = ledger.length - 1  # down to here each batch was leased, or left to the host
        self._due = 0.0  # the host's part of the batches so far, less what was left to it

    def turn(self) -> int | None:
        """Ascending up to the split, then descending from the end."""
        head = self.ledger.delivered.first_missing()
        if head < self._split():
            return head
        last = self.ledger.delivered.last_missing(self.ledger.length)
        return last if last >= 0 else None

    def first(self, positions: RangeSet) -> int:
        first = positions.first()
        return first if first < self._split() else positions.last()

    def _split(self) -> int:
        if self.host_batches is None:
            self.host_batches = self._calibrated()
        return self.ledger.length if self.host_batches is None else self.host_batches

    def _calibrated(self) -> int | None:
        ledger, n = self.ledger, self.ledger.length
        if not ledger.devices_there:
            return None  # nobody to share with: the host's order it stays
        joined = [name for name, a in ledger.devices.items() if a.at_work]
        known = joined and all(self.rates.device(name).known() for name in joined) and self.rates.host.known()
        if not known:
            if ledger.free or ledger.returned:
                return None
            return n  # too short to calibrate: they have met, and the turn must not jump over what the host holds
        committed = ledger.free.first() if ledger.free else n  # up to here the host has made them: no going back
        begun = ledger.delivered.first_missing()
        quota = sum(ledger.devices[name].quota for name in joined)
        share = self.split(n - len(ledger.delivered), self.rates, ledger.devices_there, quota)
        return None if share is None else min(n, max(begun + share, committed))

    @classmethod
    def split(cls, n: int, rates: Rates, devices: Iterable[str], quota: int) -> int | None:
        """How many of ``n`` batches are trained on ascending, at these rates; None where one of them is not known.

        The paper's n * r_cpu / (r_cpu + r_csd) at most. The host has made its s after s / r_cpu, and training on the others
        takes (n - s) * t then, with t for a step. Both stay within T = n / (r_cpu + r_csd) where
        s <= (T - n * t) / (1 / r_cpu - t); where training is what limits (T < n * t < n / r_cpu), it must not wait for the
        host at all: s = 0. And what the devices make in the first part must fit into their spools, from which nothing
        drains before the second: s / r_cpu <= quota / r_csd.

        Where R ranks share the devices, n, r_cpu and the quota are this rank's own, and r_csd is 1 / R of what the devices
        make (`Rate.per_s`): ranks train in step, so all are given as much, whoever's directory is filled first.
        """
        r_cpu, r_csd = rates.host.per_s, rates.csd_per_s(devices)
        if r_cpu is None or r_csd is None:
            return None
        paper = n * r_cpu / (r_cpu + r_csd)
        share = min(paper, cls.EARLY * quota * r_cpu / r_csd)
        step_s = rates.training.seconds if rates.training.count else 0.0
        if 0.0 < step_s < 1.0 / r_cpu:
            spare_s = max(0.0, cls.SURE * n / (r_cpu + r_csd) - n * step_s)
            share = min(share, cls.EARLY * spare_s / (1.0 / r_cpu - step_s))
        return round(share)

    def _next_to_lease(self, device: str) -> int | None:
        free, split = self.ledger.free, self._split()
        if not free or self.host_batches is None:
            return super()._next_to_lease(device)
        ahead = self._made_meanwhile(device)
        while (position := free.at_most(self._frontier)) is not None and position >= split:
            self._frontier = position - 1
            before = len(free) - (position + 1 - split)  # free batches that come earlier
            self._due += self._hosts_part(before, position + 1 - split)
            if self._due < 1.0 and before >= ahead:
                return position
            self._due = max(0.0, self._due - 1.0)
        if not self._worth_leasing(device):
            return None
        last = free.at_least(split)  # in the order of delivery
        return free.last() if last is None else last

    def _hosts_part(self, before: int, after: int) -> float:
        """The part (0 to 1) that the host should make of these ``after`` batches, beside the ``before`` earlier ones."""
        r_cpu, r_csd = self.rates.host.per_s, self.rates.csd_per_s(self.ledger.devices_there)
        if r_cpu is None or r_csd is None:
            return 0.0
        backlog = sum(self._backlog(name) for name in self.ledger.devices)
        hosts = (before + after + backlog) * r_cpu / (r_cpu + r_csd)
        return min(max((hosts - before) / max(1, after), 0.0), 1.0)


STRATEGIES: dict[str, type[Strategy]] = {s.name: s for s in (Cpu, Csd, Mte, Wrr, Ordered)}
