"""Streams, and map-style data sets with ``state_dict`` and ``load_state_dict``, in torch's own workers.

They are resumed as torchdata's StatefulDataLoader resumes them. A worker's copy of the data set is ahead of training by the
prepared batches. So its state travels beside the batch after which it was taken, and counts once that batch was delivered. On a
resume the worker makes again the batches that it has delivered since; all of its batches, if the stream has no state.
"""

from __future__ import annotations

import copy
import logging
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from ddlp.sampling.checkpoint import Resume, is_stateful, save
from ddlp.sampling.generator_states import States, capture, for_base_seed, put
from ddlp.sampling.keyed_generators import GENERATORS
from ddlp.sampling.torch_loader import as_torch_reads, collates
from ddlp.schedule.ranges import RangeSet
from ddlp.sources.host.torch_workers import (
    KeyedMemory,
    UserCodeIterator,
    _counts,
    _Multi,
    _Single,
    iterate_user_code,
)
from ddlp.sources.workers.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.sources.workers.start import WorkerStart, as_it_is
from ddlp.sources.workers.timed_fetch import timed
from ddlp.transfer.to_device import MoveAndTransform

__all__ = ["StreamMemory", "check_workers", "iterate", "kept", "lasting"]

_LOG = logging.getLogger("ddlp")

Before = list[tuple[Any, Any]] | None
"""For each worker: the state with which its data set begins, and the positions (a stream: the number) of its batches since."""


class Asked(NamedTuple):
    """A request to a worker: batches to make again and drop, then a batch to give, and whether to take the state after it."""

    again: list[Any]
    batch: KeyedBatch
    snapshot: bool

    def at(self, place: int) -> str:
        """As `ddlp.sources.workers.mark.Work.at`."""
        return self.batch.at(place)


class Given(NamedTuple):
    """A finished batch, its worker, and the pickled state of the worker's data set after it; None: the state was not taken.

    It crosses from the worker to the training process, since only the worker's copy of the data set has that state.
    ``ended``: there is no batch. The worker's stream has ended, and the state is that with which its next epoch begins.
    """

    batch: Any
    worker: int
    state: bytes | None
    ended: bool = False


def _worker() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


def _own_state(thing: Any) -> Any:
    return thing.state_dict() if is_stateful(thing) else None


def _by_number(stream: Any) -> bool:
    """Whether set_epoch tells a stream its epochs. Each then begins anew: no state goes on from epoch to epoch."""
    return callable(getattr(stream, "set_epoch", None))


def _twin(thing: Any) -> Any:
    """Return another object with the same attributes."""
    other = object.__new__(type(thing))
    vars(other).update(vars(thing))
    return other


def _torchs() -> dict[str, torch.Generator]:
    return {"torch": torch.default_generator}


# -- in the workers, or in the training process ----------------------------------------------------------------------------


class StatefulSamples:
    """A map-style data set with a state of its own, for torch's fetchers. It gives finished batches."""

    def __init__(self, keyed: KeyedSamples, dataset: Any, batched: bool, before: Before) -> None:
        self.dataset, self.begin_worker = dataset, keyed.begin_worker
        self._fetch = _MapDatasetFetcher(keyed, batched, as_it_is, False).fetch
        self._before = before

    def __getitems__(self, asked: Asked) -> Given:
        worker = _worker()
        if self._before is not None:
            (state, _), self._before = self._before[worker], None
            if state is not None:
                self.dataset.load_state_dict(state["dataset"])
        for batch in asked.again:
            self._fetch(batch)
        batch = self._fetch(asked.batch)
        return Given(batch, worker, self.snapshot() if asked.snapshot else None)

    __getitem__ = __getitems__  # for a loader without batches

    def snapshot(self) -> bytes:
        """Return the data set's state as it is now."""
        return pickle.dumps({"dataset": self.dataset.state_dict()})


