"""Streams: data sets without indices. They, or their iterators, may have states of their own, from which they go on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from ddlp.sampling.checkpoint import is_stateful
from ddlp.sampling.generator_states import States, capture, put
from ddlp.sampling.keyed_generators import put_back, restored_globals, states
from ddlp.sampling.torch_loader import collates
from ddlp.sources.workers.fetching import Maker, NoBatch
from ddlp.sources.workers.keyed_samples import Before

__all__ = ["StreamBatches", "by_number", "torchs"]


def by_number(stream: Any) -> bool:
    """Whether set_epoch tells a stream its epochs. Each then begins anew: no state goes on from epoch to epoch."""
    return callable(getattr(stream, "set_epoch", None))


def _own_state(thing: Any) -> Any:
    return thing.state_dict() if is_stateful(thing) else None


def _twin(thing: Any) -> Any:
    """Return another object with the same attributes."""
    other = object.__new__(type(thing))
    vars(other).update(vars(thing))
    return other


def torchs() -> dict[str, torch.Generator]:
    """Return torch's default generator, by its name in a worker's state."""
    return {"torch": torch.default_generator}


class StreamBatches(Maker, IterableDataset):
    """Makes batches of an IterableDataset. iter() of it, which torch's fetcher calls, begins an epoch.

    Args:
        loader: the loader over the data set.
        every: after how many of a worker's batches a state is taken; 0: never.
        before: where each worker goes on.
    """

    def __init__(self, loader: DataLoader, every: int, before: Before) -> None:
        self.dataset = loader.dataset
        self._batching = collates(loader), loader.collate_fn, loader.drop_last
        self._samples = range(loader.batch_size or 1)  # of a batch
        self._stays = loader.persistent_workers and loader.num_workers > 0
        self._every = every
        self._before = before
        self.begun: bytes | None = None  # the state of an own kind with which the epoch has begun
        self.generators: dict[str, Any] = {}  # their states then

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        state, done = (None, 0) if self._before is None else self._before[0 if info is None else info.id]
        state, self._before = state or {}, None
        self.generators = states()
        if "generators" in state:
            put(state["generators"], torchs())
        dataset = self.dataset
        if state.get("dataset") is not None:
            if by_number(dataset):  # Hugging Face's would begin all later epochs there
                dataset = _twin(dataset)
            if isinstance(dataset, Iterator):  # as torchdata: such a state is loaded after iter()
                iter(dataset)
            dataset.load_state_dict(state["dataset"])
        self._fetcher: Any = _IterableDatasetFetcher(dataset, *self._batching)
        if state.get("iterator") is not None:
            self._fetcher.dataset_iter.load_state_dict(state["iterator"])
        self._fetcher.ended = state.get("ended", False)
        self._stateful = is_stateful(self._fetcher.dataset_iter) or is_stateful(dataset)
        self._made, self._told = 0, False
        self._make_again(done if isinstance(done, int) else len(done))
        if info is None:
            if "generators" in state:
                put_back(self.generators)
            elif self._stateful and not by_number(dataset):
                self.begun = self._taken()
        return iter(())  # `fetch` gives the batches

    def _make_again(self, batches: int) -> None:
        """Make the batches that were delivered before, and drop them."""
        for _ in range(batches):
            try:
                self._fetcher.fetch(self._samples)
            except StopIteration:
                return

    def fetch(self, request: Any) -> Any:
        """Return the stream's next batch; once `NoBatch` after the last one, if the worker stays. Raises StopIteration then."""
        try:
            batch = self._fetcher.fetch(self._samples)
        except StopIteration:
            if self._told or not self._stays:
                raise
            self._told, self.state = True, self._at_its_end()
            return NoBatch
        taken = self._stateful and self._every and self._made % self._every == 0
        self._made += 1
        self.state = self._taken() if taken else None
        return batch

    def _taken(self) -> bytes:
        iterator, dataset = self._fetcher.dataset_iter, self._fetcher.dataset
        own = None if iterator is dataset else _own_state(dataset)
        return pickle.dumps({"dataset": own, "iterator": _own_state(iterator), "ended": self._fetcher.ended})

    def _at_its_end(self) -> bytes:
        """Return the state with which nothing comes in this epoch. The next epoch begins with a part of it."""
        iterator, dataset = self._fetcher.dataset_iter, self._fetcher.dataset
        goes_on = not by_number(dataset)
        state = {
            "dataset": _own_state(dataset) if goes_on else None, "iterator": _own_state(iterator) if goes_on else None,
            "ended": True,
        }  # fmt: skip
        return pickle.dumps({**state, "generators": capture(torchs(), python=True)})

    def generators_then(self) -> States:
        """Return the states of the global generators when the epoch began in this process."""
        with restored_globals():
            put_back(self.generators)
            return capture(torchs(), python=True)
