"""Epochs by the DDLP paper's own event rules, its Algorithms 1 (MTE) and 2 (WRR)."""

from __future__ import annotations

import math

__all__ = ["paper_epoch"]


def paper_epoch(
    n: int, host_s: float, device_s: float, csd_train_s: float, host_batches: int | None = None, *, literal: bool = False
) -> tuple[float, int, int]:
    """An epoch by the paper's own event rules; returns (seconds, batches trained, of them from the device).

    ``host_s`` is the time to prepare a CPU batch and train on it, ``csd_train_s`` to fetch a device batch and train on it.
    The device starts at 0 and never blocks; the host is serial and polls only before a step: if a device's batch is
    ready it takes one, and then always a CPU batch (WRR, Algorithm 2). With ``host_batches`` it is MTE (Algorithm 1).
    ``literal`` keeps Algorithm 2's fault: it compares the total with ``n`` for equality, and only after a CPU batch. An odd
    device batch at the end then takes the total past ``n`` unnoticed.
    """
    now, total, used = 0.0, 0, 0
    if host_batches is not None:
        now = host_batches * host_s
        for k in range(1, n - host_batches + 1):
            now = max(now, k * device_s) + csd_train_s
        return now, n, n - host_batches
    while True:
        if math.floor(now / device_s + 1e-9) > used:
            used += 1
            total += 1
            now += csd_train_s
            if not literal and total == n:
                return now, total, used
        total += 1
        now += host_s
        if total == n or total - used == n:  # in the second case the host's own sampler has run out
            return now, total, used
