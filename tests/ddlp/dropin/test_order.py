"""Samplers and generators: DataLoader's order under the same seed, and the same draws from the same generators."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ddlp import DDLPLoader, ImageArrays
from ddlp.sampling.checkpoint import sampler_of
from tests.covering import pairwise
from tests.ddlp.dropin.small_sets import (
    RANDOM,
    SAMPLES,
    BeginsAnew,
    Counting,
    CountingBatches,
    Draws,
    by_target,
    numbered,
    order,
)

KINDS = (DataLoader, DDLPLoader)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLERS = {
    "sequential": lambda d: dict(sampler=SequentialSampler(d)),
    "random": lambda d: dict(shuffle=True),
    "random, own generator": lambda d: dict(shuffle=True, generator=seeded(3)),
    "random, sampler's generator": lambda d: dict(sampler=RandomSampler(d, generator=seeded(4)), generator=seeded(3)),
    "replacement": lambda d: dict(sampler=RandomSampler(d, replacement=True, num_samples=70, generator=seeded(5))),
    "more than all": lambda d: dict(sampler=RandomSampler(d, num_samples=90)),
    "subset": lambda d: dict(sampler=SubsetRandomSampler(range(5, 30))),
    "subset, tensors": lambda d: dict(sampler=SubsetRandomSampler(torch.arange(5, 30))),
    "weighted": lambda d: dict(sampler=WeightedRandomSampler(np.arange(1, SAMPLES + 1), 50, replacement=True)),
    "distributed": lambda d: dict(sampler=DistributedSampler(d, 3, 1, shuffle=True)),
    "batches": lambda d: dict(batch_sampler=BatchSampler(RandomSampler(d), 5, drop_last=True)),
    "batches of a list": lambda d: dict(batch_sampler=[[1, 2], [3], [40, 0, 5, 5]]),
    "own": lambda d: dict(sampler=Counting(SAMPLES)),
    "own batches": lambda d: dict(batch_sampler=CountingBatches(SAMPLES)),
    "tensors": lambda d: dict(sampler=[torch.tensor(k) for k in (3, 1, 2)]),
    "negative": lambda d: dict(sampler=[-1, 0, -SAMPLES]),
    "one by one": lambda d: dict(batch_size=None, shuffle=True),
    "one by one, own": lambda d: dict(batch_size=None, sampler=Counting(SAMPLES)),
}


def arguments_of(name: str, dataset: Any) -> dict[str, Any]:
    found = SAMPLERS[name](dataset)
    if "batch_sampler" not in found and "batch_size" not in found:
        found["batch_size"] = 4
    return found


def targets(loader: DataLoader) -> list[Any]:
    return [b[1].tolist() if isinstance(b[1], torch.Tensor) else b[1] for b in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.some(8)
def test_the_order_and_the_generators_are_dataloaders(paths, name, workers):
    seen = []
    for kind in KINDS:
        dataset = numbered(paths)
        arguments = arguments_of(name, dataset)
        # DataLoader's order and draws are the same with one worker: that is one fork fewer in each epoch.
        loader = kind(dataset, **arguments, num_workers=min(workers, 1) if kind is DataLoader else workers)
        torch.manual_seed(17)
        epochs = []
        for epoch in range(2):
            sampler = arguments.get("sampler")
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            epochs.append(targets(loader))
            epochs.append(torch.get_rng_state().numpy().tobytes())
            if "generator" in arguments:
                epochs.append(arguments["generator"].get_state().numpy().tobytes())
        assert len(loader) == len(epochs[0])
        seen.append(epochs)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("sampler", [Counting, CountingBatches])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_users_is_read_no_further_than_dataloader_reads_it(paths, workers, sampler):
    seen = []
    for kind in KINDS:
        own = sampler(SAMPLES)
        given = dict(sampler=own, batch_size=3) if sampler is Counting else dict(batch_sampler=own)
        loader = kind(numbered(paths), **given, num_workers=workers)
        iterator = iter(loader)
        drawn = [own.drawn]
        for _ in range(len(loader)):
            next(iterator)
            drawn.append(own.drawn)
        assert next(iterator, None) is None
        seen.append(drawn)
    assert seen[0] == seen[1]


class Eager:
    """A sampler that draws from torch's and numpy's global generators when iter() is called."""

    def __init__(self) -> None:
        self.begun = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        self.begun += 1
        return iter((torch.randperm(SAMPLES) + np.random.randint(5)).remainder(SAMPLES).tolist())


BEGUN = {
    "sampler": lambda: dict(batch_size=4, sampler=Eager()),
    "batch sampler": lambda: dict(batch_sampler=BeginsAnew(4)),
    "one by one": lambda: dict(batch_size=None, sampler=BeginsAnew(None)),
}


@pytest.mark.parametrize("name", BEGUN)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("user_code", [False, True])
def test_a_sampler_is_begun_as_often_as_dataloader_begins_it_and_when(paths, user_code, workers, name):
    """With workers torch begins it twice, and draws its base seed in between. The second order counts."""
    seen = []
    for kind in KINDS:
        loader = kind(Draws() if user_code else numbered(paths), num_workers=workers, **BEGUN[name]())
        torch.manual_seed(1)
        np.random.seed(1)
        seen.append([targets(loader)])
        if not user_code:  # in DataLoader, user code's samples draw from the same generator
            seen[-1].append(torch.get_rng_state().numpy().tobytes())
        assert sampler_of(loader).begun == (2 if workers and name != "sampler" else 1)  # a BatchSampler begins its own late
    assert seen[0] == seen[1]


def test_manual_seed_alone_makes_an_epoch_repeatable(paths, engine):
    for strategy in ("cpu", "ordered", "wrr"):
        seen = []
        for _ in range(2):
            torch.manual_seed(23)
            loader = DDLPLoader(numbered(paths, RANDOM), 4, shuffle=True, strategy=strategy, spool=engine)
            epochs = [list(loader), list(loader)]
            seen.append([by_target(epoch) for epoch in epochs])
            if strategy != "wrr":
                assert order(epochs[0]) != order(epochs[1])
        for first, second in zip(*seen, strict=True):
            assert all(torch.equal(first[k], second[k]) for k in first)


BROKEN_OFF = {
    "shuffled": lambda d, g: RandomSampler(d, generator=g),
    "replacement": lambda d, g: RandomSampler(d, replacement=True, num_samples=170, generator=g),
    "more than all": lambda d, g: RandomSampler(d, num_samples=3 * SAMPLES + 4, generator=g),
    "all, twice": lambda d, g: RandomSampler(d, num_samples=2 * SAMPLES, generator=g),
}


@pytest.mark.parametrize(
    ("name", "strategy", "drop_last", "workers", "after"),
    pairwise(BROKEN_OFF, ["cpu", "wrr"], [False, True], [0, 2], [0, 1, 6, 9, 10, 11, 20, 21, 50]),
)
@pytest.mark.some(12)
def test_a_broken_off_epoch_leaves_the_generator_where_dataloader_does(
    paths, engine, name, strategy, drop_last, workers, after
):
    """A slow run has each pair of these values."""
    seen = []
    for kind in KINDS:
        generator, dataset = seeded(3), numbered(paths)
        ours = dict(strategy=strategy, spool=None if strategy == "cpu" else engine) if kind is DDLPLoader else {}
        ours |= dict(sampler=BROKEN_OFF[name](dataset, generator), drop_last=drop_last)
        loader = kind(dataset, 4, num_workers=workers, generator=generator, **ours)
        iterator = iter(loader)
        got = [batch[1].tolist() for batch in itertools.islice(iterator, after)]
        seen.append((got if strategy == "cpu" else len(got), generator.get_state().numpy().tobytes()))
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_as_long_as_a_training_begins_at_once(paths, workers):
    """A million million draws: DataLoader reads them a block at a time."""
    seen = []
    for kind in KINDS:
        dataset = numbered(paths)
        sampler = RandomSampler(dataset, replacement=True, num_samples=10**12, generator=seeded(3))
        loader = kind(dataset, 4, sampler=sampler, num_workers=workers)
        iterator = iter(loader)
        seen.append([next(iterator)[1].tolist() for _ in range(30)])
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    assert seen[0] == seen[1]
    assert loader.report().batches_cpu == 30 and len(loader) == 25 * 10**10


class Endless:
    """A user's batch sampler that never ends."""

    def __iter__(self) -> Any:
        for k in itertools.count():
            yield [(4 * k + j) % SAMPLES for j in range(4)]


