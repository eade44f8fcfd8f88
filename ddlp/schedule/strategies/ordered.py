"""`Ordered`: both sides prepare batches, and the order is still the sampler's."""

from __future__ import annotations

from ddlp.schedule.strategies.base import Order, Strategy


class Ordered(Strategy):
    """Both sides prepare batches in the sampler's order. A device gets batches so far ahead that they are ready in time."""

    name = "ordered"
    line = "both sides, in the sampler's order"
    order = Order.SAMPLER

    def free_for_device(self, device: str) -> int | None:
        free, lead = self.ledger.free, self.made_meanwhile(device)
        if lead < len(free):
            return free.nth(lead)
        return super().free_for_device(device)  # the epoch's last batches: a device gets them as long as that saves time
