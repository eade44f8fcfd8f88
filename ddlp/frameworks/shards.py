"""Several processes, and a sampler or a stream that does not share the samples among them."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ddlp.process.user_warnings import warn_user
from ddlp.sampling.checkpoint import sampler_of
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.sampling.torch_loader import index_sampler_of

_TOLD: weakref.WeakSet[Any] = weakref.WeakSet()
_SHARING = ("num_replicas", "num_processes", "_distributed")  # of torch's sampler, accelerate's shards, Hugging Face's streams


def is_shared(source: Any) -> bool:
    """True for a sampler or a stream that says that it gives each process a part of its own."""
    return any(getattr(source, name, None) for name in _SHARING)


def shares_itself(loader: DataLoader) -> bool:
    """True where the loader's stream, batch sampler or sampler says so (`is_shared`)."""
    stream = isinstance(loader.dataset, IterableDataset)
    return any(map(is_shared, (loader.dataset,) if stream else (index_sampler_of(loader), sampler_of(loader))))


def can_be_shared(loader: DataLoader) -> bool:
    """True where accelerate can share the samples: by batches, which a loader with ``batch_size=None`` has none of."""
    return loader.batch_sampler is not None or isinstance(loader.sampler, BatchSampler)


def warn_if_not_shared(loader: DataLoader, shared: bool) -> None:
    """Warn, once a loader, where accelerate would share the samples and nobody does, as far as can be seen.

    It shares those of a loader that ``Accelerator.prepare`` was given: then they are ``shared``.
    """
    if "accelerate" not in sys.modules or loader in _TOLD or shared:
        return
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if distributed else int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2 or shares_itself(loader):
        return
    _TOLD.add(loader)
    stream = isinstance(loader.dataset, IterableDataset)
    index_sampler = index_sampler_of(loader)
    given = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    name = type(loader.dataset if stream else given).__name__
    left, way = "and the loader was not passed to Accelerator.prepare", "Pass it, or give it"
    if not can_be_shared(loader):
        left, way = "and accelerate cannot share a loader with batch_size=None", "Give it"
    own_way = f"If {name} shares in a way of its own, give it an attribute num_replicas, and this is not said."
    if stream:
        warn_user(
            f"ddlp: each of the {processes} processes may go over the whole stream: {name} does not say that it shares its "
            f"samples among them, {left}. {way} accelerate.data_loader.IterableDatasetShard(dataset, batch_size, "
            f"num_processes=..., process_index=...) and call loader.set_epoch(epoch). {own_way}"
        )
    elif is_built_in(index_sampler):
        warn_user(
            f"ddlp: each of the {processes} processes goes over the whole data set: {name} does not share it among them, "
            f"{left}. {way} sampler=torch.utils.data.DistributedSampler(dataset, shuffle=...) and call "
            "loader.set_epoch(epoch)."
        )
    else:
        warn_user(
            f"ddlp: each of the {processes} processes may go over the whole data set: {name} does not say that it shares it "
            f"among them, {left}. {way} one that gives each process another part, as torch's DistributedSampler does. {own_way}"
        )
