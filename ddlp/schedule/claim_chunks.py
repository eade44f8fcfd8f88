"""How many batches a worker of the host claims at a time: one, or several short ones.

Between two batches a worker takes the lock and hands in its batch, and training wakes up. If both do that at the same time,
they wait for each other and switch, which takes 20 to 100 us a batch. Short batches take less than that themselves. So they are
claimed and handed in together, in a run that takes about `RUN_S`.
"""

from __future__ import annotations

from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rate
from ddlp.schedule.strategies import Strategy

__all__ = ["ClaimChunker"]

RUN_S = 0.002  # a ready batch waits for the others of its run no longer than this
LONGEST = 16  # batches


class ClaimChunker:
    """Makes the claims of an epoch's host workers. It is pure, like the ledger and the strategy that it asks.

    While runs are longer than one batch, the host may hold two runs for each worker beyond its own slots: one in work, and one
    that training takes. The workers make a run in `RUN_S`, so it takes little memory.

    Args:
        host: the host's rate, which gives the time of a batch.
        run_s: seconds that a run may take.
    """

    def __init__(self, ledger: Ledger, strategy: Strategy, host: Rate, run_s: float = RUN_S) -> None:
        self._ledger, self._strategy, self._host, self._run_s = ledger, strategy, host, run_s
        self._slots = ledger.host_slots
        self.length = 1  #: batches of a run at this moment

    def claim(self, now: float) -> list[tuple[int, int]]:
        """Claim the batches that one worker should make now. Returns (position, claim) of each; [] if there is none."""
        self.length = self._fitting()
        self._ledger.resize_host_slots(self._slots + 2 * (self.length - 1) * self._host.parallel)
        run: list[tuple[int, int]] = []
        while len(run) < self.length and (position := self._strategy.next_claim(now)) is not None:
            run.append((position, self._ledger.claim(position)))
        return run

    def _fitting(self) -> int:
        """Return how many batches fit into `run_s`; fewer towards the end, so that all workers get some."""
        host = self._host
        if not host.count:
            return 1
        return max(1, min(LONGEST, int(self._run_s / host.seconds), len(self._ledger.free) // (2 * host.parallel)))
