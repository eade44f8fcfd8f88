"""A device that several ranks share: the speed that each rank assumes, and that one rank's calibration serves all."""

from __future__ import annotations

import pytest

from ddlp.epoch.devices import Devices
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.monitor import Monitor
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import Mte
from ddlp.stats.report import Counts

BATCH = 8


class Listener:
    """An epoch's part of the devices that gets messages, without threads."""

    def __init__(self, batches: int) -> None:
        self.ledger = Ledger(batches, host_slots=4)
        self.rates = Rates(full_batch=BATCH)
        self.strategy = Mte(self.ledger, self.rates)
        monitor = Monitor(self.strategy, Counts(self.ledger), EpochHooks())
        monitor.reactions = (self._count,)
        self.devices = Devices(monitor, None)  # type: ignore[arg-type]  # the messages here need no resources
        self.acted = 0

    def _count(self) -> None:
        self.acted += 1


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_each_rank_reckons_with_an_equal_part(ranks):
    """n * r_cpu / (r_cpu + r_csd / R): host 1 batch/s, device 4 batches/s with 2 workers."""
    one = Listener(120)
    one.rates.host.add(1.0)
    one.devices.shared("d", ranks)
    one.rates.joined("d", 2)
    one.rates.device("d").add(0.5)
    assert one.rates.csd_per_s(["d"]) == pytest.approx(4 / ranks)
    assert Mte.split(120, one.rates, ["d"], 1000) == round(120 / (1 + 4 / ranks))


def test_what_another_rank_has_measured_counts():
    """Another rank's measurements count like the rank's own. So the split is known before it has a batch of its own."""
    one, own = Listener(100), Listener(100)
    for listener in (one, own):
        listener.ledger.expect("d")
        listener.ledger.join("d", quota=1000, window=2)
        listener.devices.shared("d", 2)
        for _ in range(3):
            listener.rates.host.add(1.0)
        assert listener.strategy.turn() == 0 and listener.strategy.host_batches is None
    one.devices.measured("d", [(BATCH, 1.0), (BATCH // 2, 0.5), (BATCH, 1.0)])
    for _ in range(3):
        own.rates.device("d").add(1.0)
    assert one.acted == 1
    assert one.rates.device("d") == own.rates.device("d")
    assert one.strategy.turn() == own.strategy.turn()
    assert one.strategy.host_batches == own.strategy.host_batches == round(100 / 1.5)
