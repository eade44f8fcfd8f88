"""The host's part of an epoch of user code whose batches the pool makes too.

Torch's worker processes make the host's batches, one for each of its threads, as they do without a pool. The epoch runs under
ddlp's own ledger, as one of portable batches does, because torch's iterator can't take back a batch that a node has lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset, SubsetRandomSampler

from csd_engine.transforms.pipeline import Pipeline
from ddlp.sampling.checkpoint import is_stateful, sampler_of
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.sampling.torch_loader import collates, index_sampler_of
from ddlp.sources.base import EpochSink, PreparedBatch, Resources
from ddlp.sources.usercode.tree import Encoded, encode
from ddlp.sources.usercode.work import Work
from ddlp.sources.workers.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.sources.workers.processes import worker_processes
from ddlp.stats.live import length
from ddlp.transfer.epilogue import Epilogue
from ddlp.translate.datasets import PortableSet
from ddlp.translate.portable import Portable

__all__ = ["UserCodeHost", "indexed", "why_at_home"]


def why_at_home(loader: Any) -> str:
    """Return why the pool takes no part in a loader's user code, which the host runs alone then; "": it takes part."""
    dataset, sampler = loader.dataset, index_sampler_of(loader)
    if isinstance(dataset, IterableDataset):
        return "an IterableDataset has no indices, so no batch of it can be made elsewhere"
    if not loader.num_workers:
        return "with num_workers=0 your code runs in the training thread, as in DataLoader; give the host a worker at least"
    if loader.worker_init_fn is not None:
        return "worker_init_fn prepares the host's own workers, and what it changes there no node would have"
    if is_stateful(dataset):
        return "the data set has a state (state_dict, load_state_dict), which only the host's workers keep"
    if loader.record is not None:
        return "record= does not know user code on a pool yet"
    single = sampler_of(loader)
    if not is_built_in(sampler):
        return f"{type(single).__name__} is your own sampler, whose indices may be anything"
    if not collates(loader) and isinstance(loader.sampler, BatchSampler):
        return "batch_size=None with a sampler that gives lists: pass it as batch_sampler="
    count = length(dataset)
    if count is None:
        return "the data set has no length"
    if type(single) is SubsetRandomSampler:
        try:
            indices = np.asarray(single.indices)
        except ValueError:  # of tuples, say
            indices = np.empty((1, 1))
        numbers = indices.dtype.kind in "iu" and indices.ndim == 1
        if indices.size and not (numbers and 0 <= indices.min() <= indices.max() < count):
            return "SubsetRandomSampler has indices that are no numbers from 0 to the data set's length"
    return ""


def indexed(loader: Any) -> Portable:
    """Return a loader's data set for an epoch's plan: as many samples, of which nothing is known but their indices."""
    samples = PortableSet([])
    samples.starts = [0, len(loader.dataset)]
    nothing = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": []})
    no_fills = torch.zeros(0, 3, dtype=torch.float32, device="cpu")
    return Portable(samples, nothing, Epilogue(None, no_fills, torch.uint8), (0, 0, 0))


class UserCodeHost:
    """The host's source in one epoch, and what its nodes need to know: the work, the tasks, and a batch to be compared by.

    It is the epoch's `StepRunner` as well: its batches, and the nodes', are whole.
    """

    def __init__(self, work: Work, loader: Any, base_seed: int) -> None:
        self.work = work
        self._batched = collates(loader)
        maker = KeyedSamples(loader.dataset, loader.collate_fn, self._batched)
        maker.postpone = loader.postpone_decoding or None
        self._workers = worker_processes(loader, loader._parts, maker, base_seed)
        self.close = self._workers.close
        self._comparing = threading.Lock()
        self._expected: Encoded | None = None

    # -- for the nodes ---------------------------------------------------------------------------------------------------

    def task(self, resources: Resources, position: int, samples: int | None = None) -> KeyedBatch:
        """Return what a worker or a node needs to make a batch; of its first ``samples`` alone, if that is given."""
        indices, items = resources.plan.indices(position)[:samples], resources.plan.items(position)[:samples]
        return KeyedBatch(indices if self._batched else indices[0], items, resources.epoch.seed, resources.epoch.number)

    def probe(self, resources: Resources) -> KeyedBatch:
        """Return the task by which a node is compared with the host: the epoch's first sample, as a batch of its own."""
        return self.task(resources, 0, 1)

    def expected(self, resources: Resources) -> Encoded:
        """Return what the host makes of `probe`. It is made once.

        Raises:
            NotATree: the batch can't be sent.
            Exception: the user's code raises an error.
        """
        with self._comparing:
            if self._expected is None:
                self._expected = encode(self._workers.ask(self.probe(resources)))
            return self._expected

    # -- the HostSource --------------------------------------------------------------------------------------------------

    def begin(self, sink: EpochSink) -> None:
        """Note what lives in the epoch."""
        self._resources = sink.resources

    def prepare(self, position: int, wanted: Callable[[], bool]) -> PreparedBatch:
        """Have a free worker make the batch at this position."""
        return PreparedBatch.made_whole(self._workers.ask(self.task(self._resources, position)))

    # -- the StepRunner --------------------------------------------------------------------------------------------------

    def finish(self, resources: Resources, position: int, batch: PreparedBatch) -> PreparedBatch:
        """Return the batch: it is whole."""
        return batch

    def whole(self, resources: Resources, position: int, batch: PreparedBatch) -> Any:
        """Return what the training loop gets."""
        return batch.whole
