"""`Wrr`, the paper's WRR: what is ready is trained on."""

from __future__ import annotations

from ddlp.schedule.strategies.base import Order, Strategy


class Wrr(Strategy):
    """Weighted round robin: what a device has ready, else what the host has. Follows the speeds; order not fixed.

    That is what `Strategy` does for any order. There is no plan that could be wrong.
    """

    name = "wrr"
    line = "whichever side is ready, so the order of batches changes from run to run, their content does not"
    order = Order.ANY
