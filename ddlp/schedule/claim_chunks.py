"""How many batches a worker of the host takes up at a time: one, or several short ones.

Between two batches a worker takes the lock and hands in what it made, and training wakes up: where both are at it at the same
time, they wait for each other and switch, 20 to 100 us a batch. Short batches take less than that themselves. So they are
claimed and handed in together, as many as take `RUN_S`.
"""

from __future__ import annotations

from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rate
from ddlp.schedule.strategies import Strategy

__all__ = ["ClaimChunker"]

RUN_S = 0.002  # a batch that is ready waits for the others of its run no longer than this
LONGEST = 16  # batches


class ClaimChunker:
    """The claims of an epoch's host workers. Pure, like the ledger and the strategy that it asks.

    While runs are longer than one batch, the host may hold two of them for each worker beyond its own slots: one in work, and
    one that training takes. They are what the workers make in `RUN_S`, so little memory.

    Args:
        host: the host's rate, which a batch's time comes from.
        run_s: seconds that a run may take.
    """

    def __init__(self, ledger: Ledger, strategy: Strategy, host: Rate, run_s: float = RUN_S) -> None:
        self._ledger, self._strategy, self._host, self._run_s = ledger, strategy, host, run_s
        self._slots = ledger.host_slots
        self.length = 1  #: batches of a run at this moment

    def claim(self, now: float) -> list[tuple[int, int]]:
        """Claim what one worker should make now. Returns (position, claim) of each batch, of none where there is nothing."""
        self.length = self._fitting()
        self._resize(self._slots + 2 * (self.length - 1) * self._host.parallel)
        run: list[tuple[int, int]] = []
        while len(run) < self.length and (position := self._strategy.next_claim(now)) is not None:
            run.append((position, self._ledger.claim(position)))
        return run

    def _fitting(self) -> int:
        """As many as take `run_s`; fewer towards the end, where other workers would have none."""
        host = self._host
        if not host.count:
            return 1
        return max(1, min(LONGEST, int(self._run_s / host.seconds), len(self._ledger.free) // (2 * host.parallel)))

    def _resize(self, slots: int) -> None:
        """Slots are taken away as they come free, but for one: the strategies keep it for the batch whose turn it is."""
        ledger = self._ledger
        ledger.host_slots = max(slots, ledger.host_slots - max(0, ledger.free_host_slots - 1))
