"""The monitor of an epoch's threads."""

from __future__ import annotations

import pytest

from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.monitor import Monitor
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES
from ddlp.stats.report import Counts


def test_after_ctrl_c_no_thread_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, rates = Ledger(4, host_slots=3), Rates()
    monitor = Monitor(STRATEGIES["cpu"](ledger, rates), Counts(ledger), EpochHooks())

    def interrupted() -> None:
        assert monitor._waiting[monitor.training] == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt), monitor.lock:
        monitor.wait(monitor.training, 0.0)
    assert monitor._waiting[monitor.training] == 0
