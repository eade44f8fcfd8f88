"""Brings the host's batches to an accelerator. They wait as bytes in the host's memory until shortly before their turn.

A finished batch takes up to four times the memory, and it is the accelerator's memory. So only the next few batches are brought
there before training asks for them. If there is no room for a batch, it stays in the host's memory until its turn. If there is
no room then either, the training loop gets an error, and may ask for the batch again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

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
    """A batch that is ready in the host's memory. The first thread that needs it brings it to where it is delivered.

    Args:
        bring: brings the batch there. It may raise `NoRoom`, and may be called again then.
    """

    def __init__(self, bring: Callable[[], PreparedBatch]) -> None:
        self._bring: Callable[[], PreparedBatch] | None = bring
        self._batch: PreparedBatch | None = None
        self._lock = threading.Lock()
        self.called = False  # `call` was called, before its turn
        self.refused = False  # there was no room for it at that time

    def call(self) -> None:
        """Bring the batch before its turn, if there is room."""
        try:
            self.there()
        except NoRoom:
            self.refused = True

    def there(self) -> PreparedBatch:
        """Return the batch where it is delivered, or a failed batch if an error came up. Raises `NoRoom`."""
        with self._lock:
            if self._bring is not None:
                try:
                    self._batch = self._bring()
                except NoRoom:
                    raise
                except Exception as error:  # raised again in the training thread, in this batch's place; Ctrl-C comes there
                    self._batch = PreparedBatch.failed(error)
                self._bring = None  # frees the bytes
            assert self._batch is not None
            return self._batch


def pending_transfer(gpu_transfer: GpuTransfer, epilogue: Epilogue, batch: PreparedBatch) -> PendingTransfer:
    """Return the pending transfer of a batch of bytes: it is brought to the accelerator, and finished there."""

    def bring() -> PreparedBatch:
        there = gpu_transfer.bring(epilogue, batch.images, batch.boxes)
        return replace(batch, images=there.images, boxes=None, state=BatchState.ON_DEVICE, event=there.event)

    return PendingTransfer(bring)


class GpuPrefetcher:
    """Brings the host's ready batches to the accelerator before their turn: the next few in the order of delivery.

    Args:
        ready: the epoch's batches in memory, by position; only those that are `PendingTransfer` count.
    """

    def __init__(self, ready: Mapping[int, PreparedBatch | PendingTransfer], ledger: Ledger, strategy: Strategy) -> None:
        self._ready, self._ledger, self._strategy = ready, ledger, strategy

    def bring(self, lock: threading.RLock) -> None:
        """Bring these batches. The epoch's lock is held only for the choice.

        A worker calls it, not the training thread, which may have modes of its own (inference, a default device).
        """
        while True:
            with lock:
                transfer = self.next()
                if transfer is None:
                    return
                transfer.called = True
            transfer.call()

    def next(self) -> PendingTransfer | None:
        """Return the batch to bring now; None if none waits, or `AHEAD` are there already. Called under the lock."""
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
