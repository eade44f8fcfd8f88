"""`Mte`, the paper's MTE: the host's batches come first, then the device's, from the end."""

from __future__ import annotations

from collections.abc import Collection

from ddlp.schedule.ledger import Ledger
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies.base import Order, Strategy


class Mte(Strategy):
    """Moving towards each other: the first batches come ascending, all from the host; then the rest come descending.

    ``host_batches`` is the split s. None calibrates: until both rates are known, training takes the host's batches as they
    come; then `split` chooses s. Both may be known before training's first step is over. Then s is provisional: once it is
    known how long a step takes, s becomes smaller if that asks for it. Batches that the host has begun stay below it.

    Neither side ever rests: while training goes down from the end, the host makes batches of that part too. So the devices
    leave out some of these batches, evenly spread. When training comes to such a batch, the host has made it, and its slot
    becomes free for the next one.
    """

    name = "mte"
    line = "the host's batches first, ascending, then the device's, descending"
    order = Order.FROM_BOTH_ENDS
    needs_length = True
    takes_ratio = True
    rank_after_rank = True  # as in the paper: one rank's directory is filled before the next one's
    # Too small a split costs nothing, too large a split costs time, and the rates are known only within 5 %.
    EARLY, SURE = 0.9, 0.95

    def __init__(self, ledger: Ledger, rates: Rates, host_batches: int | None = None) -> None:
        super().__init__(ledger, rates)
        self.host_batches = None if host_batches is None else min(max(host_batches, 0), ledger.length)
        self._provisional = host_batches is None
        self._frontier = ledger.length - 1  # the batches above this one were leased, or left to the host
        self._due = 0.0  # the host's part of the batches so far, minus the batches that were left to it

    @classmethod
    def make(cls, ledger: Ledger, rates: Rates, ratio: float | None = None) -> Mte:
        """Make the strategy of an epoch. ``ratio``: the host's share of the epoch's batches; None calibrates."""
        return cls(ledger, rates, None if ratio is None else round(ledger.length * ratio))

    def turn(self) -> int | None:
        """Return the next batch: ascending up to the split, then descending from the end."""
        head = self.ledger.delivered.first_missing()
        if head < self._split():
            return head
        last = self.ledger.delivered.last_missing(self.ledger.length)
        return last if last >= 0 else None

    def first(self, positions: RangeSet) -> int:
        first = positions.first()
        return first if first < self._split() else positions.last()

    def _split(self) -> int:
        steps_known = self.rates.training.count >= Rates.STEPS
        if self._provisional and (self.host_batches is None or steps_known) and (calibrated := self._calibrated()) is not None:
            self.host_batches = calibrated if self.host_batches is None else min(calibrated, self.host_batches)
            self._provisional = not steps_known
        return self.ledger.length if self.host_batches is None else self.host_batches

    def _calibrated(self) -> int | None:
        ledger, n = self.ledger, self.ledger.length
        if not ledger.devices_there:
            return None  # there is no device to share with: the order stays ascending
        joined = [name for name, a in ledger.devices.items() if a.at_work]
        known = joined and all(self.rates.device(name).known() for name in joined) and self.rates.host.known()
        if not known:
            if ledger.free or ledger.returned:
                return None
            return n  # too short to calibrate: both sides have met, and training must not skip batches that the host holds
        committed = ledger.free.first() if ledger.free else n  # the host has claimed all batches below: they come ascending
        begun = ledger.delivered.first_missing()
        quota = sum(ledger.devices[name].quota for name in joined)
        share = self.split(n - len(ledger.delivered), self.rates, ledger.devices_there, quota)
        assert share is not None  # both rates are known
        return max(begun + share, committed)

    @classmethod
    def split(cls, n: int, rates: Rates, devices: Collection[str], quota: int) -> int | None:
        """Return how many of ``n`` batches are trained on ascending, at these rates; None if one of the rates is not known.

        It is the paper's n * r_cpu / (r_cpu + r_csd) at most. The host has made its s batches after s / r_cpu, and training on
        the others then takes (n - s) * t, with t for a step. Both stay within T = n / (r_cpu + r_csd) if
        s <= (T - n * t) / (1 / r_cpu - t). If training is the limit (T < n * t < n / r_cpu), it must not wait for the
        host at all: s = 0. The batches that the devices make in the first part must fit into their spools, since nothing
        leaves the spools before the second part: s / r_cpu <= quota / r_csd. They come over their links in the second part. One
        after another they take the part ``coming`` of T for that: s / r_cpu <= T - coming * T.

        If R ranks share the devices, n, r_cpu and the quota are this rank's own, and r_csd is 1 / R of the devices' rate
        (`Rate.per_s`). Ranks train in step, so each gets an equal part, no matter which rank's directory is filled first.
        """
        r_cpu, r_csd = rates.host.per_s, rates.arriving_per_s(devices)
        if r_cpu is None or r_csd is None:
            return None
        coming = sum((rates.arriving_per_s([name]) or 0.0) * rates.link_s(name) for name in devices)
        paper = n * r_cpu / (r_cpu + r_csd)
        share = min(paper, cls.EARLY * quota * r_cpu / r_csd)
        if coming:
            share = min(share, paper * cls.EARLY * max(0.0, cls.SURE - coming))
        step_s = rates.training.seconds  # 0: not known yet
        if 0.0 < step_s < 1.0 / r_cpu:
            spare_s = max(0.0, cls.SURE * n / (r_cpu + r_csd) - n * step_s)
            share = min(share, cls.EARLY * spare_s / (1.0 / r_cpu - step_s))
        return round(share)

    def free_for_device(self, device: str) -> int | None:
        free, split = self.ledger.free, self._split()
        if not free or self.host_batches is None:
            return super().free_for_device(device)
        lead = self.made_meanwhile(device)
        while (position := free.at_most(self._frontier)) is not None and position >= split:
            self._frontier = position - 1
            before = len(free) - (position + 1 - split)  # free batches that are delivered earlier
            self._due += self._hosts_part(before, position + 1 - split)
            if self._due < 1.0 and before >= lead:
                return position
            self._due = max(0.0, self._due - 1.0)
        if not self.worth_leasing(device):
            return None
        last = free.at_least(split)  # in the order of delivery
        return free.last() if last is None else last

    def _hosts_part(self, before: int, after: int) -> float:
        """Return the part (0 to 1) of these ``after`` batches that the host should make, beside the ``before`` earlier ones."""
        r_cpu, r_csd = self.rates.host.per_s, self.rates.arriving_per_s(self.ledger.devices_there)
        if r_cpu is None or r_csd is None:
            return 0.0
        backlog = sum(self._backlog(name) for name in self.ledger.devices)
        hosts = (before + after + backlog) * r_cpu / (r_cpu + r_csd)
        return min(max((hosts - before) / max(1, after), 0.0), 1.0)
