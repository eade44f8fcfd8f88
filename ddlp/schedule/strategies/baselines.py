"""`Cpu` and `Csd`: one side alone, in the sampler's order. The other strategies are measured against these."""

from __future__ import annotations

from ddlp.schedule.states import CsdCopy, Entry
from ddlp.schedule.strategies.base import Order, Strategy


class Cpu(Strategy):
    """The host alone, in the sampler's order. This is the baseline, and the drop-in without a device."""

    name = "cpu"
    line = "this host alone, in the sampler's order"
    order = Order.SAMPLER
    uses_device = False

    def free_for_device(self, device: str) -> int | None:
        return None


class Csd(Strategy):
    """The devices alone, in the sampler's order: the other baseline. The host only makes the batches that they can't."""

    name = "csd"
    line = "the device alone, in the sampler's order"
    order = Order.SAMPLER
    needs_device = True

    def free_for_host(self) -> int | None:
        return None if self.ledger.devices_there else super().free_for_host()

    def _claim_turn(self, turn: int, entry: Entry | None, now: float) -> bool:
        if entry is None:
            return turn in self.ledger.returned or not self.ledger.devices_there
        return entry.csd is CsdCopy.LEASED and self._stalled(entry, now)

    def _take_back(self, now: float) -> int | None:
        return None

    def free_for_device(self, device: str) -> int | None:
        return self.ledger.free.first() if self.ledger.free else None
