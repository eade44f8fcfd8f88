"""User code with a state of its own: data sets with ``state_dict`` and ``load_state_dict``, in torch's own workers.

They are resumed as torchdata's StatefulDataLoader resumes them. A worker's copy of the data set is ahead of training by the
prepared batches. So its state travels beside the batch after which it was taken, and counts once that batch was delivered. On a
resume the worker makes again the batches that it has delivered since.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ddlp.sampling.checkpoint import Resume, between, is_stateful, save
from ddlp.sampling.generator_states import for_base_seed
from ddlp.schedule.ranges import RangeSet
from ddlp.sources.host.torch_workers import (
    KeyedView,
    UserCodeIterator,
    _as_it_is,
    _counts,
    _Multi,
    _Single,
    _WorkerStart,
    iterate_user_code,
)
from ddlp.transfer.to_device import MoveAndTransform

__all__ = ["StreamView", "check_workers", "iterate", "kept", "lasting"]

Before = list[tuple[Any, list[int]]] | None
"""For each worker: the state with which its data set begins, and the positions that it has delivered since."""


class Asked(NamedTuple):
    """A request to a worker: batches to make again and drop, then a batch to give, and whether to take the state after it."""

    again: list[Any]
    batch: Any
    snapshot: bool


class Given(NamedTuple):
    """A finished batch, its worker, and the pickled state of the worker's data set after it; None: the state was not taken."""

    batch: Any
    worker: int
    state: bytes | None


def _worker() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


def _own_state(thing: Any) -> Any:
    return thing.state_dict() if is_stateful(thing) else None


# -- in the workers, or in the training process ----------------------------------------------------------------------------


class StatefulSamples:
    """A map-style data set with a state of its own, for torch's fetchers. It gives finished batches."""

    def __init__(self, view: Any, dataset: Any, before: Before) -> None:
        self.dataset = view.dataset  # the `KeyedSamples`
        self._own = dataset
        self._fetch = _MapDatasetFetcher(view.dataset, view._auto_collation, view.collate_fn, view.drop_last).fetch
        self._before = before

    def __getitems__(self, asked: Asked) -> Given:
        worker = _worker()
        if self._before is not None:
            (state, _), self._before = self._before[worker], None
            if state is not None:
                self._own.load_state_dict(state["dataset"])
        for batch in asked.again:
            self._fetch(batch)
        batch = self._fetch(asked.batch)
        return Given(batch, worker, self.snapshot() if asked.snapshot else None)

    __getitem__ = __getitems__  # for a loader without batches

    def snapshot(self) -> bytes:
        """Return the data set's state as it is now."""
        return pickle.dumps({"dataset": self._own.state_dict()})


class StatefulStream(IterableDataset):
    """An IterableDataset for torch's fetchers. The data set, or its iterator, may have a state of its own.

    Args:
        every: after how many of a worker's batches a state is taken.
        samples: the number of samples in a batch.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        every: int,
        samples: int,
        before: Before,
    ) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._every = every
        self._samples = samples
        self._before = before
        self._iterator: Any = None
        self._stateful = self._ended = False
        self._made = 0

    def __iter__(self) -> Iterator[Any]:
        state, since = (None, ()) if self._before is None else self._before[_worker()]
        self._before = None
        if state is not None and state["dataset"] is not None:
            self.dataset.load_state_dict(state["dataset"])
        self._iterator = iterator = iter(self.dataset)
        if state is not None and state.get("iterator") is not None:  # a map-style data set's state has none
            iterator.load_state_dict(state["iterator"])
        self._ended, self._made = state is not None and state.get("ended", False), 0
        self._stateful = is_stateful(iterator) or is_stateful(self.dataset)
        if not self._stateful:
            return iterator
        for _ in itertools.islice(iterator, len(since) * self._samples):
            pass
        return self._until_its_end(iterator)

    def _until_its_end(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if not self._ended:  # an ended iterator may begin anew when it is asked again
            yield from iterator
        self._ended = True

    def collate(self, samples: Any) -> Any:
        """Call the user's collate_fn. For a stateful stream return a `Given` with its result."""
        batch = self._collate_fn(samples)
        if not self._stateful:
            return batch
        taken = self._made % self._every == 0
        self._made += 1
        return Given(batch, _worker(), self._snapshot() if taken else None)

    def _snapshot(self) -> bytes:
        own = None if self._iterator is self.dataset else _own_state(self.dataset)
        return pickle.dumps({"dataset": own, "iterator": _own_state(self._iterator), "ended": self._ended})


class _Start:
    """Runs first in each worker: sets the worker's data set to the one within ddlp's, then calls ``then``."""

    def __init__(self, then: Callable[[int], None]) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[union-attr]
        self._then(worker)


# -- in the training process -------------------------------------------------------------------------------------------------


@dataclass
class WorkerState:
    """The last pickled state of a worker's data set, and the positions that the worker has delivered since."""

    state: bytes | None = None
    since: list[int] = field(default_factory=list)

    def plain(self) -> Any:
        """Return the state as the data set gave it."""
        return None if self.state is None else pickle.loads(self.state)