@pytest.mark.parametrize("strategy", ["cpu", "ordered", "wrr"])
def test_an_endless_sampler_piles_nothing_up(paths, engine, strategy):
    spool = None if strategy == "cpu" else engine
    loader = DDLPLoader(numbered(paths), batch_sampler=Endless(), num_workers=2, strategy=strategy, spool=spool, timeout=20)
    iterator = iter(loader)
    for count in range(1, 200):
        missing = iterator.executor.ledger.delivered.first_missing()
        next(iterator)
        plan = iterator.executor.resources.plan
        assert len(plan) == count + 4
        assert set(plan._batches) == {0, *range(missing, count + 4)}  # the batches in between were delivered, and dropped
        assert missing == count - 1 or strategy == "wrr"
    state = loader.state_dict()
    assert state["drawn"] == count + 4 and len(state["pending"]) == 4
    iterator._shutdown_workers()


class Lists:
    """Rows of an array, by one index or by a list of them, as DataLoader's bulk loading asks."""

    def __init__(self) -> None:
        self.images = np.random.default_rng(2).integers(0, 256, (SAMPLES, 6, 5, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: Any) -> Any:
        return self.images[index], index

    def __ddlp__(self) -> Any:
        return ImageArrays(self.images, list(range(SAMPLES)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_without_batches_asks_the_data_set_for_lists(workers):
    seen = []
    for kind in KINDS:
        sampler = BatchSampler(SequentialSampler(range(SAMPLES)), 4, False)
        batches = list(kind(Lists(), batch_size=None, sampler=sampler, num_workers=workers))
        seen.append([(images.tolist(), [int(k) for k in indices]) for images, indices in batches])
    assert seen[0] == seen[1] and len(seen[0]) == 11 and len(seen[0][0][1]) == 4
    assert "batch_sampler=" in DDLPLoader(Lists(), batch_size=None, sampler=sampler).explain()


@pytest.mark.parametrize("workers", [0, 2])
def test_no_prefetch_is_the_least(paths, workers):
    """With torch's own workers no batch would ever be begun."""
    options = dict(num_workers=workers, prefetch_factor=0) if workers else {}
    own = Counting(SAMPLES)
    loader = DDLPLoader(numbered(paths), 4, sampler=own, **options)
    iterator = iter(loader)
    assert own.drawn == 0
    next(iterator)
    assert own.drawn == 4
    assert len(list(iterator)) == len(loader) - 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_batch_is_the_users_batch_samplers(paths, engine, workers):
    """All rates are in whole batches: they are compared with the times of whole batches."""

    class Eights(Counting):
        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Any:
            yield from ([k % SAMPLES for k in range(start, start + 8)] for start in range(0, 48, 8))

    loader = DDLPLoader(numbered(paths), batch_sampler=Eights(48), num_workers=workers, strategy="wrr", spool=engine)
    for _ in range(2):
        iterator = iter(loader)
        if workers:
            assert iterator.executor.monitor.full_batch == 8
        next(iterator)
        assert iterator.executor.monitor.full_batch == 8
        state = loader.state_dict()
        list(iterator)
    loader.load_state_dict(state)
    assert sum(1 for _ in loader) == 5 and loader._parts.life.rates.full_batch == 8
    host = loader._parts.life.rates.host
    assert loader.report().rate_cpu == pytest.approx(8 * host.parallel / host.seconds)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("workers", [0, 2])
def test_mte_with_a_ratio_has_one_order(paths, engine, ratio, workers):
    def epoch(loader: DataLoader) -> list[Any]:
        torch.manual_seed(5)
        return list(loader)

    loader = DDLPLoader(
        numbered(paths), batch_size=4, shuffle=True, num_workers=workers, strategy="mte", ratio=ratio, spool=engine
    )
    expected = order(epoch(DataLoader(numbered(paths), batch_size=4, shuffle=True)))
    split = round(len(expected) * ratio)
    for _ in range(2):
        assert order(epoch(loader)) == expected[:split] + expected[split:][::-1]
