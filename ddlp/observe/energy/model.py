"""The paper's model of power, for what no meter measures; price and emissions of energy."""

from __future__ import annotations

from dataclasses import dataclass

from ddlp.schedule.strategies import called

__all__ = ["CSD", "HOST", "PaperModel", "Tariff"]

HOST, CSD = "cpu", "csd"  # the two parts that the paper counts
_J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class PaperModel:
    """Watts for the whole time of an epoch, with or without work: the paper's Table VIII is its Table VI times these.

    The paper measured 5 W with one process and 85 W with 17, 5 W a process both times, and 0.25 W on its CSD. With the CSD
    alone it counts nothing of the host.
    """

    watts_per_process: float = 5.0
    watts_csd: float = 0.25

    def watts(self, strategy: str | None, workers: int, *, ranks: int = 1, devices: int = 1) -> dict[str, float]:
        """Watts of each part while this strategy runs with so many worker processes beside each rank's training one.

        ``strategy`` None: no CSD is known, so only the host counts.
        """
        kind = called("cpu" if strategy is None else strategy)
        host = {} if kind.needs_device else {HOST: self.watts_per_process * ranks * (1 + workers)}
        return {**host, CSD: self.watts_csd * devices} if kind.uses_device else host


@dataclass(frozen=True)
class Tariff:
    """What a kilowatt hour costs and emits.

    The price is the paper's, 0.095 USD. The emissions are the world's electricity of 2023 (Ember, Global Electricity Review
    2024): 480 g. Both depend on where and when you compute: set your own.
    """

    price_per_kwh: float = 0.095
    currency: str = "USD"
    co2_g_per_kwh: float = 480.0

    def cost(self, joules: float) -> float:
        """In ``currency``."""
        return joules / _J_PER_KWH * self.price_per_kwh

    def co2_g(self, joules: float) -> float:
        """Grams of CO2 equivalents."""
        return joules / _J_PER_KWH * self.co2_g_per_kwh
