"""The private names of torch's DataLoader that ddlp reads. docs/drop-in.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

__all__ = ["OrderSource", "collates", "forget_iterator", "index_sampler_of"]


@dataclass(frozen=True)
class OrderSource:
    """The sampler and the generator of a loader. It does not hold the loader, which must be free to be dropped."""

    _index_sampler: Any
    generator: torch.Generator | None


def index_sampler_of(loader: DataLoader | OrderSource) -> Any:
    """Return the batch sampler; the sampler of single indices with ``batch_size=None``."""
    return loader._index_sampler


def collates(loader: DataLoader) -> bool:
    """Return whether the loader makes batches; False: single samples (``batch_size=None``)."""
    return loader._auto_collation


def forget_iterator(loader: DataLoader) -> None:
    """Have the next epoch begin with new workers, although they persist: the kept ones have another sampler."""
    loader._iterator = None
