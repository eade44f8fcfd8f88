"""`DDLPLoader.live`: a loader's numbers at this moment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from torch.utils.data import DataLoader

from csd_engine.machine.computer import cpus
from ddlp.begin.auto_workers import LoaderWorkers
from ddlp.begin.loader_parts import LoaderParts
from ddlp.begin.progress import Memory
from ddlp.epoch.iterator import EpochMemory
from ddlp.process.ranks import here
from ddlp.stats.live import Live, Sums, counted, length

__all__ = ["live", "numbers_until_now", "with_loader"]

_cpus = functools.cache(cpus)  # the control groups' files take too long for each call of `live`


def live(loader: DataLoader, parts: LoaderParts, last: Memory | None) -> Live:
    """Return the numbers of a loader and its last epoch."""
    if isinstance(last, EpochMemory):
        return last.executor.live(parts.life)
    return counted(parts.life.last, parts.life.total(), length(loader))


def numbers_until_now(loader: DataLoader, parts: LoaderParts, last: Memory | None) -> Callable[[], Live] | None:
    """Return what gives the numbers that a loader has now, for later; None before its first epoch.

    They are put together when they are asked for: that takes longer than to begin an epoch of a small data set.
    """
    if last is None:
        return None
    if isinstance(last, EpochMemory):
        numbers = live(loader, parts, last)
        return lambda: numbers
    return functools.partial(counted, parts.life.last, Sums(), length(loader))


def with_loader(
    now: Live, before: Callable[[], Live] | None, workers: int, auto: LoaderWorkers | None, parts: LoaderParts
) -> Live:
    """Return the numbers with what only the loader knows.

    Args:
        now: the epoch's.
        before: gives the previous epoch's, which are shown while no batch of this one was asked for.
        workers: the loader's number of workers.
        auto: measures it, with ``num_workers="auto"``.
        parts: what the loader keeps.
    """
    if not (before is None or now.report.samples or now.waiting_now_s):
        now = replace(before(), total=now.total)
    ranks = here()
    processors = max(1, _cpus() // (1 if ranks is None else ranks.local_ranks))
    notes = now.report.notes if auto is None else (*now.report.notes, auto.line)
    report = replace(now.report, workers=workers, processors=processors, ceiling=parts.life.ceiling, notes=notes)
    cache = parts.cache if parts.kept is None else parts.kept
    if cache is not None:
        report = replace(report, cache=cache.counts, notes=(*notes, f"cache: {cache.line}"))
    return replace(now, report=report)
