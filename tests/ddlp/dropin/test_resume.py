"""Resuming in mid-epoch: no sample is lost or repeated, and the content is the same, whatever else has changed."""

from __future__ import annotations

import io
import itertools
import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from ddlp import DDLPLoader
from tests.covering import covering
from tests.ddlp.dropin.small_sets import (
    RANDOM,
    SAMPLES,
    BeginsAnew,
    Counting,
    CountingBatches,
    Draws,
    DrawsInBatches,
    Stream,
    numbered,
)

STRATEGIES = ("cpu", "csd", "mte", "wrr", "ordered")


class Shuffled(Counting):
    """A user's sampler that draws from one of the global generators, some numbers at a time."""

    def __init__(self, source: str) -> None:
        super().__init__(SAMPLES)
        self.source = source

    def __iter__(self) -> Any:
        left = list(range(SAMPLES))
        draw = {
            "torch": lambda n: int(torch.randint(n, ())),
            "numpy": lambda n: int(np.random.randint(n)),
            "random": random.randrange,
        }[self.source]
        if self.source == "random":
            random.shuffle(left)
            yield from left
        else:
            order = [left.pop(draw(len(left))) for _ in range(SAMPLES)]
            yield from order


class OwnEpochs(Counting):
    """A user's sampler whose order follows from set_epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(np.random.default_rng(self.epoch).permutation(self.count).tolist())


ORDERS = {
    "sequential": lambda d: dict(batch_size=4),
    "shuffled": lambda d: dict(batch_size=4, shuffle=True),
    "own generator": lambda d: dict(batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "weighted": lambda d: dict(batch_size=4, sampler=WeightedRandomSampler(np.arange(1, 42), 30)),
    "distributed": lambda d: dict(batch_size=4, sampler=DistributedSampler(d, 2, 1)),
    "replacement": lambda d: dict(batch_size=4, sampler=RandomSampler(d, True, 50)),
    "replacement, own generator": lambda d: dict(batch_size=4, sampler=RandomSampler(d, True, 50, torch.Generator())),
    "more than all": lambda d: dict(batch_size=4, sampler=RandomSampler(d, False, 90, torch.Generator())),
    "batches": lambda d: dict(batch_sampler=BatchSampler(RandomSampler(d), 5, True)),
    "own": lambda d: dict(batch_size=4, sampler=Counting(SAMPLES)),
    "own, torch": lambda d: dict(batch_size=4, sampler=Shuffled("torch")),
    "own, numpy": lambda d: dict(batch_size=4, sampler=Shuffled("numpy")),
    "own, random": lambda d: dict(batch_size=4, sampler=Shuffled("random")),
    "own, epochs": lambda d: dict(batch_size=4, sampler=OwnEpochs(SAMPLES)),
    "own batches": lambda d: dict(batch_sampler=CountingBatches(SAMPLES)),
    "begins anew": lambda d: dict(batch_sampler=BeginsAnew(4)),
    "begins anew, one by one": lambda d: dict(batch_size=None, sampler=BeginsAnew(None)),
    "repeating": lambda d: dict(batch_size=4, sampler=[3, 5, 3, 3, 7, 5, 1, 3, 3, 9, 5] * 2),
    "one by one": lambda d: dict(batch_size=None, shuffle=True),
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def samples(batches: list[Any]) -> Counter:
    """Count the delivered samples by all their bits."""
    found: Counter = Counter()
    for images, targets in batches:
        whole = isinstance(targets, torch.Tensor)
        for image, target in zip(images if whole else [images], targets.tolist() if whole else [targets], strict=True):
            found[target, image.numpy().tobytes()] += 1
    return found


def epoch_in_parts(make: Any, epoch: int, parts: list[tuple[int, dict[str, Any]]]) -> list[Any]:
    """The epoch's batches, delivered by several loaders in turn, each as if in a new process."""
    got, text = [], ""
    for number, (take, options) in enumerate(parts):
        seed_all(50 + number)  # the result may not depend on the generators' states
        loader = make(**options)
        if text:
            loader.load_state_dict(json.loads(text))
            assert json.loads(json.dumps(loader.state_dict())) == json.loads(text)
        else:
            for e in range(epoch + 1):
                loader.set_epoch(e)
                if e < epoch:
                    next(iter(loader))
        iterator = iter(loader)
        for _ in range(take):
            got.append(next(iterator))
        if number == len(parts) - 1:
            got += list(iterator)
        text = json.dumps(loader.state_dict())
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    assert loader.state_dict()["epoch"] == epoch + 1 and loader.state_dict()["delivered"] == []
    return got


def whole_epoch(make: Any, epoch: int, **options: Any) -> list[Any]:
    seed_all(50)
    loader = make(**options)
    for e in range(epoch + 1):
        loader.set_epoch(e)
        if e < epoch:
            next(iter(loader))
    return list(loader)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("user_code", [None, Draws, DrawsInBatches])
