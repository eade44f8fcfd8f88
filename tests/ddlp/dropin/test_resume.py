"""Resuming in mid-epoch: no sample is lost or repeated, and the content is the same, whatever else has changed."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from ddlp import DDLPLoader
from tests.covering import pairwise
from tests.ddlp.dropin.beside import seed_all
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


@pytest.mark.parametrize(("before", "after", "workers"), pairwise(STRATEGIES, STRATEGIES, [0, 2]))
@pytest.mark.some(12)
def test_any_strategy_goes_on_after_any(paths, engine, before, after, workers):
    """A slow run has each pair of these values."""

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


def test_results_in_any_order_go_on():
    def make(**options):
        return DDLPLoader(Draws(), 4, shuffle=True, num_workers=2, in_order=False, **options)

    expected = samples(whole_epoch(make, 0))
    assert samples(epoch_in_parts(make, 0, [(3, {}), (3, {}), (0, {})])) == expected


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