class Stream(IterableDataset):
    """An IterableDataset for torch's fetchers, which gives finished batches. It, or its iterator, may have a state of its own.

    Args:
        loader: the loader over the data set.
        every: after how many of a worker's batches a state is taken; 0: never.
        before: where each worker goes on.
    """

    def __init__(self, loader: Any, every: int, before: Before) -> None:
        self.dataset = loader.dataset
        self._batching = collates(loader), loader.collate_fn, loader.drop_last
        self._samples = range(loader.batch_size or 1)  # of a batch
        self._stays = loader.persistent_workers and loader.num_workers > 0
        self._every = every
        self._before = before
        self.begun: bytes | None = None  # the state of an own kind with which the epoch has begun
        self.generators: dict[str, Any] = {}  # their states then

    def begin_worker(self, init: Callable[[], None]) -> None:
        """Call the user's worker_init_fn."""
        init()

    def __iter__(self) -> Stream:
        state, done = (None, 0) if self._before is None else self._before[_worker()]
        state, self._before = state or {}, None
        self.generators = {name: generator.state() for name, generator in GENERATORS.items()}
        if "generators" in state:
            put(state["generators"], _torchs())
        dataset = self.dataset
        if state.get("dataset") is not None:
            if _by_number(dataset):  # Hugging Face's would begin all later epochs there
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
        if get_worker_info() is None:
            if "generators" in state:
                self._put_back()
            elif self._stateful and not _by_number(dataset):
                self.begun = self._snapshot()
        return self

    def _make_again(self, batches: int) -> None:
        """Make the batches that were delivered before, and drop them."""
        for _ in range(batches):
            try:
                self._fetcher.fetch(self._samples)
            except StopIteration:
                return

    def __next__(self) -> Given:
        try:
            batch = self._fetcher.fetch(self._samples)
        except StopIteration:
            if self._told or not self._stays:
                raise
            self._told = True
            return Given(None, _worker(), self._at_its_end(), ended=True)
        taken = self._stateful and self._every and self._made % self._every == 0
        self._made += 1
        return Given(batch, _worker(), self._snapshot() if taken else None)

    def _snapshot(self) -> bytes:
        iterator, dataset = self._fetcher.dataset_iter, self._fetcher.dataset
        own = None if iterator is dataset else _own_state(dataset)
        return pickle.dumps({"dataset": own, "iterator": _own_state(iterator), "ended": self._fetcher.ended})

    def _at_its_end(self) -> bytes:
        """Return the state with which nothing comes in this epoch. The next epoch begins with a part of it."""
        iterator, dataset = self._fetcher.dataset_iter, self._fetcher.dataset
        goes_on = not _by_number(dataset)
        state = {
            "dataset": _own_state(dataset) if goes_on else None, "iterator": _own_state(iterator) if goes_on else None,
            "ended": True,
        }  # fmt: skip
        return pickle.dumps({**state, "generators": capture(_torchs(), python=True)})

    def generators_then(self) -> States:
        """Return the states of the global generators when the epoch began in this process."""
        now = {name: generator.state() for name, generator in GENERATORS.items()}
        self._put_back()
        try:
            return capture(_torchs(), python=True)
        finally:
            for name, state in now.items():
                GENERATORS[name].put_back(state)

    def _put_back(self) -> None:
        for name, state in self.generators.items():
            GENERATORS[name].put_back(state)


# -- in the training process -------------------------------------------------------------------------------------------------


@dataclass
class WorkerState:
    """The last pickled state of a worker's data set, and what the worker has delivered since."""

    state: bytes | None = None
    since: list[int] = field(default_factory=list)  # positions; of a map-style data set
    batches: int = 0  # of a stream

    def plain(self) -> Any:
        """Return the state as the data set gave it."""
        return None if self.state is None else pickle.loads(self.state)