@pytest.mark.some(7)
def test_any_order_goes_on(paths, name, user_code):
    def make(**options):
        dataset = numbered(paths, RANDOM) if user_code is None else user_code()
        return DDLPLoader(dataset, **ORDERS[name](dataset), **options)

    expected = samples(whole_epoch(make, 1))
    parts = [(2, {}), (1, dict(num_workers=2)), (0, {}), (1, dict(num_workers=1, prefetch_factor=3)), (0, {})]
    assert samples(epoch_in_parts(make, 1, parts)) == expected


@pytest.mark.parametrize(("before", "after", "workers"), covering(STRATEGIES, STRATEGIES, [0, 2]))
@pytest.mark.some(12)
def test_any_strategy_goes_on_after_any(paths, engine, before, after, workers):
    """A quick run has each pair of these values, a slow one all combinations."""

    def make(strategy="cpu", **options):
        dataset = numbered(paths, RANDOM)
        spool = None if strategy == "cpu" else engine
        return DDLPLoader(dataset, 4, shuffle=True, strategy=strategy, spool=spool, **options)

    expected = samples(whole_epoch(make, 0))
    parts = [
        (3, dict(strategy=before, num_workers=workers)), (3, dict(strategy=after, num_workers=2 - workers)),
        (0, dict(strategy=before)),
    ]
    assert samples(epoch_in_parts(make, 0, parts)) == expected


@pytest.mark.parametrize("block", [8, 1 << 16])
@pytest.mark.parametrize(("before", "after"), [("cpu", "wrr"), ("wrr", "cpu"), ("mte", "cpu"), ("cpu", "ordered")])
@pytest.mark.some(4)
def test_a_long_sampler_goes_on_however_it_is_drawn(paths, engine, monkeypatch, before, after, block):
    """The sampler is read all at once when the epoch begins, or block by block."""
    monkeypatch.setattr("ddlp.sampling.epoch_plan._BLOCK", block)

    def make(strategy="cpu"):
        dataset = numbered(paths, RANDOM)
        sampler = RandomSampler(dataset, True, 170, torch.Generator().manual_seed(6))
        return DDLPLoader(dataset, 4, sampler=sampler, strategy=strategy, spool=None if strategy == "cpu" else engine)

    expected = samples(whole_epoch(make, 0))
    parts = [(9, dict(strategy=before)), (7, dict(strategy=after)), (0, dict(strategy=before))]
    assert samples(epoch_in_parts(make, 0, parts)) == expected


