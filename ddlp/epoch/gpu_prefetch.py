"""The host's batches on their way to an accelerator: they wait as bytes in the host's memory until their turn nears.

Finished, a batch takes up to four times the room, and it is the accelerator's. So only the next few are brought there before
training asks for them. One for which there is no room stays as it is until its turn. It is delivered when it is there and not
before: if there is no room then either, the training loop is told so, and may ask for it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ddlp.schedule.ledger import Ledger
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import BatchState, PreparedBatch
from ddlp.transfer.device_stream import NoRoom
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.gpu_transfer import GpuTransfer

__all__ = ["AHEAD", "GpuPrefetcher", "PendingTransfer", "pending_transfer"]

AHEAD = 3  # finished batches of the host on the accelerator, beside the one that training has


class PendingTransfer:
    """A batch that is ready, and brought to where it is delivered by whichever thread is first.

    Args:
        bring: does it. Raises `NoRoom`, and may be called again then.
    """

    def __init__(self, bring: Callable[[], PreparedBatch]) -> None:
        self._bring: Callable[[], PreparedBatch] | None = bring
        self._batch: PreparedBatch | None = None
        self._lock = threading.Lock()
        self.called = False  # before its turn
        self.refused = False  # there was no room for it

    def call(self) -> None:
        """Bring it before its turn, if there is room."""
        try:
            self.there()
        except NoRoom:
            self.refused = True

    def there(self) -> PreparedBatch:
        """The batch where it is delivered, or what went wrong on the way. Raises `NoRoom`."""
        with self._lock:
            if self._bring is not None:
                try:
                    self._batch = self._bring()
                except NoRoom:
                    raise
                except Exception as error:  # raised again in the training thread, in this batch's place; Ctrl-C is there
                    self._batch = PreparedBatch.failed(error)
                self._bring = None  # the bytes may go
            assert self._batch is not None
            return self._batch


def pending_transfer(gpu_transfer: GpuTransfer, epilogue: Epilogue, batch: PreparedBatch) -> PendingTransfer:
    """A batch of bytes that is brought to the accelerator, and finished there, when it is called for."""

    def bring() -> PreparedBatch:
        there = gpu_transfer.bring(epilogue, batch.images, batch.boxes)
        return PreparedBatch(there.images, None, BatchState.ON_DEVICE, there.event)

    return PendingTransfer(bring)


class GpuPrefetcher:
    """Which of the host's ready batches are brought before their turn: the next few in the order of delivery.

    Args:
        ready: the epoch's batches in memory, by position; those that are `PendingTransfer` count.
    """

    def __init__(self, ready: Mapping[int, PreparedBatch | PendingTransfer], ledger: Ledger, strategy: Strategy) -> None:
        self._ready, self._ledger, self._strategy = ready, ledger, strategy

    def bring(self, lock: threading.RLock) -> None:
        """Bring them, with the epoch's lock held for the choice alone.

        By a worker: the training thread's modes (inference, a default device) are its own.
        """
        while True:
            with lock:
                one = self.next()
                if one is None:
                    return
                one.called = True
            one.call()

    def next(self) -> PendingTransfer | None:
        """The one to bring now; None where there is none, or where as many as may be there are. Under the lock."""
        room, waiting = AHEAD, RangeSet()
        for position in self._ledger.ready_host:
            batch = self._ready.get(position)
            if isinstance(batch, PendingTransfer):
                if not batch.called:
                    waiting.add(position)
                elif not batch.refused:
                    room -= 1
        if room < 1 or not waiting:
            return None
        first = self._ready[self._strategy.first(waiting)]
        assert isinstance(first, PendingTransfer)
        return first
