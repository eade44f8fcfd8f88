"""The host's workers: threads that claim batches, prepare them, and hand them in."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from torch.utils.data import _utils

from ddlp.epoch.gpu_prefetch import PendingTransfer, pending_transfer
from ddlp.epoch.monitor import Monitor
from ddlp.sources.base import BatchState, HostSource, PreparedBatch, Resources, Unwanted
from ddlp.stats.thread_cpu import thread_cpu_s, thread_queued_s

__all__ = ["HostWorkers"]


class HostWorkers:
    """The part of an epoch that makes the host's batches.

    Args:
        monitor: the state that the epoch's parts share.
        resources: what lives in the epoch.
        source: prepares the batches.
    """

    def __init__(self, monitor: Monitor, resources: Resources, source: HostSource) -> None:
        self._monitor, self._resources, self._source = monitor, resources, source

    def run(self, number: int) -> None:
        """Claim some batches, prepare each, and hand them in, until the epoch is over. Each worker's thread calls this."""
        monitor = self._monitor
        cpu = thread_cpu_s()
        chunk: list[tuple[int, int]] = []
        while chunk := chunk or self._claim(number):
            batches = [self._prepare(number, position, claim) for position, claim in chunk]
            with monitor.lock:
                cpu, before = monitor.counts.cpu(cpu), cpu
                self._hand_in(chunk, batches, cpu - before)
                chunk = []
                if not monitor.closing and monitor.prefetcher is None:
                    chunk = monitor.chunks.claim(time.monotonic())  # while the lock is held anyway
                monitor.act()
            batches.clear()  # an error's traceback keeps the loader: drop it before this thread waits
        with monitor.lock:
            monitor.counts.queued_s += thread_queued_s()

    def _claim(self, number: int) -> list[tuple[int, int]]:
        """Wait for batches to prepare. Returns (position, claim) of each; an empty list if the epoch is over."""
        monitor, prefetcher = self._monitor, self._monitor.prefetcher
        monitor.hooks.rest_began("host", number)
        chunk: list[tuple[int, int]] = []
        while True:
            if prefetcher is not None:
                prefetcher.bring(monitor.lock)
            with monitor.lock:
                if monitor.closing:
                    break
                if chunk := monitor.chunks.claim(time.monotonic()):
                    monitor.act()
                    break
                if prefetcher is None or prefetcher.next() is None:
                    monitor.wait(monitor.workers, monitor.LOOK_UP_S)
        monitor.hooks.rest_ended("host", number, not chunk)
        return chunk

    def _prepare(self, worker: int, position: int, claim: int) -> tuple[PreparedBatch | PendingTransfer | None, float]:
        """Prepare a batch. Returns it (None: not wanted any more), and the seconds that it took (0: not made)."""
        began, outcome = time.monotonic(), "failed"
        self._monitor.hooks.host_batch_began(worker, position)
        try:
            batch = self._source.prepare(position, partial(self._wanted, claim))
            ready = self.finish(position, batch)
            outcome = "made"
            return ready, time.monotonic() - began
        except Unwanted:
            outcome = "dropped"
            return None, 0.0
        except BaseException as error:  # raised again in the training thread, in this batch's place
            return PreparedBatch.failed(error), 0.0
        finally:
            self._monitor.hooks.host_batch_ended(worker, position, outcome)

    def finish(self, position: int, batch: PreparedBatch) -> PreparedBatch | PendingTransfer:
        """Make a batch ready for the training thread. The thread that has prepared or fetched it calls this."""
        resources = self._resources
        if batch.state in (BatchState.ON_DEVICE, BatchState.FAILED):
            return batch
        if resources.own_steps is not None:
            return resources.own_steps.finish(resources, position, batch)
        if resources.gpu_transfer is not None:  # it is finished on the GPU, shortly before its turn
            return pending_transfer(resources.gpu_transfer, resources.epoch.portable.epilogue, batch)
        if resources.ends_on_cpu and batch.state is BatchState.BYTES:
            images = resources.epoch.portable.epilogue(batch.images, batch.boxes, pool=resources.pool)
            batch = replace(batch, images=images, boxes=None, state=BatchState.TENSORS)
        if resources.epoch.pin is not None:
            # To torch's memory: torch knows of the copies that training starts from there, and does not use the memory again
            # before they are done. From the pool's page-locked memory only ddlp starts copies.
            batch = replace(batch, images=_utils.pin_memory.pin_memory(batch.images, resources.epoch.pin))
        return batch

    def _hand_in(
        self, chunk: list[tuple[int, int]], batches: list[tuple[PreparedBatch | PendingTransfer | None, float]], cpu_s: float
    ) -> None:
        """Hand in batches that a worker has prepared in ``cpu_s`` processor seconds. Called under the lock.

        It is a method of its own so that no local name keeps a batch afterwards.
        """
        monitor, size, full_batch = self._monitor, self._resources.plan.size, self._monitor.full_batch
        for (position, claim), (batch, busy_s) in zip(chunk, batches, strict=True):
            if busy_s:
                monitor.rates.host.add(busy_s, size(position) / full_batch)
            if monitor.ledger.made(claim) and batch is not None:
                monitor.ready[position] = batch
        if all(busy_s for _, busy_s in batches):
            monitor.rates.host_cpu.add(cpu_s, sum(size(position) / full_batch for position, _ in chunk))

    def _wanted(self, claim: int) -> bool:
        """Whether a claimed batch is wanted still. It is asked before each sample, so without the lock; `made` decides."""
        return not self._monitor.closing and self._monitor.ledger.wanted(claim)
