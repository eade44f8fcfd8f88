"""The choice of the next source: what the host takes up, what a device is given, what is delivered next.

Pure, like the ledger they look at. A strategy is told no events; it reads the ledger and the rates and answers four
questions, with None for "nothing now": `next_claim`, `next_lease`, `next_fetch`, `next_delivery`.

Two rules hold in every strategy, so that no schedule locks up: a batch that came back is the host's, before all else;
and where the order is fixed, one host slot and one fetch slot are kept for the batch whose turn it is.
"""

from __future__ import annotations

import math

from ddlp.copies import CsdCopy, Entry, HostCopy
from ddlp.ledger import Ledger
from ddlp.ranges import RangeSet
from ddlp.rates import Rates

# A lease that has not moved for so long is taken back, also by a strategy that would rather wait.
STALLED_S = 30.0  # while the device's speed is not known
STALLED_AT_LEAST_S = 5.0
STALLED_BATCHES = 4  # the time of so many batches: its turn may come after another lease's, or another job's


class Strategy:
    """What all strategies share; the order of delivery and of the leases is the subclass's."""

    name = ""

    def __init__(self, ledger: Ledger, rates: Rates) -> None:
        self.ledger = ledger
        self.rates = rates

    # -- what a subclass answers ---------------------------------------------------------------------------------

    def turn(self) -> int | None:
        """The only batch that may be delivered next; None where any may, or where it is not known yet."""
        raise NotImplementedError

    def _next_free(self) -> int | None:
        """The free batch that the host should take up."""
        return self._first(self.ledger.free) if self.ledger.free else None

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
        if ledger.returned:
            return ledger.returned.first()
        free = self._next_free()
        return free if free is not None else self._take_back(now)

    def next_lease(self, device: str, now: float) -> int | None:
        """The batch to lease to a device now."""
        return self._next_to_lease(device) if self.ledger.can_lease(device) else None

    def next_fetch(self) -> int | None:
        """The published batch to bring into memory now."""
        ledger = self.ledger
        if not ledger.in_spool or ledger.free_fetch_slots < 1:
            return None
        turn = self.turn()
        position = self._first(ledger.in_spool)
        if turn is not None and position != turn and ledger.free_fetch_slots < 2:
            entry = ledger.entry(turn)
            if entry is None or entry.csd not in (CsdCopy.FETCHING, CsdCopy.READY):
                return None  # the last slot is for the batch whose turn it is
        return position

    # -- rules behind --------------------------------------------------------------------------------------------

    def _first(self, positions: RangeSet) -> int:
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
        if self.ledger.shut_out(entry.device):
            return True
        rate = self.rates.device(entry.device)
        limit = max(STALLED_AT_LEAST_S, STALLED_BATCHES * rate.seconds) if rate.count else STALLED_S
        return now - entry.progress_s > limit

    def _late(self, entry: Entry, now: float) -> bool:
        """True where the host would be ready with a leased batch before the device."""
        assert entry.device is not None
        if self._stalled(entry, now):
            return True
        idle = now - entry.progress_s
        host, device = self.rates.host, self.rates.device(entry.device)
        if not host.count or not device.count:
            return False
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

    def _worth_leasing(self, device: str) -> bool:
        """True where the device would be ready with one more batch before the host has made all that is left."""
        r_cpu, r_csd = self.rates.host.per_s, self.rates.device(device).per_s
        if r_cpu is None or r_csd is None:
            return True
        left = len(self.ledger.free) + 0.5 * self.ledger.host_in_work
        return (self._backlog(device) + 1) / r_csd <= left / r_cpu


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
        return None if self.ledger.any_device else super()._next_free()

    def _claim_turn(self, turn: int, entry: Entry | None, now: float) -> bool:
        if entry is None:
            return turn in self.ledger.returned or not self.ledger.any_device
        return entry.csd is CsdCopy.LEASED and self._stalled(entry, now)

    def _take_back(self, now: float) -> int | None:
        return None

    def _next_to_lease(self, device: str) -> int | None:
        return self.ledger.free.first() if self.ledger.free else None


class Ordered(Cpu):
    """The sampler's order with both sides at work: a device gets batches so far ahead that they are ready in time."""

    name = "ordered"
    GUESS = 4.0  # the host's speed over the device's, before either is known

    def _next_to_lease(self, device: str) -> int | None:
        r_cpu, r_csd = self.rates.host.per_s, self.rates.device(device).per_s
        ratio = r_cpu / r_csd if r_cpu and r_csd else self.GUESS
        # While the device makes its backlog and this batch, the host makes `ahead` of those that are still free.
        ahead = math.ceil(ratio * (self._backlog(device) + 1))
        free = self.ledger.free
        return free.nth(ahead) if ahead < len(free) else None


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
    """Moving towards each other: all of the host's batches, ascending, then the devices', descending.

    ``host_batches`` is the split; None calibrates: until both rates are known the host's batches are trained on as they
    come, then ``n_cpu = n * r_cpu / (r_cpu + r_csd)`` (the paper's formula), and no more for the devices than their spools
    hold, since nothing drains from them before the host's batches are done.
    """

    name = "mte"

    def __init__(self, ledger: Ledger, rates: Rates, host_batches: int | None = None) -> None:
        super().__init__(ledger, rates)
        if not ledger.closed:
            raise ValueError("mte needs the epoch's length")
        self.host_batches = None if host_batches is None else min(max(host_batches, 0), ledger.length)

    def turn(self) -> int | None:
        """Ascending up to the split, then descending from the end."""
        head = self.ledger.delivered.first_missing()
        if head < self._split():
            return head
        return self._last_undelivered()

    def _first(self, positions: RangeSet) -> int:
        first = positions.first()
        return first if first < self._split() else positions.last()

    def _last_undelivered(self) -> int | None:
        ranges = self.ledger.delivered.ranges()
        last = self.ledger.length - 1
        if ranges and ranges[-1][1] == self.ledger.length:
            last = ranges[-1][0] - 1
        return last if last >= 0 else None

    def _split(self) -> int:
        if self.host_batches is None:
            self.host_batches = self._calibrated()
        return self.ledger.length if self.host_batches is None else self.host_batches

    def _calibrated(self) -> int | None:
        ledger, n = self.ledger, self.ledger.length
        if not ledger.any_device:
            return None  # nobody to share with: the host's order it stays
        joined = [name for name, a in ledger.devices.items() if a.alive]
        known = joined and all(self.rates.device(name).known() for name in joined) and self.rates.host.known()
        if not known:
            if ledger.free or ledger.returned:
                return None
            return min((e.position for e in ledger.leased()), default=n)  # too short to calibrate: they have met
        committed = ledger.free.first() if ledger.free else n  # up to here the host has made them: no going back
        return self.split(n, self.rates, sum(ledger.devices[name].quota for name in joined), committed)

    @staticmethod
    def split(n: int, rates: Rates, quota: int, at_least: int = 0) -> int | None:
        """The host's share of ``n`` batches at these rates; None where one of them is not known."""
        r_cpu, r_csd = rates.host.per_s, rates.csd_per_s()
        if r_cpu is None or r_csd is None:
            return None
        return min(n, max(round(n * r_cpu / (r_cpu + r_csd)), n - quota, at_least))


STRATEGIES: dict[str, type[Strategy]] = {s.name: s for s in (Cpu, Csd, Mte, Wrr, Ordered)}
