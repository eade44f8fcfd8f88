"""A run that was broken off at any place of an epoch, beside the one that was not: samples, order, the workers' base seeds."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info
from torchvision import transforms

from ddlp import DDLPLoader
from tests.covering import pairwise
from tests.ddlp.dropin.beside import plain, seed_all
from tests.ddlp.dropin.small_sets import RANDOM, SAMPLES, Draws, numbered

BATCH = 8
BATCHES = 6


class Noted:
    """What worker_init_fn has seen in this process."""

    base_seed = 0

    @staticmethod
    def note(worker: int) -> None:
        Noted.base_seed = torch.initial_seed() - worker


class Step:
    """A step that ddlp does not know. It draws, and shows what worker_init_fn has seen."""

    def __call__(self, image: Any) -> tuple[torch.Tensor, float, int]:
        return torch.from_numpy(np.array(image)), torch.rand(()).item(), Noted.base_seed


class Own(Draws):
    """User code with indices."""

    def __getitem__(self, index: int) -> Any:
        drawn, _ = super().__getitem__(index)
        return drawn, index, Noted.base_seed


class Shuffling(IterableDataset):
    """A stream without a state, shared among the workers, which shuffles its part and draws for each number."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        numbers = list(range(SAMPLES) if info is None else range(info.id, SAMPLES, info.num_workers))
        random.shuffle(numbers)
        for number in numbers:
            yield number, np.random.rand(), Noted.base_seed


CUT = transforms.Compose([transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), Step()])
KINDS = {
    "images": lambda paths: numbered(paths, RANDOM),
    "a cut": lambda paths: numbered(paths, CUT),
    "own": lambda paths: Own(),
    "stream": lambda paths: Shuffling(),
}
WORKERS = {"none": {}, "two": dict(num_workers=2), "two that stay": dict(num_workers=2, persistent_workers=True)}
PLACES = {  # (epochs before, batches of the epoch that is broken off; None: it has not begun)
    "before the first": (0, None), "begun": (0, 0), "in the first": (0, 2), "in a later one": (1, 3),
    "with the last batch": (1, BATCHES), "between two": (1, None), "between later ones": (2, None),
}  # fmt: skip


def trained(batches: Any, count: int | None = None) -> list[Any]:
    """The batches; the model draws after each."""
    got = []
    for batch in batches if count is None else (next(batches) for _ in range(count)):
        got.append(plain(batch))
        torch.rand(3)
    return got


def generators(loader: DDLPLoader) -> list[Any]:
    own = None if loader.generator is None else loader.generator.get_state()
    return [torch.get_rng_state(), np.random.get_state(), random.getstate(), own]


def restore(loader: DDLPLoader, states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    if loader.generator is not None:
        loader.generator.set_state(states[3])


@pytest.mark.parametrize(
    ("kind", "strategy", "workers", "shuffle", "drop_last", "seed", "own_generator", "place", "restored"),
    pairwise(
        KINDS, ["cpu", "ordered"], WORKERS, [False, True], [False, True], [None, 5], [False, True], PLACES, [True, False],
        where=lambda kind, strategy, workers, shuffle, drop_last, seed, own, place, restored: (
            (strategy == "cpu" or kind in ("images", "a cut"))
            and (kind != "stream" or not (shuffle or drop_last or seed))
            # Such a stream draws from the training process's generators, of which the loader's state has none.
            and (restored or kind != "stream" or workers != "none")
        ),
    ),
)  # fmt: skip
@pytest.mark.some(14)
def test_a_run_that_goes_on_is_the_unbroken_one(
    paths, engine, kind, strategy, workers, shuffle, drop_last, seed, own_generator, place, restored
):
    """``restored``: the generators are put back too, as the checkpoint of a whole training run does it.

    If they are not, a generator of the loader's own goes on nevertheless. Of torch's, the epoch that comes next does.
    A slow run has each pair of these values.
    """

    def make() -> DDLPLoader:
        return DDLPLoader(
            KINDS[kind](paths), BATCH, shuffle=shuffle or None, drop_last=drop_last, seed=seed, strategy=strategy,
            worker_init_fn=Noted.note, spool=None if strategy == "cpu" else engine,
            generator=torch.Generator().manual_seed(3) if own_generator else None, **WORKERS[workers],
        )  # fmt: skip

    before, batches = PLACES[place]
    whole = BATCHES - drop_last
    batches = None if batches is None else min(batches, whole)
    seed_all(1)
    loader = make()
    for _ in range(before):
        trained(loader)
    iterator = None if batches is None else iter(loader)
    trained(iterator, batches or 0)
    state, states = json.dumps(loader.state_dict()), generators(loader)
    expected = [trained(loader if iterator is None else iterator), trained(loader), trained(loader)]
    assert [len(epoch) for epoch in expected] == [whole - (batches or 0), whole, whole]

    seed_all(2)
    loader = make()
    loader.load_state_dict(json.loads(state))
    if restored:
        restore(loader, states)
    found = [trained(loader), trained(loader), trained(loader)]
    same = 3 if restored or own_generator else 1
    assert found[:same] == expected[:same]


@pytest.mark.parametrize("batches", [0, 10, 11, 33, 34])
@pytest.mark.parametrize(("workers", "workers_then"), [(0, 0), (0, 2), (2, 0)])
@pytest.mark.parametrize(("kind", "strategy"), [("images", "ordered"), ("own", "cpu")])
@pytest.mark.some(3)
def test_an_order_that_is_drawn_piece_by_piece(paths, engine, kind, strategy, workers, workers_then, batches):
    """A RandomSampler with replacement draws 32 indices at a time from the user's generator. Two resumes."""

    def make(workers: int) -> DDLPLoader:
        data = numbered(paths, RANDOM) if kind == "images" else Own()
        sampler = RandomSampler(data, True, 100, torch.Generator().manual_seed(3))
        spool = None if strategy == "cpu" else engine
        return DDLPLoader(data, 3, sampler=sampler, num_workers=workers, strategy=strategy, spool=spool)

    def order(batches: Any) -> list[int]:
        return [int(index) for batch in batches for index in batch[1]]

    def resumed(state: str) -> DDLPLoader:
        loader = make(workers_then)
        loader.load_state_dict(json.loads(state))
        return loader

    loader = make(workers)
    iterator = iter(loader)
    order(itertools.islice(iterator, batches))
    state = json.dumps(loader.state_dict())
    expected = [order(iterator), order(loader), order(loader)]
    loader = resumed(state)
    iterator = iter(loader)
    first = order(itertools.islice(iterator, min(3, 34 - batches)))
    state = json.dumps(loader.state_dict())
    assert [first + order(iterator), order(loader), order(loader)] == expected
    loader = resumed(state)
    assert [first + order(loader), order(loader), order(loader)] == expected
