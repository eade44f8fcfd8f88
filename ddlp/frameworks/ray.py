"""Ray Train, whose ``prepare_data_loader`` puts a plain DataLoader in the place of one that its workers do not share.

It asks a loader for its ``sampler`` first, and leaves alone what has a DistributedSampler. Nothing else of it reaches the
loader, so this question is where a `DDLPLoader` learns of Ray. It takes such a sampler, as Ray's own loader would have one.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ddlp.process.user_warnings import warn_user
from ddlp.sampling.torch_loader import forget_iterator

__all__ = ["share_where_asked"]

_ASK = ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils")  # Ray has two


def share_where_asked(loader: DataLoader) -> None:
    """Share the samples among Ray's workers, by Ray's rules, where it asks for the property this is called from."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") not in _ASK or frame.f_code.co_name != "prepare_data_loader":
        return
    own: dict[str, Any] = vars(loader)
    sampler, batches = (own[name] for name in ("sampler", "batch_sampler"))
    alone = frame.f_locals.get("world_size", 1) < 2 or not frame.f_locals.get("add_dist_sampler", True)
    if alone or isinstance(sampler, DistributedSampler) or isinstance(loader.dataset, IterableDataset):
        return
    if batches is not None and type(batches) is not BatchSampler:  # Ray's loader would have no batches then
        warn_user(
            f"ddlp: Ray Train's prepare_data_loader drops the batch_sampler, a {type(batches).__name__}, and this loader "
            "with it. Give it add_dist_sampler=False, and have the batch sampler share the samples among the workers."
        )
        return
    if not isinstance(sampler, (SequentialSampler, RandomSampler)):
        warn_user(
            f"ddlp: Ray Train's prepare_data_loader puts a DistributedSampler in the place of the {type(sampler).__name__}. To "
            "keep that, give it add_dist_sampler=False."
        )
    shared: Any = DistributedSampler(loader.dataset, shuffle=not isinstance(sampler, SequentialSampler))
    own["sampler"] = shared  # DataLoader refuses to have it set
    if batches is not None:
        own["batch_sampler"] = BatchSampler(shared, batches.batch_size, batches.drop_last)
    forget_iterator(loader)