class Workers:
    """The states that the workers' data sets have given in this epoch.

    Args:
        count: num_workers; 0 counts as one.
        saved: the result of `saved`, if an epoch is resumed.
        stream: the batches since a state are counted; else their positions are kept.
    """

    def __init__(self, count: int, saved: dict[str, Any] | None, stream: bool = False) -> None:
        self.count = count
        self._stream = stream
        self.states = [WorkerState() for _ in range(max(1, count))]
        self.first = 0  # the worker whose turn it is first
        self._ended: set[int] = set()
        if saved is not None:
            self.states = [_worker_state(state, since, stream) for state, since in saved["states"]]
            self.first = saved["next"]
        self._next = self.first

    def deliver(self, given: Given, position: int) -> None:
        """Note that the batch went to the training loop."""
        worker = self.states[given.worker]
        if given.state is not None:
            worker.state, worker.since, worker.batches = given.state, [], 0
        elif self._stream:
            worker.batches += 1
        else:
            worker.since.append(position)
        self._next = (given.worker + 1) % len(self.states)

    def end(self, given: Given) -> None:
        """Note that a worker's stream has ended."""
        self.states[given.worker] = WorkerState(given.state)
        self._ended.add(given.worker)

    def saved(self, between: bool = False) -> dict[str, Any] | None:
        """Return all states; plain data, if the data sets' states are. None if no data set has given one.

        ``between``: for a state between two epochs, in which no position counts.
        """
        if not self._stream and all(worker == WorkerState() for worker in self.states):
            return None
        none: Any = 0 if self._stream else []
        since = [none if between else worker.batches if self._stream else list(worker.since) for worker in self.states]
        states = [[worker.plain(), last] for worker, last in zip(self.states, since, strict=True)]
        return {"num_workers": self.count, "next": 0 if between else self._next, "states": states}

    def after_the_end(self) -> dict[str, Any] | None:
        """Return the states with which a stream's next epoch begins in the same workers; None if not all have ended."""
        return _next_epochs(self.saved(between=True), True) if len(self._ended) == len(self.states) else None


def _worker_state(state: Any, since: Any, stream: bool) -> WorkerState:
    last = None if state is None else pickle.dumps(state)
    if not stream:
        return WorkerState(last, list(since))
    return WorkerState(last, batches=since if isinstance(since, int) else len(since))


def _next_epochs(workers: Any, goes_on: bool) -> dict[str, Any]:
    """Return the states of a stream's workers without what belongs to an epoch that has ended, or does not count.

    ``goes_on``: the stream's own state goes on from epoch to epoch.
    """
    names = ("dataset", "generators") if workers["num_workers"] else ("dataset",)
    states: list[Any] = []
    for state, _ in workers["states"]:
        left = {name: value for name, value in (state or {}).items() if name in names}
        states.append([{**left, **({} if goes_on else {"dataset": None})} if left else None, 0])
    return {**workers, "next": 0, "states": states}


def _every(loader: Any, steps: int) -> int:
    """Return after how many of a worker's batches a state is taken, so that one comes after ``steps`` of all workers'."""
    if not steps:
        return 0
    return max(1, steps // max(1, loader.num_workers)) if getattr(loader, "in_order", True) else 1


def _before(resume: Resume) -> Before:
    return None if resume.workers is None else resume.workers["states"]


class _Asking:
    """The keyed sampler. It gives each batch with those that its worker must make again before it."""

    def __init__(self, memory: StatefulMemory, sampler: Any) -> None:
        self._memory, self._sampler = memory, sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Asked]:
        return self._asked(iter(self._sampler))  # iter() of the user's sampler is called now

    def _asked(self, batches: Iterator[Any]) -> Iterator[Asked]:
        again: dict[int, list[Any]] = {}
        for batch in batches:
            worker = self._memory.again_in
            if worker is not None:
                again.setdefault(worker, []).append(batch)
            else:
                worker, snapshot = self._memory.asks()
                yield Asked(again.pop(worker, []), batch, snapshot)


