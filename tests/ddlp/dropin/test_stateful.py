"""Data sets and samplers with their own state go on where they were, as with torchdata's StatefulDataLoader."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import random
import re
import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from ddlp import DDLPLoader
from tests.covering import pairwise
from tests.ddlp.dropin.small_sets import SAMPLES, Draws, Stream


def worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Counts(Dataset):
    """A map-style data set with a counter. A sample is (index, how many samples this worker was asked for before)."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        self.count += 1
        return index, self.count, worker()[0]

    def state_dict(self) -> dict[str, Any]:
        return vars(self)  # the counter changes afterwards

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Reads(Counts):
    """With ``__getitems__``: asked for a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int, int]]:
        return [self[index] for index in indices]


class Numbers(IterableDataset):
    """Numbers, shared unequally among the workers. Its state is its position; after its end it begins again."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        me, workers = worker()
        while self.at < SAMPLES - 9 * me:
            self.at += 1
            yield (self.at - 1) * workers + me
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Walk:
    """An iterator that has a state, with a tensor in it. Its worker's seed shuffles it."""

    def __init__(self) -> None:
        me, workers = worker()
        info = get_worker_info()
        self.left = list(range(me, SAMPLES, workers))
        random.Random(3 if info is None else info.seed).shuffle(self.left)
        self.at = torch.zeros((), dtype=torch.int64)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.at == len(self.left):
            raise StopIteration
        self.at += 1
        return self.left[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"].clone()


class Walks(IterableDataset):
    """Only its iterator has a state."""

    def __iter__(self) -> Walk:
        return Walk()


class Itself(Numbers):
    """It is its own iterator. It is asked for its state once, as an iterator."""

    def __iter__(self) -> Any:
        self.numbers = super().__iter__()
        return self

    def __next__(self) -> int:
        return next(self.numbers)


class Plain(IterableDataset):
    """Without a state: numbers shared unequally among the workers, in an order that is drawn."""

    def __iter__(self) -> Any:
        me, workers = worker()
        numbers = [number * workers + me for number in range((SAMPLES - 9 * me) // workers)]
        random.shuffle(numbers)
        yield from numbers


class Restarts(Itself):
    """iter() begins it anew. It counts the calls."""

    calls = 0

    def __iter__(self) -> Any:
        self.calls += 1
        self.at = 0
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "calls": self.calls}


def Shuffles() -> Any:
    """A datapipe: torch gives it a seed of its own in each epoch, from which it shuffles."""
    return IterableWrapper(range(SAMPLES)).shuffle().sharding_filter()


KINDS = {kind.__name__: kind for kind in (Counts, Reads, Numbers, Walks, Itself, Restarts, Shuffles, Plain)}
AS_TORCHDATA = [name for name in KINDS if name not in ("Restarts", "Shuffles")]


def plain(batches: Any) -> list[Any]:
    return [
        [part.tolist() for part in batch] if isinstance(batch, list) else torch.as_tensor(batch).tolist() for batch in batches
    ]


def in_parts(make: Any, *takes: int) -> list[Any]:
    """The first epoch's batches, each part from a new loader, and the next epoch's from the last loader."""
    got, state = [], None
    for take in (*takes, None):
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        if take is None:
            got = [*got, *iterator]
            torch.manual_seed(6)
            random.seed(6)
            return [plain(got), plain(loader)]
        got += [next(iterator) for _ in range(take)]
        state = copy.deepcopy(loader.state_dict())
    raise AssertionError


def seeded(kind: str, loader: Any = DDLPLoader, **options: Any) -> Any:
    torch.manual_seed(5)
    random.seed(5)
    return loader(KINDS[kind](), 3, **options)


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (0, 4), (2, 1), (2, 4)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.some(6)
def test_a_data_set_goes_on(kind, workers, every):
    def make() -> DDLPLoader:
        return seeded(kind, num_workers=workers, snapshot_every_n_steps=every)

    assert in_parts(make, 3, 0, 2) == in_parts(make)


@pytest.mark.parametrize("kind", AS_TORCHDATA)
def test_an_iterator_that_is_dropped_is_gone(kind):
    """A reference cycle would keep it until garbage collection, and its workers would then wait for 5 s."""
    iterator = iter(seeded(kind, num_workers=0))
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", AS_TORCHDATA)
@pytest.mark.some(2)
def test_as_torchdata(kind, workers):
    """The same samples before and after a state that was taken between two snapshots."""
    theirs = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make(loader: Any) -> Any:
        return lambda: seeded(kind, loader, num_workers=workers, snapshot_every_n_steps=3)

    assert in_parts(make(DDLPLoader), 4)[0] == in_parts(make(theirs), 4)[0]


class DrawsLate(Counts):
    """Only one late sample draws, when the generators are no longer expected to change."""

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        index, count, me = super().__getitem__(index)
        return index, count, me + int(index == 38 and torch.rand(()) < 0)


def test_no_sample_is_asked_for_twice():
    loader = DDLPLoader(DrawsLate(), 3)
    list(loader)
    assert loader.dataset.count == SAMPLES


@pytest.mark.parametrize(
    ("workers", "in_order", "size", "drop_last", "take"),
    pairwise([0, 2, 3], [True, False], [None, 3, 4], [False, True], [0, 1, 5, 8], where=lambda *one: one[2] or not one[3]),
)
@pytest.mark.some(8)
def test_a_stream_without_a_state_goes_on(caplog, workers, in_order, size, drop_last, take):
    """What it has delivered is made again and dropped, which is said; also if the workers' batches came in any order."""

    def make() -> DDLPLoader:
        return DDLPLoader(Plain(), size, num_workers=workers, in_order=in_order, drop_last=drop_last)

    torch.manual_seed(1)
    random.seed(1)
    first = make()
    iterator = iter(first)
    got = plain(itertools.islice(iterator, take))
    state, ahead = json.dumps(first.state_dict()), random.getstate()
    expected = [*got, *plain(iterator)]
    random.setstate(ahead)

    again = make()
    again.load_state_dict(json.loads(state))
    with caplog.at_level(logging.WARNING, "ddlp"):
        rest = plain(again)
    assert [*got, *rest] == expected if in_order else sorted([*got, *rest], key=str) == sorted(expected, key=str)
    said = [record.getMessage() for record in caplog.records if "has no state_dict" in record.getMessage()]
    assert len(said) == bool(take)
    assert all(f"the {take} batches that this epoch has delivered are made again" in text for text in said)


class Epochs(Numbers):
    """Its state has the number of the epoch, which counts on after its end."""

    epoch = 0

    def __iter__(self) -> Any:
        for number in super().__iter__():
            yield 1000 * self.epoch + number
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class ByNumber(IterableDataset):
    """As Hugging Face's: set_epoch tells it its epochs, and a state that is loaded counts in each epoch of that number.

    The number reaches persistent workers. Its state is that of its last iterator, from whose first number on.
    """

    def __init__(self) -> None:
        self.number = torch.zeros((), dtype=torch.int64).share_memory_()
        self.at = 0
        self.loaded: dict[str, Any] | None = None

    @property
    def epoch(self) -> int:
        return int(self.number)

    def set_epoch(self, epoch: int) -> None:
        self.number.fill_(epoch)

    def __iter__(self) -> Any:
        me, workers = worker()
        again = self.loaded is not None and self.loaded["epoch"] == self.epoch
        self.at = self.loaded["at"] if again and self.loaded else 0
        while self.at < SAMPLES - 9 * me:
            self.at += 1
            yield 1000 * self.epoch + (self.at - 1) * workers + me

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


@pytest.mark.parametrize(("kind", "options", "counted"), [
    (ByNumber, {}, False), (ByNumber, dict(num_workers=2), True),
    (ByNumber, dict(num_workers=2, persistent_workers=True), False),
    (Epochs, {}, False), (Epochs, dict(num_workers=2, persistent_workers=True), False),
])  # fmt: skip
@pytest.mark.some(3)
def test_a_stream_that_knows_its_epochs_goes_on_with_the_next(kind, options, counted):
    """Also with a state in an epoch of which some workers have delivered nothing yet, or all. ``counted``: by set_epoch."""

    def make() -> DDLPLoader:
        return DDLPLoader(kind(), 3, **options)

    def epoch(loader: DDLPLoader, number: int) -> Any:
        if counted:
            loader.set_epoch(number)
        return iter(loader)

    first = make()
    expected = [plain(epoch(first, number)) for number in range(4)]
    if kind is Epochs or counted:
        assert expected[1] == [[number + 1000 for number in batch] for batch in expected[0]]
    first = make()
    plain(epoch(first, 0))
    states = [first.state_dict()]
    iterator = epoch(first, 1)
    for _ in range(len(expected[1])):
        states.append(copy.deepcopy(first.state_dict()))
        next(iterator)
    states.append(copy.deepcopy(first.state_dict()))
    for taken in (0, 1, 2, 4, len(expected[1]), len(expected[1]) + 1):  # between two epochs; begun; so many batches less one
        again = make()
        again.load_state_dict(json.loads(json.dumps(states[taken])))
        rest = expected[1][max(0, taken - 1) :]
        assert [plain(epoch(again, number)) for number in (1, 2, 3)] == [rest, expected[2], expected[3]], taken


class KeepsTorch(Counts):
    """Its state is that of torch's generator, from which the order is drawn too."""

    def state_dict(self) -> dict[str, Any]:
        return {"torch": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("batches", [None, 0, 3])
def test_a_state_that_sets_a_generator_leaves_the_begun_epochs_order(batches, restored):
    """The order is drawn with the first batch, the data set's state is older. ``restored``: by the script, as it was.

    Between two epochs (``batches`` is None) the state is loaded before the next epoch draws.
    """

    def indices(batches: Any) -> list[int]:
        return [index for batch in batches for index in batch[0].tolist()]

    torch.manual_seed(1)
    loader = DDLPLoader(KeepsTorch(), 3, shuffle=True)
    iterator = loader if batches is None else iter(loader)
    indices(itertools.islice(iterator, batches))
    state, generator = loader.state_dict(), torch.get_rng_state()
    expected = [indices(iterator), indices(loader)]
    torch.manual_seed(2)
    again = DDLPLoader(KeepsTorch(), 3, shuffle=True)
    again.load_state_dict(state)
    if restored:
        torch.set_rng_state(generator)
    resumed = [indices(again), indices(again)]
    assert resumed[0] == expected[0]
    assert resumed[1] == expected[1] or (batches and not restored)  # in mid-epoch the state has no generator of the model's


def broken_off(loader: DDLPLoader, batches: int = 3) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("kind", ["Counts", "Plain"])
def test_another_number_of_workers_is_refused(kind):
    state = broken_off(seeded(kind, num_workers=2))
    loader = seeded(kind, num_workers=1)
    said = "saved with num_workers=2 and holds the state of each worker's data set, this loader has num_workers=1: its workers"
    with pytest.raises(ValueError, match=re.escape(said)):
        loader.load_state_dict(state)
    assert loader.state_dict()["delivered"] == []  # nothing was loaded
    with pytest.raises(ValueError, match="this loader's data set, Draws, has no load_state_dict: it could not go on there"):
        DDLPLoader(Draws(), 3, num_workers=2).load_state_dict(broken_off(seeded("Counts", num_workers=2)))


@pytest.mark.parametrize("options", [{}, dict(num_workers=1, persistent_workers=True)])
def test_a_data_set_that_lives_on_goes_on_with_the_next_epoch(options):
    """Also with the state of the epoch's last batch, when the training loop goes on with the next epoch at once."""
    first = seeded("Counts", **options, snapshot_every_n_steps=4)
    for _ in first:
        last = copy.deepcopy(first.state_dict())
    expected = plain(first)
    assert expected[0][1] == [SAMPLES + 1, SAMPLES + 2, SAMPLES + 3]
    for state in (first.state_dict(), last):
        again = seeded("Counts", **options)
        again.load_state_dict(state)
        again.set_epoch(1 if state is last else 2)
        assert plain(again)[0][1][0] == (SAMPLES if state is last else 2 * SAMPLES) + 1


@pytest.mark.parametrize("kind", ["Counts", "Numbers"])
def test_persistent_workers_are_replaced_by_those_of_the_state(kind):
    loader = seeded(kind, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(4)]
    state = copy.deepcopy(loader.state_dict())
    expected = plain([*got, *iterator])
    loader.load_state_dict(state)
    assert plain([*got, *loader]) == expected


def test_how_often():
    """A data set is asked for its state only that often. A copy of the loader from its attributes asks as often."""

    class Asked(Counts):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            return super().state_dict()

    found = []
    for every in (1, 5, 0):
        loader = DDLPLoader(Asked(), 3, snapshot_every_n_steps=every)
        list(loader)
        found.append(loader.dataset.asked)
        assert loader.snapshot_every_n_steps == every
    assert found == [15, 5, 1]  # before the epoch; after each batch, or the 1st, 6th, 11th and last; never, as in torchdata
    for wrong in (-1, 1.5, None):
        with pytest.raises(ValueError, match="snapshot_every_n_steps=.*: a number of batches, or 0: never"):
            DDLPLoader(Stream(), snapshot_every_n_steps=wrong)
