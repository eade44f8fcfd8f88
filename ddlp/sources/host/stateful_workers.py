"""The states of the data sets in torch's own workers: streams, and map-style data sets with ``state_dict``.

They are resumed as torchdata's StatefulDataLoader resumes them. A worker's copy of the data set is ahead of training by the
prepared batches. So its state travels beside the batch after which it was taken, and counts once that batch was delivered. On a
resume the worker makes again the batches that it has delivered since; all of its batches, if the stream has no state.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ddlp.sampling.checkpoint import Resume, is_stateful
from ddlp.sampling.generator_states import capture, put
from ddlp.sources.workers.fetching import Took
from ddlp.sources.workers.streams import by_number, torchs

__all__ = ["Workers", "check_workers", "every", "kept", "load_here", "next_epochs", "of_use", "tell_of_again"]

_LOG = logging.getLogger("ddlp")


@dataclass
class WorkerState:
    """The last pickled state of a worker's data set, and the batches since: a stream's number of them, else their positions."""

    state: bytes | None
    since: Any


class Workers:
    """The states that the workers' data sets have given in this epoch.

    Args:
        count: num_workers; 0 counts as one.
        saved: the result of `saved`, if an epoch is resumed.
        stream: the batches since a state are counted; else their positions are kept.
    """

    def __init__(self, count: int, saved: dict[str, Any] | None, stream: bool = False) -> None:
        self.count = count
        self._batches: Any = int if stream else list  # what is kept of the batches since a state
        self.states = [WorkerState(None, self._batches()) for _ in range(max(1, count))]
        self.first = 0  # the worker whose turn it is first
        self._ended: set[int] = set()
        if saved is not None:
            for worker, (state, since) in zip(self.states, saved["states"], strict=True):
                worker.state = None if state is None else pickle.dumps(state)
                worker.since = len(since) if stream and isinstance(since, list) else self._batches(since)
            self.first = saved["next"]
        self._next = self.first

    def deliver(self, took: Took, position: int) -> None:
        """Note that the batch went to the training loop."""
        worker = self.states[took.worker]
        if took.state is not None:
            worker.state, worker.since = took.state, self._batches()
        elif self._batches is int:
            worker.since += 1
        else:
            worker.since.append(position)
        self._next = (took.worker + 1) % len(self.states)

    def end(self, took: Took) -> None:
        """Note that a worker's stream has ended."""
        self.states[took.worker] = WorkerState(took.state, self._batches())
        self._ended.add(took.worker)

    def saved(self, between: bool = False) -> dict[str, Any] | None:
        """Return all states; plain data, if the data sets' states are. None if no data set has given one.

        ``between``: for a state between two epochs, in which no position counts.
        """
        if self._batches is list and all(worker.state is None and not worker.since for worker in self.states):
            return None
        states = [
            [
                None if worker.state is None else pickle.loads(worker.state),
                self._batches() if between else self._batches(worker.since),
            ]
            for worker in self.states
        ]
        return {"num_workers": self.count, "next": 0 if between else self._next, "states": states}

    def after_the_end(self) -> dict[str, Any] | None:
        """Return the states with which a stream's next epoch begins in the same workers; None if not all have ended."""
        return next_epochs(self.saved(between=True), True) if len(self._ended) == len(self.states) else None


def next_epochs(workers: Any, goes_on: bool) -> dict[str, Any]:
    """Return the states of a stream's workers without what belongs to an epoch that has ended, or does not count.

    ``goes_on``: the stream's own state goes on from epoch to epoch.
    """
    names = ("dataset", "generators") if workers["num_workers"] else ("dataset",)
    states: list[Any] = []
    for state, _ in workers["states"]:
        left = {name: value for name, value in (state or {}).items() if name in names}
        states.append([{**left, **({} if goes_on else {"dataset": None})} if left else None, 0])
    return {**workers, "next": 0, "states": states}


def every(loader: DataLoader, steps: int) -> int:
    """Return after how many of a worker's batches a state is taken, so that one comes after ``steps`` of all workers'."""
    if not steps:
        return 0
    return max(1, steps // max(1, loader.num_workers)) if getattr(loader, "in_order", True) else 1


def tell_of_again(loader: DataLoader, resume: Resume) -> None:
    """Say that the batches of a stream without a state of its own are made again."""
    states = resume.workers["states"] if resume.delivered and resume.workers is not None else []
    own = any(state is not None and (state["dataset"], state.get("iterator")) != (None, None) for state, _ in states)
    if states and not own:
        _LOG.warning(
            "%s has no state_dict and load_state_dict, nor has its iterator: the %d batches that this epoch has delivered are "
            "made again and dropped, before it goes on. With both it would go on at once",
            type(loader.dataset).__name__, len(resume.delivered),
        )  # fmt: skip


def of_use(loader: DataLoader, resume: Resume) -> bool:
    """Whether a resume's workers are of use: not if nothing was delivered, no state is known, and there are others now."""
    if resume.workers is None or resume.workers["num_workers"] == loader.num_workers:
        return resume.workers is not None
    return bool(resume.delivered) or any(state is not None for state, _ in resume.workers["states"])


def check_workers(loader: DataLoader, resume: Resume) -> None:
    """Raise ValueError if a state holds the states of the workers' data sets, and this loader has other ones."""
    if resume.workers is None or (isinstance(loader.dataset, IterableDataset) and not of_use(loader, resume)):
        return
    was, dataset = resume.workers["num_workers"], type(loader.dataset).__name__
    way_out = "or leave the state out and begin the epoch again with set_epoch()"
    if was != loader.num_workers:
        raise ValueError(
            f"the state was saved with num_workers={was} and holds the state of each worker's data set, this loader has "
            f"num_workers={loader.num_workers}: its workers could not go on where those were. Make the loader with "
            f"num_workers={was} until that epoch is over, {way_out}"
        )
    if not (isinstance(loader.dataset, IterableDataset) or is_stateful(loader.dataset)):
        raise ValueError(
            f"the state holds the state of each worker's data set, this loader's data set, {dataset}, has no load_state_dict: "
            f"it could not go on there. Give the loader the data set that the state was saved with, {way_out}"
        )


def load_here(loader: DataLoader, resume: Resume) -> None:
    """Give a map-style data set its state again, without workers.

    If that moves torch's generator, it moves to where it was when the batch before was made. The epoch's draws go on from the
    loader's own state of it, or from where the script has put it since.
    """
    if resume.workers is None or loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return
    state, _ = resume.workers["states"][0]
    if state is None:
        return
    before = capture(torchs(), python=False)
    loader.dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]
    saved = resume.generators or {}
    if "torch" in saved and capture(torchs(), python=False) != before:
        untouched = before["torch"] == (resume.at_load or {}).get("torch")
        put({"torch": saved["torch"]} if untouched else before, torchs())


def kept(loader: DataLoader, resume: Resume) -> dict[str, Any] | None:
    """Return the states in a loaded state with which any epoch begins: those of data sets that go on from epoch to epoch."""
    goes_on = loader.num_workers == 0 or loader.persistent_workers
    if resume.workers is None or not goes_on:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return next_epochs(resume.workers, not by_number(loader.dataset))
    return {**resume.workers, "next": 0, "states": [[state, []] for state, _ in resume.workers["states"]]}
