"""The private names of torch's DataLoader that ddlp reads, and what torch's iterators read of a loader."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

__all__ = ["OrderSource", "as_torch_reads", "collates", "forget_iterator", "index_sampler_of"]

_READ_BY_ITERATORS = (
    "dataset", "_dataset_kind", "_IterableDataset_len_called", "_auto_collation", "_index_sampler", "drop_last", "num_workers",
    "prefetch_factor", "pin_memory", "pin_memory_device", "timeout", "collate_fn", "generator", "worker_init_fn",
    "multiprocessing_context", "persistent_workers", "in_order",
)  # fmt: skip


@dataclass(frozen=True)
class OrderSource:
    """The sampler and the generator of a loader. It does not hold the loader, which must be free to be dropped."""

    _index_sampler: Any
    generator: torch.Generator | None


def index_sampler_of(loader: DataLoader | OrderSource) -> Any:
    """Return the batch sampler; the sampler of single indices with ``batch_size=None``."""
    return loader._index_sampler


def as_torch_reads(loader: DataLoader, **instead: Any) -> Any:
    """Return what torch's iterators read of a loader, some of it replaced. It does not hold the loader."""
    read = {name: getattr(loader, name) for name in _READ_BY_ITERATORS if name not in instead and hasattr(loader, name)}
    return SimpleNamespace(**read, **instead)


def collates(loader: DataLoader) -> bool:
    """Return whether the loader makes batches; False: single samples (``batch_size=None``)."""
    return loader._auto_collation


def forget_iterator(loader: DataLoader) -> None:
    """Have the next epoch begin with new workers, although they persist: the kept ones have another sampler."""
    loader._iterator = None
