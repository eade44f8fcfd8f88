"""Condition variables of an epoch's threads."""

from __future__ import annotations

import pytest

from ddlp.epoch.conditions import Conditions
from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES


def test_after_ctrl_c_no_thread_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, rates = Ledger(4, host_slots=3), Rates()
    strategy = STRATEGIES["cpu"](ledger, rates)
    conditions = Conditions(ledger, strategy, ClaimChunker(ledger, strategy, rates.host))

    def interrupted(error: bool) -> None:
        assert conditions._waiting[conditions.training] == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(conditions, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt), conditions.lock:
        conditions.wait(conditions.training, 0.0)
    assert conditions._waiting[conditions.training] == 0
