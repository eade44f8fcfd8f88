"""Where an epoch's threads wait."""

from __future__ import annotations

import pytest

from ddlp.epoch.conditions import Waiting
from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES


def test_ctrl_c_leaves_nobody_that_seems_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, rates = Ledger(4, host_slots=3), Rates()
    strategy = STRATEGIES["cpu"](ledger, rates)
    waiting = Waiting(ledger, strategy, ClaimChunker(ledger, strategy, rates.host))

    def interrupted(error: bool) -> None:
        assert waiting._resting[waiting.training] == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt), waiting.lock:
        waiting.rest(waiting.training, 0.0)
    assert waiting._resting[waiting.training] == 0
