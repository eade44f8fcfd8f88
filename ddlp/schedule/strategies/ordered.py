"""`Ordered`: both sides at work, and the sampler's order all the same."""

from __future__ import annotations

from ddlp.schedule.strategies.base import Order, Strategy


class Ordered(Strategy):
    """The sampler's order with both sides at work: a device gets batches so far ahead that they are ready in time."""

    name = "ordered"
    line = "both sides, in the sampler's order"
    order = Order.SAMPLER

    def free_for_device(self, device: str) -> int | None:
        free, ahead = self.ledger.free, self.made_meanwhile(device)
        if ahead < len(free):
            return free.nth(ahead)
        return super().free_for_device(device)  # the epoch's last ones: as long as it pays
