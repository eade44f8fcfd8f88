"""How many batches a worker of the host claims at once."""

from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES


def test_each_claim_is_chosen_by_the_time_that_it_is():
    ledger, rates = Ledger(8, host_slots=4), Rates()
    strategy = STRATEGIES["cpu"](ledger, rates)
    times, choose = [], strategy.next_claim

    def next_claim(now):
        times.append(now)
        return choose(now)

    strategy.next_claim = next_claim
    chunker = ClaimChunker(ledger, strategy, rates.host)
    assert [position for position, _ in chunker.claim(7.5)] == [0]
    assert times == [7.5]
