"""The monitor of an epoch: the state that its threads share, one lock around it, and a condition for each kind of thread.

Each thread asks the strategy one question, and acts on the answer outside the lock. The training thread asks `next_delivery`,
the host's workers ask `next_claim`, and the fetchers ask `next_fetch`. Leases are given whenever something has changed. No
thread polls: a waiting thread is woken when there is an answer for it. The training thread and the workers also look once in
`Monitor.LOOK_UP_S` for events that only the clock can show (a lease has stalled, a fetch hangs).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ddlp.epoch.gpu_prefetch import GpuPrefetcher, PendingTransfer
from ddlp.epoch.hooks import EpochHooks
from ddlp.epoch.user_messages import UserMessages
from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import PreparedBatch
from ddlp.stats.report import Counts

__all__ = ["Monitor"]


class Monitor:
    """The state that the parts of an epoch share. They use it, and call all methods, under its lock.

    Args:
        strategy: chooses the next source. Its ledger records who holds which batch, its rates how fast each side is.
        counts: for the report.
        hooks: told what the threads do.
        prefetches: batches are copied to an accelerator before their turn.

    Attributes:
        pid: the process that has the threads.
        messages: to the user.
        ready: the batches in memory that are verified and not delivered, by position.
        chunks: makes the claims of the host's workers.
        prefetcher: copies batches to an accelerator; None: there is no such copy.
        reactions: called after each event, in this order, before threads are woken.
        closing: the epoch is over, or about to be closed.
        error: raised by the training thread.
    """

    LOOK_UP_S = 1.0

    def __init__(self, strategy: Strategy, counts: Counts, hooks: EpochHooks, prefetches: bool = False) -> None:
        self.strategy, self.counts, self.hooks = strategy, counts, hooks
        self.ledger, self.rates = strategy.ledger, strategy.rates
        self.pid = os.getpid()
        self.messages = UserMessages()
        self.ready: dict[int, PreparedBatch | PendingTransfer] = {}
        self.chunks = ClaimChunker(self.ledger, strategy, self.rates.host)
        self.prefetcher = GpuPrefetcher(self.ready, self.ledger, strategy) if prefetches else None
        self.reactions: tuple[Callable[[], None], ...] = ()
        self.closing = False
        self.error: BaseException | None = None
        # Use the lock itself in `with`, never a condition: Ctrl-C in Condition.__enter__ would leave it locked for ever.
        self.lock = threading.RLock()
        self.training = threading.Condition(self.lock)
        self.workers = threading.Condition(self.lock)
        self.fetchers = threading.Condition(self.lock)
        self._waiting = {self.training: 0, self.workers: 0, self.fetchers: 0}

    @property
    def full_batch(self) -> int:
        """The number of samples in a full batch."""
        return max(1, self.rates.full_batch)

    def act(self) -> None:
        """Act after every event: let the parts react, and wake threads."""
        for react in self.reactions:
            react()
        self.wake()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until there may be an answer for threads of this kind, or the time is up."""
        self._waiting[condition] += 1
        try:
            if condition is self.training:
                self.wake()  # a worker may wait because there was no room for a whole run
            condition.wait(seconds)
        finally:
            self._waiting[condition] -= 1

    def wake(self) -> None:
        """Wake one thread of each kind that can go on. Training can go on also if there is an error to raise.

        The woken thread wakes the next one by its own actions. To wake a thread for nothing costs more than to ask the strategy
        first. To wake a worker for less than a run costs more than to let it wait, unless training waits.
        """
        waiting, ledger, strategy = self._waiting, self.ledger, self.strategy
        if waiting[self.training] and (self.error is not None or ledger.done or strategy.next_delivery() is not None):
            self.training.notify()
        room = 1 if waiting[self.training] else self.chunks.length
        if waiting[self.workers] and (
            (ledger.free_host_slots >= room and strategy.next_claim(time.monotonic()) is not None)
            or (self.prefetcher is not None and self.prefetcher.next() is not None)
        ):
            self.workers.notify()
        if waiting[self.fetchers] and strategy.next_fetch() is not None:
            self.fetchers.notify()

    def wake_all(self) -> None:
        """Wake all threads, at the end of the epoch."""
        for condition in self._waiting:
            condition.notify_all()
