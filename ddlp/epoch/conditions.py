"""The conditions on which an epoch's threads wait until the strategy has an answer for them."""

from __future__ import annotations

import threading
import time

from ddlp.epoch.gpu_prefetch import GpuPrefetcher
from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.strategies import Strategy

__all__ = ["Conditions"]


class Conditions:
    """One lock around the ledger, and a condition for each kind of thread. All methods are called under the lock.

    Args:
        ledger, strategy: the epoch's.
        chunker: how many batches a host worker claims at once.
        prefetcher: copies batches to an accelerator before their turn; None: there is no such copy.
    """

    def __init__(
        self, ledger: Ledger, strategy: Strategy, chunker: ClaimChunker, prefetcher: GpuPrefetcher | None = None
    ) -> None:
        self._ledger, self._strategy, self._chunker, self._prefetcher = ledger, strategy, chunker, prefetcher
        # Use the lock itself in `with`, never a condition: Ctrl-C in Condition.__enter__ would leave it locked for ever.
        self.lock = threading.RLock()
        self.training = threading.Condition(self.lock)
        self.workers = threading.Condition(self.lock)
        self.fetchers = threading.Condition(self.lock)
        self._waiting = {self.training: 0, self.workers: 0, self.fetchers: 0}

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until there may be an answer for threads of this kind, or the time is up."""
        self._waiting[condition] += 1
        try:
            if condition is self.training:
                self.wake(False)  # a worker may wait because there was no room for a whole run
            condition.wait(seconds)
        finally:
            self._waiting[condition] -= 1

    def wake(self, error: bool) -> None:
        """Wake one thread of each kind that can go on. Training can go on also if there is an ``error`` to raise.

        The woken thread wakes the next one by its own actions. To wake a thread for nothing costs more than to ask the strategy
        first. To wake a worker for less than a run costs more than to let it wait, unless training waits.
        """
        waiting, ledger, strategy = self._waiting, self._ledger, self._strategy
        if waiting[self.training] and (error or ledger.done or strategy.next_delivery() is not None):
            self.training.notify()
        room = 1 if waiting[self.training] else self._chunker.length
        if waiting[self.workers] and (
            (ledger.free_host_slots >= room and strategy.next_claim(time.monotonic()) is not None)
            or (self._prefetcher is not None and self._prefetcher.next() is not None)
        ):
            self.workers.notify()
        if waiting[self.fetchers] and strategy.next_fetch() is not None:
            self.fetchers.notify()

    def wake_all(self) -> None:
        """Wake all threads, at the end of the epoch."""
        for condition in self._waiting:
            condition.notify_all()
