"""The choice of the next source: what the host takes up, what a device is given, what is delivered next."""

from ddlp.schedule.strategies.base import STALLED_AT_LEAST_S, STRATEGIES, Mte, Ordered, Strategy

__all__ = ["STALLED_AT_LEAST_S", "STRATEGIES", "Mte", "Ordered", "Strategy"]
