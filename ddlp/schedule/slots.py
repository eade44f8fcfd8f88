"""How many batches an epoch keeps in memory, and fetches at a time. The loader and the simulator have the same numbers."""

from __future__ import annotations

__all__ = ["FETCHERS", "FETCH_SLOTS", "host_slots"]

FETCHERS = 2  # while one batch comes over the network or waits for a slow file system, another one is finished
FETCH_SLOTS = 3  # batches of devices in this process's memory


def host_slots(workers: int, prefetch_factor: int, devices: bool) -> int:
    """Return how many batches the host may hold: as many as DataLoader's workers prefetch, and one more in work.

    With devices, the devices' batches in memory are taken from this number. In any case each worker may have one batch in work,
    and at least one more may be ready.
    """
    slots = max(2, workers * prefetch_factor + 1)
    return min(slots, max(workers + 2, slots - FETCH_SLOTS)) if devices else slots