class Workers:
    """The states that the workers' data sets have given in this epoch.

    Args:
        count: num_workers; 0 counts as one.
        saved: the result of `saved`, if an epoch is resumed.
    """

    def __init__(self, count: int, saved: dict[str, Any] | None) -> None:
        self.count = count
        self.states = [WorkerState() for _ in range(max(1, count))]
        self.first = 0  # the worker whose turn it is first
        if saved is not None:
            self.states = [
                WorkerState(None if state is None else pickle.dumps(state), list(since)) for state, since in saved["states"]
            ]
            self.first = saved["next"]
        self._next = self.first

    def deliver(self, given: Given, position: int) -> None:
        """Note that the batch went to the training loop."""
        worker = self.states[given.worker]
        if given.state is None:
            worker.since.append(position)
        else:
            worker.state, worker.since = given.state, []
        self._next = (given.worker + 1) % len(self.states)

    def saved(self, between: bool = False) -> dict[str, Any] | None:
        """Return all states; plain data, if the data sets' states are. None if no data set has given one.

        ``between``: for a state between two epochs, in which no position counts.
        """
        if all(worker == WorkerState() for worker in self.states):
            return None
        states = [[worker.plain(), [] if between else list(worker.since)] for worker in self.states]
        return {"num_workers": self.count, "next": 0 if between else self._next, "states": states}


def _every(loader: Any, steps: int) -> int:
    """Return after how many of a worker's batches a state is taken, so that one comes after ``steps`` of all workers'."""
    return max(1, steps // max(1, loader.num_workers)) if getattr(loader, "in_order", True) else 1


def _before(resume: Resume) -> Before:
    return None if resume.workers is None else resume.workers["states"]


class _Asking:
    """The keyed sampler. It gives each batch with those that its worker must make again before it."""

    def __init__(self, view: StatefulView, sampler: Any) -> None:
        self._view, self._sampler = view, sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Asked]:
        return self._asked(iter(self._sampler))  # iter() of the user's sampler is called now

    def _asked(self, batches: Iterator[Any]) -> Iterator[Asked]:
        again: dict[int, list[Any]] = {}
        for batch in batches:
            worker = self._view.again_in
            if worker is not None:
                again.setdefault(worker, []).append(batch)
            else:
                worker, snapshot = self._view.asks()
                yield Asked(again.pop(worker, []), batch, snapshot)


class StatefulView(KeyedView):
    """The loader over a map-style data set with a state of its own."""

    again_in: int | None = None  # the worker that makes the sampler's last batch again; None: that batch is to be delivered
    given: Given

    def __init__(self, loader: Any, seed: int | None, epoch: int, resume: Resume, snapshot_every_n_steps: int) -> None:
        self._own = loader.dataset
        self._every = _every(loader, snapshot_every_n_steps)
        self.workers = Workers(loader.num_workers, None)
        super().__init__(loader, seed, epoch, resume)
        self.dataset: Any = StatefulSamples(self, loader.dataset, _before(resume))
        self.collate_fn = _as_it_is
        self.worker_init_fn: Any = _Start(self.worker_init_fn)
        self._index_sampler: Any = _Asking(self, self._index_sampler)

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume, *, seed_drawn: bool) -> None:
        """Set the epoch for which the sampler is read next."""
        super().next_epoch(seed, epoch, resume, seed_drawn=seed_drawn)
        self.workers = Workers(self.num_workers, resume.workers or self.between())
        self._again = {position: worker for worker, state in enumerate(self.workers.states) for position in state.since}

    def read(self, position: int) -> bool:
        """Note that the sampler gave this position's batch. True if a worker must make it."""
        self.again_in = self._again.get(position)
        return super().read(position) or self.again_in is not None

    def asks(self) -> tuple[int, bool]:
        """Return which worker makes the batch that was sent last, and whether it takes the data set's state after it."""
        workers = self.workers
        number, count = len(self._sent) - 1, len(workers.states)
        at_the_end = self._batches is not None and self._sent[-1] + count >= self._batches
        return (workers.first + number) % count, number // count % self._every == 0 or at_the_end

    def deliver(self, number: int) -> int:
        """Note that batch ``number`` of those sent to the workers was delivered, counted from 0; -1: the last one sent."""
        position = super().deliver(number)
        self.workers.deliver(self.given, position)
        return position

    def state(self) -> dict[str, Any] | None:
        """Return the epoch's state with those of the workers' data sets; None once the epoch is over."""
        state = super().state()
        return None if state is None else {**state, "workers": self.workers.saved()}

    def between(self) -> dict[str, Any] | None:
        """Return the states with which the next epoch's data sets begin; None: they begin as the loader was given them."""
        if self.num_workers == 0:
            return {"num_workers": 0, "next": 0, "states": [[{"dataset": copy.deepcopy(self._own.state_dict())}, []]]}
        return self.workers.saved(between=True) if self.persistent_workers else None