class StatefulMemory(KeyedMemory):
    """That of a map-style data set with a state of its own."""

    again_in: int | None = None  # the worker that makes the sampler's last batch again; None: that batch is to be delivered
    given: Given

    def __init__(
        self, loader: Any, seed: int | None, base_seed: int | None, epoch: int, resume: Resume, snapshot_every_n_steps: int
    ) -> None:
        self._own = loader.dataset
        self._every = _every(loader, snapshot_every_n_steps)
        self._count, self._stays = loader.num_workers, loader.persistent_workers
        self.workers = Workers(loader.num_workers, None)
        super().__init__(loader, seed, epoch, resume, base_seed)
        before = None if loader.num_workers == 0 else _before(resume)  # else `load_here` was called
        self.torch.dataset = StatefulSamples(self.torch.dataset, loader.dataset, collates(loader), before)
        self.torch._index_sampler = _Asking(self, self.torch._index_sampler)

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume, *, seed_drawn: bool) -> None:
        """Set the epoch for which the sampler is read next."""
        super().next_epoch(seed, epoch, resume, seed_drawn=seed_drawn)
        self.workers = Workers(self._count, resume.workers or self.between())
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
        snapshot = bool(self._every) and (number // count % self._every == 0 or at_the_end)
        return (workers.first + number) % count, snapshot

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
        if self._count == 0:
            return {"num_workers": 0, "next": 0, "states": [[{"dataset": copy.deepcopy(self._own.state_dict())}, []]]}
        return self.workers.saved(between=True) if self._stays else None


class StreamMemory:
    """That of a stream, as `KeyedMemory`."""

    given: Given

    def __init__(
        self, loader: Any, base_seed: int | None, epoch: int, resume: Resume, snapshot_every_n_steps: int
    ) -> None:
        self._loader = weakref.ref(loader)  # weak, since the loader keeps this object: a cycle would keep the workers
        self.known_base_seed = base_seed
        self.base_seed = 0  # that the iterator has, once there is one
        self.postpone = loader.postpone_decoding
        generator = loader.generator if base_seed is None else for_base_seed(base_seed)
        if resume.order is not None:  # of an IterDataPipe, whose seed torch draws before its own
            generator = torch.Generator()
            put(resume.order, {"sampler": generator})
        self.torch = as_torch_reads(
            loader,
            collate_fn=timed(loader, loader.collate_fn),
            generator=generator,
            worker_init_fn=WorkerStart(loader.worker_init_fn),
        )
        self.stream: Stream | None = None
        if not isinstance(loader.dataset, IterDataPipe):  # torch's iterators shuffle and share those by their type
            before = _before(resume) if _goes_on(loader, resume) else None
            self.stream = Stream(loader, _every(loader, snapshot_every_n_steps), before)
            self.torch.dataset, self.torch.collate_fn = self.stream, timed(loader, as_it_is)
            self.torch._auto_collation = False  # the stream makes whole batches
        self.next_epoch(None, epoch, resume, seed_drawn=False)

    def next_epoch(self, seed: int | None, epoch: int, resume: Resume, *, seed_drawn: bool) -> None:
        """Set the epoch for which iter() of the data set is called next."""
        self.epoch = epoch
        self.delivered = len(resume.delivered)  # number of batches
        self._order = resume.order
        if self._order is None and self.stream is None:
            drawn_from = self._loader().generator or torch.default_generator  # type: ignore[union-attr]
            self._order = {**capture({"sampler": drawn_from}, python=False), "sampler_epoch": None}
        last = vars(self).get("workers")
        workers = resume.workers if _goes_on(self.torch, resume) else None
        if last is not None and workers is None:
            workers = last.after_the_end()
        self.workers = Workers(self.torch.num_workers, workers, stream=True)
        self.ended = False

    def deliver(self, number: int) -> int:
        """Note that a batch went to the training loop. Returns its position in the epoch."""
        if self.stream is not None:
            self.workers.deliver(self.given, self.delivered)
        self.delivered += 1
        return self.delivered - 1

    def state(self) -> dict[str, Any] | None:
        """Return the epoch's state, with that of each worker's stream; None once the epoch is over."""
        if self.ended:
            return None
        workers: Any = self.workers.saved()
        if self.torch.num_workers == 0 and self.stream is not None and workers["states"][0][0] is None:
            begun = self.stream.begun
            first = {"dataset": None, "generators": self.stream.generators_then()} if begun is None else pickle.loads(begun)
            workers["states"][0][0] = first
        delivered = RangeSet([(0, self.delivered)] if self.delivered else [])
        return save(delivered, self._order, seed=self.base_seed, base_seed=self.base_seed, epoch=self.epoch, workers=workers)

    def between(self) -> dict[str, Any] | None:
        """Return the states with which the next epoch's data sets begin; None: they begin as the loader was given them."""
        dataset = self._loader().dataset  # type: ignore[union-attr]
        if self.torch.num_workers == 0 and is_stateful(dataset) and not _by_number(dataset):
            return {"num_workers": 0, "next": 0, "states": [[{"dataset": copy.deepcopy(dataset.state_dict())}, 0]]}
        return self.workers.after_the_end()

    def over_by_count(self) -> bool:
        """True if as many batches were delivered as the loader's length tells: a caller that counts them begins a new epoch."""
        try:
            return self.delivered >= len(self._loader())  # type: ignore[arg-type]
        except TypeError:  # the loader has no length
            return False


class _Opening:
    """Mixed into torch's iterators: takes the batch out of `Given`."""

    memory: Any

    def _next_data(self) -> Any:
        while True:
            given = super()._next_data()  # type: ignore[misc]
            if type(given) is not Given:
                return given
            if not given.ended:
                self.memory.given = given
                return given.batch
            self.memory.workers.end(given)


class _SingleOpening(_Opening, _Single):
    pass


class _MultiOpening(_Opening, _Multi):
    def _try_put_index(self) -> None:
        if self._send_idx == 0:  # on a resume, begin with the worker whose turn it was
            for _ in range(self.memory.workers.first):
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
    """Do the same as `iterate_user_code`. If the data set is a stream, or has states of its own, the epoch's state has them."""
    memory: Any
    if isinstance(loader.dataset, IterableDataset):
        memory = StreamMemory(loader, base_seed, epoch, resume, snapshot_every_n_steps)
        _tell(loader, resume)
    elif is_stateful(loader.dataset):
        memory = StatefulMemory(loader, seed, base_seed, epoch, resume, snapshot_every_n_steps)
    else:
        return iterate_user_code(loader, seed, epoch, resume, finish, base_seed)
    kind = _SingleOpening if loader.num_workers == 0 else _MultiOpening
    iterator = kind(loader, memory, _counts(loader._parts.life.rates, epoch, resume), finish)
    if isinstance(loader.dataset, IterDataPipe):
        for _ in range(len(resume.delivered)):
            try:
                iterator._next_data()
            except StopIteration:
                break
    return iterator


def _tell(loader: Any, resume: Resume) -> None:
    """Say that the batches of a stream without a state of its own are made again."""
    states = resume.workers["states"] if resume.delivered and resume.workers is not None else []
    own = any(state is not None and (state["dataset"], state.get("iterator")) != (None, None) for state, _ in states)
    if states and not own:
        _LOG.warning(
            "%s has no state_dict and load_state_dict, nor has its iterator: the %d batches that this epoch has delivered are "
            "made again and dropped, before it goes on. With both it would go on at once",
            type(loader.dataset).__name__, len(resume.delivered),
        )  # fmt: skip


def _goes_on(loader: Any, resume: Resume) -> bool:
    """Whether a resume's workers are of use: not if nothing was delivered, no state is known, and there are others now."""
    if resume.workers is None or resume.workers["num_workers"] == loader.num_workers:
        return resume.workers is not None
    return bool(resume.delivered) or any(state is not None for state, _ in resume.workers["states"])


def check_workers(loader: Any, resume: Resume) -> None:
    """Raise ValueError if a state holds the states of the workers' data sets, and this loader has other ones."""
    if resume.workers is None or (isinstance(loader.dataset, IterableDataset) and not _goes_on(loader, resume)):
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


def load_here(loader: Any, resume: Resume) -> None:
    """Give a map-style data set its state again, without workers.

    If that moves torch's generator, it moves to where it was when the batch before was made. The epoch's draws go on from the
    loader's own state of it, or from where the script has put it since.
    """
    if resume.workers is None or loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return
    state, _ = resume.workers["states"][0]
    if state is None:
        return
    before = capture(_torchs(), python=False)
    loader.dataset.load_state_dict(state["dataset"])
    saved = resume.generators or {}
    if "torch" in saved and capture(_torchs(), python=False) != before:
        untouched = before["torch"] == (resume.at_load or {}).get("torch")
        put({"torch": saved["torch"]} if untouched else before, _torchs())


def lasting(last: Any) -> dict[str, Any] | None:
    """Return the states with which the next epoch's data sets begin, if they go on from epoch to epoch; else None.

    ``last``: the memory of the loader's last epoch.
    """
    return last.between() if isinstance(last, (StatefulMemory, StreamMemory)) else None


def kept(loader: Any, resume: Resume) -> dict[str, Any] | None:
    """Return the states in a loaded state with which any epoch begins: those of data sets that go on from epoch to epoch."""
    goes_on = loader.num_workers == 0 or loader.persistent_workers
    if resume.workers is None or not goes_on:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return _next_epochs(resume.workers, not _by_number(loader.dataset))
    return {**resume.workers, "next": 0, "states": [[state, []] for state, _ in resume.workers["states"]]}
