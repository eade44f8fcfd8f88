"""An epoch of a set-up, predicted by the simulator: seconds, the stage that limits it, joules and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddlp.auto.decide import estimate, host_spare, joules, ocycle_ratio, price
from ddlp.auto.measured import OffloadPath
from ddlp.observe.play import Played, play_epoch
from ddlp.observe.setup import Setup
from ddlp.schedule.strategies import Strategy

__all__ = ["SIMULATED", "WAITS", "Epoch", "epoch_of", "predict", "simulated"]

SIMULATED = 1000  # batches at most: a longer epoch is simulated with so many
WAITS = 0.05  # part of the epoch: if training waits less than this, training limits, as `ddlp analyse` has it


@dataclass(frozen=True)
class Epoch:
    """A whole epoch.

    Attributes:
        seconds: it takes.
        waiting: the part of these in which training has no batch.
        limit: the stage that limits: "training", "host", "source", "transfer" or "spool".
        shares: the part of the batches that the host made, and each engine, by its name; the host is "".
        energy_j: None without watts.
        cost: None without prices.
    """

    seconds: float
    waiting: float
    limit: str
    shares: Mapping[str, float]
    energy_j: float | None
    cost: float | None


def simulated(setup: Setup) -> int:
    """Return how many batches of an epoch are simulated."""
    return min(setup.batches, SIMULATED)


def predict(setup: Setup, strategy: type[Strategy], paths: tuple[OffloadPath, ...] | None = None) -> Epoch:
    """Simulate an epoch by the loader's ledger and this strategy. ``paths``: the engines that take part; None: all.

    A long epoch is simulated with fewer batches (`simulated`), and its seconds are scaled in proportion.
    """
    taking = (setup.engines if paths is None else paths) if strategy.uses_device else ()
    played = play_epoch(setup.measured, taking, strategy, batches=simulated(setup), workers=setup.workers)
    return epoch_of(setup, taking, played)


def epoch_of(setup: Setup, paths: tuple[OffloadPath, ...], played: Played) -> Epoch:
    """The whole epoch of a simulated one."""
    measured, seconds = setup.measured, played.seconds * setup.batches / played.batches
    taken = sum(played.taken.values())
    waiting = played.waiting_s / played.seconds
    if waiting < WAITS:
        limit = "training"
    elif 2 * taken <= played.batches:
        limit = "host"
    else:
        limits = dict(zip((path.source for path in paths), estimate(measured, paths).source_limits, strict=True))
        limit = limits[max(played.taken, key=played.taken.__getitem__)]
    work = played.host_made + sum(played.taken[path.source] * ocycle_ratio(measured, path) for path in paths)
    busy = min(1.0, work / played.seconds / host_spare(measured)[1])
    shares = {"": 1 - min(played.batches, taken) / played.batches}
    shares |= {name: count / played.batches for name, count in played.taken.items()}
    return Epoch(
        seconds, waiting, limit, shares,
        energy_j=None if setup.power is None else joules(setup.power, paths, seconds, busy),
        cost=None if setup.prices is None else price(setup.prices, paths, seconds),
    )  # fmt: skip
