"""Several processes, and a sampler that does not share the data set among them."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

import torch
from torch.utils.data import IterableDataset

from ddlp.notices import warn_user
from ddlp.plan import is_built_in
from ddlp.resume import sampler_of

if TYPE_CHECKING:
    from ddlp.loader import DDLPLoader

_TOLD: weakref.WeakSet[DDLPLoader] = weakref.WeakSet()


def warn_if_not_shared(loader: DDLPLoader) -> None:
    """Warn, once a loader, where accelerate would have shared the data set and nobody else does.

    ``Accelerator.prepare`` leaves a `DDLPLoader` as it is, so each of its processes would go over the whole data set.
    """
    if "accelerate" not in sys.modules or loader in _TOLD:
        return
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if distributed else int(os.environ.get("WORLD_SIZE", "1"))
    sampler = sampler_of(loader)
    whole = is_built_in(loader._index_sampler) and not hasattr(sampler, "num_replicas")
    if processes < 2 or not whole or isinstance(loader.dataset, IterableDataset):
        return
    _TOLD.add(loader)
    warn_user(
        f"ddlp: each of the {processes} processes goes over the whole data set: {type(sampler).__name__} does not share "
        "it among them, and accelerate leaves a DDLPLoader as it is. Pass "
        "sampler=torch.utils.data.DistributedSampler(dataset, shuffle=...) and call loader.set_epoch(epoch)."
    )
