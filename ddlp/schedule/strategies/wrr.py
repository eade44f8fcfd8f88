"""`Wrr`, the paper's WRR: training takes any batch that is ready."""

from __future__ import annotations

from ddlp.schedule.strategies.base import Order, Strategy


class Wrr(Strategy):
    """Weighted round robin: a device's ready batch comes first, else the host's. It follows the speeds; the order is not fixed.

    `Strategy` itself does that for the order `Order.ANY`. There is no plan that could be wrong.
    """

    name = "wrr"
    line = "whichever side is ready, so the order of batches changes from run to run, their content does not"
    order = Order.ANY
