"""The choice of the next source: which batch the host claims, which one a device is given, and which one is delivered next.

A strategy is a class in a file of its own and a line in `STRATEGIES`. Users' own classes live elsewhere, and are given to the
loader as they are. The rest of ddlp reads a strategy's class attributes, and never decides by its name. Strategies are pure,
like the ledger that they read: they use no torch, thread, file, socket or clock.
"""

from __future__ import annotations

from ddlp.schedule.strategies.auto import Auto
from ddlp.schedule.strategies.base import STALLED_AT_LEAST_S, Order, Strategy
from ddlp.schedule.strategies.baselines import Cpu, Csd
from ddlp.schedule.strategies.mte import Mte
from ddlp.schedule.strategies.ordered import Ordered
from ddlp.schedule.strategies.wrr import Wrr

__all__ = [
    "DATALOADER", "STALLED_AT_LEAST_S", "STRATEGIES", "Auto", "Cpu", "Csd", "Mte", "Order", "Ordered", "Strategy", "Wrr",
    "called", "strategy_class",
]  # fmt: skip

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (Cpu, Csd, Mte, Wrr, Ordered, Auto)}
DATALOADER = "dataloader"  # what reports call torch's own DataLoader, which has no strategy


def strategy_class(given: object) -> type[Strategy]:
    """Return the class for ``strategy=given``: one of ddlp's by its name, or a subclass of `Strategy` as it is.

    Raises ValueError for anything else, and for a class without a name of its own.
    """
    if isinstance(given, str) and given in STRATEGIES:
        return STRATEGIES[given]
    if not (isinstance(given, type) and issubclass(given, Strategy)):
        raise ValueError(
            f"strategy={given!r}: expected one of {', '.join(STRATEGIES)}, a subclass of {__name__}.Strategy, or None"
        )
    if not given.name or STRATEGIES.get(given.name, given) is not given:
        raise ValueError(
            f"strategy={given.__name__}: its name is {given.name!r}, and reports tell strategies apart by their names. Give "
            "the class attribute `name` a short text that no other strategy has"
        )
    return given


def called(name: str) -> type[Strategy]:
    """Return ddlp's strategy of this name in a report. For a user's own strategy, which is not known, return `Strategy`.

    torch's own DataLoader is like `Cpu`: the host alone, in the sampler's order.
    """
    return Cpu if name == DATALOADER else STRATEGIES.get(name, Strategy)
