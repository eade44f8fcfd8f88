"""`Epoch`: what one epoch is. It is made once, when the loader's base seed is drawn, and never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ddlp.sampling.checkpoint import Resume
from ddlp.schedule.slots import FETCHERS
from ddlp.translate.portable import Portable

__all__ = ["Epoch"]


@dataclass(frozen=True)
class Epoch:
    """What one epoch is: whose samples come, what is drawn for them, who makes them, and where they are delivered.

    Attributes:
        portable: the data set and the transform, in the form that both sides run.
        seed: of the draws within samples.
        number: with the seed, and a sample's index and occurrence, it gives the sample's draws.
        base_seed: the one that torch's DataLoader draws for its workers.
        resume: where the epoch goes on.
        batched: the sampler gives batches, which are collated; False: single samples.
        batch_size: of a full batch; 0: the sampler's batches differ.
        collate: joins a batch's targets.
        workers: the loader's ``num_workers``.
        prefetch_factor: batches that each of them prefetches.
        sources: the names of the sources that take leases.
        may_join: further ones may join while the epoch runs, see `EpochSink.expect`.
        rank_after_rank: a source that several ranks share works for the lowest rank that has leases.
        most_replaced: the share of the samples that may be replaced, if their images are bad; None: a bad image raises.
        target: where batches are delivered; None: as CPU tensors.
        pin: a kind of device, for which CPU tensors are copied to torch's page-locked memory; None: they are not.
        batch_transform: called with each finished batch.
    """

    portable: Portable
    seed: int
    number: int
    base_seed: int = 0
    resume: Resume = Resume()
    batched: bool = True
    batch_size: int = 0
    collate: Callable[[Any], Any] = torch.utils.data.default_collate
    workers: int = 0
    prefetch_factor: int = 2
    sources: tuple[str, ...] = ()
    may_join: bool = False
    rank_after_rank: bool = False
    most_replaced: float | None = None
    target: torch.device | None = None
    pin: str | None = None
    batch_transform: Callable[[Any], Any] | None = None

    @property
    def leases(self) -> bool:
        """Whether any source may take leases."""
        return self.may_join or bool(self.sources)

    @property
    def fetchers(self) -> int:
        """How many threads fetch devices' batches."""
        return FETCHERS if self.leases else 0

    @property
    def host_threads(self) -> int:
        """How many threads of this process make the host's batches: one prefetches without workers too."""
        return max(1, self.workers)
