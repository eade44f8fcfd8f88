"""A device that several ranks share: the speed that each rank assumes."""

from __future__ import annotations

import pytest

from ddlp.epoch.devices import Devices
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.monitor import Monitor
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import Mte
from ddlp.stats.report import Counts


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_each_rank_reckons_with_an_equal_part(ranks):
    """n * r_cpu / (r_cpu + r_csd / R): host 1 batch/s, device 4 batches/s with 2 workers."""
    ledger, rates = Ledger(120, host_slots=4), Rates(full_batch=8)
    devices = Devices(Monitor(Mte(ledger, rates), Counts(ledger), EpochHooks()), None)  # type: ignore[arg-type]
    rates.host.add(1.0)
    devices.shared("d", ranks)
    rates.joined("d", 2)
    rates.device("d").add(0.5)
    assert rates.csd_per_s(["d"]) == pytest.approx(4 / ranks)
    assert Mte.split(120, rates, ["d"], 1000) == round(120 / (1 + 4 / ranks))
