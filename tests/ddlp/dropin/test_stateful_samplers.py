"""Samplers with their own ``state_dict``: after a resume in a new process the order is that of an unbroken run."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ddlp import DDLPLoader
from tests.covering import pairwise
from tests.ddlp.dropin.small_sets import SAMPLES, Draws, numbered, order


class Rounds:
    """Its order depends on a counter, which is its state. The position in an epoch is not part of the state."""

    def __init__(self) -> None:
        self.rounds = 0

    def __len__(self) -> int:
        return SAMPLES

    def _begin(self) -> list[int]:
        self.rounds += 1
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.rounds)).tolist()

    def __iter__(self) -> Iterator[int]:
        yield from self._begin()

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Place(Rounds):
    """Its state also has the place in the epoch: the first iter() after load_state_dict goes on there, as torchdata expects."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.loaded = 0, False

    def __iter__(self) -> Iterator[int]:
        if self.loaded and self.rounds:
            self.rounds -= 1
        else:
            self.given = 0
        self.loaded = False
        for index in self._begin()[self.given :]:
            self.given += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds, self.given, self.loaded = state["rounds"], state["given"], True


class Batches(Place):
    """`Place` as a batch sampler."""

    def __len__(self) -> int:
        return -(-SAMPLES // 4)

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        batch = []
        for index in super().__iter__():
            batch.append(index)
            if len(batch) == 4:
                yield batch
                batch = []
        if batch:
            yield batch


class Lists(Rounds):
    """Returns its state itself instead of a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"rounds": [0]}

    def _begin(self) -> list[int]:
        self.rounds = self.state["rounds"][0]
        order = super()._begin()
        self.state["rounds"][0] = self.rounds
        return order

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class StatefulDistributed:
    """torchdata's sampler, made for ranks."""

    def __new__(cls) -> Any:
        made = pytest.importorskip("torchdata.stateful_dataloader.sampler").StatefulDistributedSampler
        return made(range(SAMPLES), 1, 0)


SAMPLERS = [Rounds, Place, Batches, Lists, StatefulDistributed]


def make(paths: list[str], user_code: bool, kind: Any, **options: Any) -> DDLPLoader:
    sampler: dict[str, Any] = dict(batch_sampler=kind()) if kind is Batches else dict(sampler=kind(), batch_size=4)
    return DDLPLoader(Draws() if user_code else numbered(paths), **sampler, **options)


def as_saved(loader: DDLPLoader) -> dict[str, Any]:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize(
    ("user_code", "kind", "before", "taken"),
    pairwise([False, True], SAMPLERS, ["nothing", "an epoch", "an epoch left early"], [(1, 0), (5, 2), (11, 0)]),
)
@pytest.mark.some(8)
def test_the_order_goes_on(paths, taken, before, kind, user_code):
    """Over two more processes, and with the epoch after it. A slow run has each pair of these values."""
    take, workers = taken
    torch.manual_seed(7)
    loader = make(paths, user_code, kind, num_workers=workers)
    if before == "an epoch":
        list(loader)
    elif before != "nothing":
        next(left := iter(loader))
        del left
    state = as_saved(loader)  # between two epochs, or in the unfinished one
    loader.set_epoch(1)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(take)]
    middle = as_saved(loader)
    expected = order([*got, *iterator]), order(list(loader))
    assert expected[0] != expected[1] or kind is StatefulDistributed
    assert sorted(sum(expected[0], [])) == list(range(SAMPLES))

    loader = make(paths, user_code, kind, num_workers=2 - workers)
    loader.load_state_dict(middle)
    iterator = iter(loader)
    if take == 5:
        got += [next(iterator), next(iterator)]
        middle = as_saved(loader)
        loader = make(paths, user_code, kind, num_workers=workers)
        loader.load_state_dict(middle)
        iterator = iter(loader)
    assert (order([*got, *iterator]), order(list(loader))) == expected

    if before == "an epoch":
        loader = make(paths, user_code, kind, num_workers=workers)
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert (order(list(loader)), order(list(loader))) == expected


def test_as_torchdata(paths):
    """The rest of the epoch after a resume, and the next epoch."""
    theirs = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def resumed(loader: Any, **options: Any) -> tuple[list[Any], list[Any]]:
        first = loader(Draws(), 4, sampler=Place(), **options)
        list(first)
        iterator = iter(first)
        for _ in range(3):
            next(iterator)
        second = loader(Draws(), 4, sampler=Place(), **options)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        return order(list(second)), order(list(second))

    assert resumed(DDLPLoader) == resumed(theirs)


class Other(Place):
    """Cannot repeat its order."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = 50


@pytest.mark.parametrize("user_code", [False, True])
def test_a_sampler_that_gives_another_order_is_told(paths, user_code):
    loader = make(paths, user_code, Place)
    next(iter(loader))
    other = make(paths, user_code, Other)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="Other does not give the order again that it gave"):
        iter(other).__next__()


class Raises(Rounds):
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not now")


@pytest.mark.parametrize("user_code", [False, True])
def test_a_state_dict_that_raises_ends_no_training(paths, user_code):
    assert len(list(make(paths, user_code, Raises))) == 11