class StreamView:
    """The loader over an IterableDataset, for torch's iterators. The epoch's state is made from it too."""

    given: Given | None = None  # None: neither the stream nor its iterator has a state

    def __init__(self, loader: Any, epoch: int, resume: Resume, snapshot_every_n_steps: int) -> None:
        self._loader = weakref.ref(loader)  # for the same reason as in KeyedView
        self.known_base_seed = resume.seed
        self.generator = loader.generator if resume.seed is None else for_base_seed(resume.seed)
        self.dataset = loader.dataset
        self.worker_init_fn: Any = _WorkerStart(loader.worker_init_fn, loader.postpone_decoding)
        self.base_seed: int | None = None
        if not isinstance(loader.dataset, IterDataPipe):  # torch's iterators shuffle and share those by their type
            every = _every(loader, snapshot_every_n_steps)
            stream = StatefulStream(loader.dataset, loader.collate_fn, every, loader.batch_size or 1, _before(resume))
            self.dataset, self.collate_fn = stream, stream.collate
            self.worker_init_fn = _Start(self.worker_init_fn)
        self.next_epoch(None, epoch, resume, seed_drawn=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader(), name)

    def of(self, iterator: Any) -> None:
        """Do nothing. `KeyedView` keeps the iterator here."""

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume, *, seed_drawn: bool) -> None:
        """Set the epoch for which iter() of the data set is called next."""
        self.epoch = epoch
        self.resume = resume
        self.delivered = len(resume.delivered)  # number of batches
        self.workers = Workers(self.num_workers, resume.workers)
        self.ended = False

    def deliver(self, number: int) -> int:
        """Note that a batch went to the training loop. Returns its position in the epoch."""
        if self.given is not None:
            self.workers.deliver(self.given, self.delivered)
        self.delivered += 1
        return self.delivered - 1

    def state(self) -> dict[str, Any] | None:
        """Return the epoch's state, with that of each worker's stream; None once the epoch is over.

        If no stream has a state, this epoch begins again on a resume.
        """
        workers = self.workers.saved()
        if self.ended or workers is None:
            return None if self.ended else between(self.epoch)
        return save(RangeSet([(0, self.delivered)]), None, seed=self.base_seed, epoch=self.epoch, workers=workers)

    def over_by_count(self) -> bool:
        """True if a caller that counts batches takes the epoch for over.

        That is so if as many batches were delivered as the loader's length tells, or if the stream has no state.
        """
        try:
            return self.given is None or self.delivered >= len(self._loader())  # type: ignore[arg-type]
        except TypeError:  # the loader has no length
            return False


class _Opening:
    """Mixed into torch's iterators: takes the batch out of `Given`, and begins with the seed of an epoch that is resumed."""

    view: Any

    @property
    def _base_seed(self) -> Any:
        return self.view.base_seed

    @_base_seed.setter
    def _base_seed(self, drawn: Any) -> None:
        self.view.base_seed = drawn if self.view.resume.seed is None else self.view.resume.seed

    def _next_data(self) -> Any:
        given = super()._next_data()  # type: ignore[misc]
        if type(given) is not Given:
            return given
        self.view.given = given
        return given.batch


class _SingleOpening(_Opening, _Single):
    pass


class _MultiOpening(_Opening, _Multi):
    def _try_put_index(self) -> None:
        if self._send_idx == 0:  # on a resume, begin with the worker whose turn it was
            for _ in range(self.view.workers.first):
                next(self._worker_queue_idx_cycle)
        super()._try_put_index()


def iterate(
    loader: Any,
    seed: int | None,
    epoch: int,
    resume: Resume,
    finish: MoveAndTransform,
    snapshot_every_n_steps: int,
    base_seed: int | None = None,
) -> UserCodeIterator:
    """Do the same as `iterate_user_code`. If the data set has states of its own, the epoch's state includes them.

    ``base_seed`` is of no use then: other workers would not go on with such states.
    """
    view: Any
    if isinstance(loader.dataset, IterableDataset):
        view = StreamView(loader, epoch, resume, snapshot_every_n_steps)
    elif is_stateful(loader.dataset):
        view = StatefulView(loader, seed, epoch, resume, snapshot_every_n_steps)
    else:
        return iterate_user_code(loader, seed, epoch, resume, finish, base_seed)
    kind = _SingleOpening if loader.num_workers == 0 else _MultiOpening
    return kind(loader, view, _counts(loader, epoch, resume), finish)


def check_workers(loader: Any, resume: Resume) -> None:
    """Raise ValueError if a state holds the states of the workers' data sets, and this loader has other ones."""
    if resume.workers is None:
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


def lasting(loader: Any) -> dict[str, Any] | None:
    """Return the states with which the next epoch's data sets begin, if they go on from epoch to epoch; else None."""
    return loader._last.between() if isinstance(loader._last, StatefulView) else None


def kept(loader: Any, resume: Resume) -> dict[str, Any] | None:
    """Return the states in a loaded state with which any epoch begins: those of data sets that go on from epoch to epoch."""
    goes_on = loader.num_workers == 0 or loader.persistent_workers
    if resume.workers is None or not goes_on or isinstance(loader.dataset, IterableDataset):
        return None
    return {**resume.workers, "next": 0, "states": [[state, []] for state, _ in resume.workers["states"]]}