@pytest.mark.parametrize("name", ["shuffled", "replacement", "more than all"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_goes_on_as_well(paths, name, workers):
    """With its state restored from the checkpoint, the generator ends where it ends after a whole epoch."""

    def make(generator):
        dataset = numbered(paths)
        samplers = {
            "shuffled": lambda: RandomSampler(dataset, generator=generator),
            "replacement": lambda: RandomSampler(dataset, True, 170, generator),
            "more than all": lambda: RandomSampler(dataset, False, 90, generator),
        }
        return DDLPLoader(dataset, 4, sampler=samplers[name](), num_workers=workers)

    one, other = torch.Generator().manual_seed(2), torch.Generator()
    loader = make(one)
    iterator = iter(loader)
    for _ in range(9):
        next(iterator)
    state = loader.state_dict()
    other.set_state(one.get_state())
    list(iterator)
    loader = make(other)
    loader.load_state_dict(state)
    list(loader)
    assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.parametrize("strategy", ["cpu", "ordered"])
def test_the_order_goes_on(paths, engine, strategy):
    def make(**options):
        spool = None if strategy == "cpu" else engine
        return DDLPLoader(numbered(paths), 4, shuffle=True, strategy=strategy, spool=spool, **options)

    seed_all(50)
    expected = [b[1].tolist() for b in make()]
    assert [b[1].tolist() for b in epoch_in_parts(make, 0, [(4, {}), (3, {}), (0, {})])] == expected


AFTER = {
    "shuffled": lambda: dict(shuffle=True),
    "own generator": lambda: dict(shuffle=True, generator=torch.Generator().manual_seed(2)),
    "own generator, whole batches": lambda: dict(shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(2)),
    "own, torch": lambda: dict(sampler=Shuffled("torch")),
}


def trained(batches: Any, count: int | None = None) -> list[Any]:
    """The batches; the model draws random numbers after each."""
    got = []
    for batch in itertools.islice(batches, count):
        got.append(batch)
        torch.rand(3)
    return got


@pytest.mark.parametrize(
    ("user_code", "name", "workers", "take"), covering([False, True], AFTER, ["none", "two", "one that stays"], [1, 9, 10, 11])
)
@pytest.mark.some(8)
def test_the_epochs_after_a_resumed_one_are_the_same(paths, user_code, name, workers, take):
    """The generators are restored once, as a checkpoint of a whole training run does it.

    A quick run has each pair of these values, a slow one all combinations.
    """
    options = {"none": {}, "two": dict(num_workers=2), "one that stays": dict(num_workers=1, persistent_workers=True)}[workers]

    def make() -> DDLPLoader:
        return DDLPLoader(Draws() if user_code else numbered(paths, RANDOM), 4, **AFTER[name](), **options)

    seed_all(1)
    loader = make()
    trained(loader)
    iterator = iter(loader)
    take = min(take, len(loader))
    trained(iterator, take)
    state = json.dumps(loader.state_dict())
    generators = [g.get_state() for g in (torch.default_generator, loader.generator) if g is not None]
    expected = [trained(epoch) for epoch in (iterator, loader, loader)]

    seed_all(2)
    loader = make()
    loader.load_state_dict(json.loads(state))
    for generator, then in zip((torch.default_generator, loader.generator), generators, strict=False):
        generator.set_state(then)
    found = [trained(epoch) for epoch in (loader, loader, loader)]
    assert [len(epoch) for epoch in expected] == [len(loader) - take, len(loader), len(loader)]
    for ours, theirs in zip(found, expected, strict=True):
        assert [b[1].tolist() for b in ours] == [b[1].tolist() for b in theirs]
        assert all(torch.equal(a[0], b[0]) for a, b in zip(ours, theirs, strict=True))

@pytest.mark.parametrize("user_code", [False, True])
def test_persistent_workers_go_on(paths, user_code):
    def make(**options):
        dataset = Draws() if user_code else numbered(paths, RANDOM)
        return DDLPLoader(dataset, 4, sampler=Shuffled("torch"), num_workers=2, persistent_workers=True, **options)

    expected = samples(whole_epoch(make, 1))
    assert samples(epoch_in_parts(make, 1, [(3, {}), (2, {}), (0, {})])) == expected
    loader = make()
    list(loader)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(4)]
    state = loader.state_dict()
    loader.load_state_dict(state)  # in the same loader, with its persistent workers
    whole = samples(first + list(loader))
    assert sum(whole.values()) == SAMPLES and max(whole.values()) == 1
    assert len({target for target, _ in whole}) == SAMPLES


def test_results_in_any_order_go_on():
    def make(**options):
        return DDLPLoader(Draws(), 4, shuffle=True, num_workers=2, in_order=False, **options)

    expected = samples(whole_epoch(make, 0))
    assert samples(epoch_in_parts(make, 0, [(3, {}), (3, {}), (0, {})])) == expected


@pytest.mark.parametrize("user_code", [False, True])
@pytest.mark.parametrize("name", ["shuffled", "own, torch"])
def test_the_generators_are_left_alone(paths, name, user_code):
    """The state holds the order and the seed, which iter() had drawn before the state was taken."""

    def make() -> DDLPLoader:
        return DDLPLoader(Draws() if user_code else numbered(paths), 4, **AFTER[name]())

    def draws() -> list[Any]:
        return [torch.rand(()).item(), np.random.rand(), random.random()]

    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    seed_all(3)
    expected = draws()
    seed_all(3)
    loader = make()
    loader.load_state_dict(state)
    assert len(list(loader)) == 10 and draws() == expected


def test_states_can_be_saved_and_foreign_ones_are_refused(paths):
    loader = DDLPLoader(numbered(paths), 4, shuffle=True)
    fresh = loader.state_dict()
    next(iter(loader))
    for state in (fresh, loader.state_dict()):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        assert torch.load(buffer, weights_only=True) == state == json.loads(json.dumps(state))
    for wrong in ({}, {"format": 99}, None, [1]):
        with pytest.raises(ValueError, match="not a state of DDLPLoader"):
            loader.load_state_dict(wrong)
    list(loader)
    assert loader.state_dict()["epoch"] == 2


@pytest.mark.parametrize("options", [{}, dict(num_workers=1), dict(num_workers=1, persistent_workers=True)])
def test_a_stream_is_over_when_its_iterator_says_so(options):
    loader = DDLPLoader(Stream(), 4, **options)
    for epoch in range(2):
        iterator = iter(loader)
        next(iterator)
        states = [loader.state_dict()]
        assert len(list(iterator)) == 4
        states.append(loader.state_dict())
        assert [state["epoch"] for state in states] == [epoch, epoch + 1]
    for state, left in zip(states, [4, 5], strict=True):
        other = DDLPLoader(Stream(), 4, **options)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert len(list(other)) == left and other.report().epoch == state["epoch"]


def test_skipping_batches_as_frameworks_do(paths, engine):
    loader = DDLPLoader(numbered(paths), 4, strategy="ordered", spool=engine)
    plain = list(DataLoader(numbered(paths), 4))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert next(iterator)[1].tolist() == plain[3][1].tolist()
