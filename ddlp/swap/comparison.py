"""How fast torch's own workers prepare a loader's samples, and how fast ddlp does, one after the other on this host."""

from __future__ import annotations

import functools
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from ddlp import decode
from ddlp.loader import DDLPLoader
from ddlp.sampling.keyed_generators import keyed_globals
from ddlp.stats.live import length

__all__ = ["BATCHES", "Comparison", "compare"]

BATCHES = 20
LIMIT_S = 15.0  # of each side, workers' start included


@dataclass(frozen=True)
class Comparison:
    """Samples a second of each side alone, without training.

    Attributes:
        batches: how many were measured, on the side with fewer.
        wanted: how many there should have been: an epoch's, if it has fewer than `BATCHES`.
    """

    torchs_per_s: float
    ours_per_s: float
    batches: int
    wanted: int = BATCHES

    def __str__(self) -> str:
        count = f"{self.batches} batch{'es' * (self.batches != 1)}"
        how = f"measured on {count}" if self.batches >= self.wanted else f"an estimate from {count}"
        return (
            f"this host prepares {self.ours_per_s:,.0f} samples/s, with DataLoader {self.torchs_per_s:,.0f}: "
            f"{self.ours_per_s / self.torchs_per_s:.2g} times ({how})"
        )


def compare(loader: DDLPLoader) -> Comparison | str:
    """Time both sides on samples drawn at random. Return the reason if that fails. The script's generators stay as they are.

    Each side first prepares a batch for each worker, so that its workers are busy when the clock starts.
    """
    workers = max(1, loader.num_workers)
    batches = min(-(-BATCHES // workers) * workers, length(loader) or BATCHES)  # a whole number for each worker
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
    options: dict[str, Any] = {
        "batch_size": None if loader.batch_sampler is None else size,
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "prefetch_factor": loader.prefetch_factor,
        "collate_fn": loader.collate_fn,
    }
    torchs_options = {
        "timeout": LIMIT_S if loader.num_workers else 0,  # torch takes none without workers
        "worker_init_fn": functools.partial(_begin_worker, loader.worker_init_fn),
        "multiprocessing_context": loader.multiprocessing_context,
    }
    torchs = object.__new__(DataLoader)
    try:
        with warnings.catch_warnings(), keyed_globals(0), torch.device("cpu"):
            warnings.simplefilter("ignore")  # the script's own loader has given the same ones
            drawn = torch.randint(len(loader.dataset), (2, (2 * workers + batches) * size)).tolist()  # type: ignore[arg-type]
            DataLoader.__init__(torchs, Subset(loader.dataset, drawn[0]), **options, **torchs_options)
            with decode.Here(False):
                torchs_took = _time(torchs, workers, batches)
            ours = DDLPLoader(Subset(loader.dataset, drawn[1]), **options, timeout=LIMIT_S, strategy="cpu")
            ours_took = _time(ours, workers, batches)
    except Exception as error:  # a file that can't be read, workers that can't be started: the script itself will meet it
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    fewer = min(torchs_took[0], ours_took[0])
    if not fewer:
        return f"the first batches took longer than {LIMIT_S:.0f} s"
    torchs_per_s, ours_per_s = (count * size / seconds for count, seconds in (torchs_took, ours_took))
    return Comparison(torchs_per_s, ours_per_s, fewer, batches)


def _begin_worker(worker_init_fn: Callable[[int], None] | None, worker: int) -> None:
    decode.not_here(worker)
    if worker_init_fn is not None:
        worker_init_fn(worker)


def _time(loader: DataLoader, before: int, batches: int) -> tuple[int, float]:
    """Return how many batches came, and in how many seconds. ``before``: so many others are taken first."""
    until_s = time.monotonic() + LIMIT_S
    iterator = iter(loader)
    try:
        for _ in itertools.islice(iterator, before):
            pass
        started_s = time.monotonic()
        count = 0
        for _ in itertools.islice(iterator, batches):
            count += 1
            if time.monotonic() > until_s:
                break
        return count, time.monotonic() - started_s
    finally:
        if loader.num_workers or isinstance(loader, DDLPLoader):
            iterator._shutdown_workers()  # type: ignore[attr-defined]
