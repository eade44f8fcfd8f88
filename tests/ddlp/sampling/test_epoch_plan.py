"""The order of an epoch as an array: the same as torch's, element for element and draw for draw."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ddlp import ImageArrays
from ddlp.sampling import sampler_order as order
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.translate.datasets import translate_dataset

N = 23
DATA = ImageArrays(np.zeros((N, 4, 4), dtype=np.uint8), list(range(N)))


def random(generator, **options):
    return RandomSampler(DATA, generator=generator, **options)


def distributed(rank, shuffle, drop_last, replicas=4):
    sampler = DistributedSampler(DATA, replicas, rank, shuffle=shuffle, seed=3, drop_last=drop_last)
    sampler.set_epoch(5)
    return sampler


SAMPLERS = {
    "sequential": lambda g: SequentialSampler(DATA),
    "random": random,
    "random, more": lambda g: random(g, num_samples=2 * N + 5),
    "random, twice": lambda g: random(g, num_samples=2 * N),
    "random, fewer": lambda g: random(g, num_samples=7),
    "replacement": lambda g: random(g, replacement=True, num_samples=70),
    "replacement, fewer": lambda g: random(g, replacement=True, num_samples=5),
    "replacement, many": lambda g: random(g, replacement=True, num_samples=40_000),
    "subset": lambda g: SubsetRandomSampler([4, 9, 1, 22, -1], generator=g),
    "weighted": lambda g: WeightedRandomSampler([1.0] * N, 40, generator=g),
    **{
        f"distributed {rank} {shuffle} {drop}": lambda g, one=(rank, shuffle, drop): distributed(*one)
        for rank in (0, 3) for shuffle in (False, True) for drop in (False, True)
    },
    "more ranks than samples": lambda g: distributed(49, True, False, replicas=60),
}


def generator():
    return torch.Generator().manual_seed(4)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("given", [True, False], ids=["own generator", "torch's generator"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.some(80)
def test_batches_and_draws_are_torchs_own(name, given, drop_last, size, at_once):
    def after(run):
        torch.manual_seed(9)
        own = generator() if given else None
        batches = run(BatchSampler(SAMPLERS[name](own), size, drop_last))
        return batches, torch.get_rng_state(), generator().get_state() if own is None else own.get_state()

    def ours(sampler):
        plan = EpochPlan(sampler, translate_dataset(DATA), whole=True, batched=True, at_once=at_once)
        plan.read_as_far_as(10**9)
        return [plan.indices(k) for k in range(len(plan))]

    expected, found = after(list), after(ours)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_draw_comes_before_torch_makes_it(name):
    sampler, own = None, generator()
    sampler = SAMPLERS[name](own)
    pieces = order.begin(sampler, len(sampler))
    assert torch.equal(own.get_state(), generator().get_state())
    taken = np.zeros(0, np.int64)
    while len(taken) < len(sampler):
        taken = np.concatenate([taken, next(pieces)])
    state = own.get_state()
    theirs = SAMPLERS[name](own_too := generator())
    assert taken.tolist() == list(itertools.islice(iter(theirs), len(theirs)))
    assert torch.equal(state, own_too.get_state())


@pytest.mark.parametrize("name", [name for name in SAMPLERS if not name.startswith("replacement")])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.some(30)
def test_batches_as_lists_are_torchs_own_at_each_step(name, drop_last, size):
    """Also after each batch. The generator's state is the same too, as other code may draw from it in between."""

    def steps(read):
        own = generator()
        batches = read(BatchSampler(SAMPLERS[name](own), size, drop_last))
        while (batch := next(batches, None)) is not None:
            yield batch, own.get_state().numpy().tobytes()
        yield own.get_state().numpy().tobytes()

    assert list(steps(order.in_batches)) == list(steps(iter))


def test_a_subset_that_holds_a_sample_twice_counts_it():
    twice = translate_dataset(Subset(DATA, [3, 5, 3]))
    assert not twice.each_once and translate_dataset(Subset(DATA, [3, 5])).each_once
    plan = EpochPlan(BatchSampler(SequentialSampler(range(3)), 2, False), twice, whole=True, batched=True)
    assert [plan.items(k) for k in range(2)] == [[(3, 0), (5, 0)], [(3, 1)]]


def test_a_torch_that_draws_otherwise_is_read_element_by_element(monkeypatch):
    monkeypatch.setattr(RandomSampler, "__iter__", lambda self: iter(range(len(self) - 1, -1, -1)))
    order._agrees.cache_clear()
    try:
        assert np.concatenate(list(order.begin(random(generator()), N))).tolist() == list(range(N - 1, -1, -1))
    finally:
        order._agrees.cache_clear()


def test_batches_that_are_added_come_after_the_whole():
    plan = EpochPlan(BatchSampler(SequentialSampler(DATA), 10, False), translate_dataset(DATA), whole=True, batched=True)
    plan.append(np.array([1, 2], dtype=np.int64), np.array([1, 0], dtype=np.int64))
    assert [plan.size(k) for k in range(len(plan))] == [10, 10, 3, 2] and plan.largest == 10
    assert plan.items(3) == [(1, 1), (2, 0)]



PIECEMEAL = [name for name in SAMPLERS if name.startswith(("replacement", "random, more", "random, twice"))]


@pytest.mark.parametrize("name", PIECEMEAL)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_generator_is_drawn_from_when_torch_draws_from_it(name, drop_last, at_once):
    theirs, ours = generator(), generator()
    reads = iter(BatchSampler(SAMPLERS[name](theirs), 3, drop_last))
    sampler = BatchSampler(SAMPLERS[name](ours), 3, drop_last)
    plan = EpochPlan(sampler, translate_dataset(DATA), whole=True, batched=True, at_once=at_once)
    for count in range(min(len(plan), 200) + 2):
        assert torch.equal(ours.get_state(), theirs.get_state()), count
        next(reads, None)
        plan.read_as_far_as(count + 1)


@pytest.mark.parametrize("given", [True, False], ids=["own generator", "torch's generator"])
def test_a_long_sampler_is_drawn_as_it_is_needed_and_forgotten(given, monkeypatch):
    monkeypatch.setattr("ddlp.sampling.epoch_plan._BLOCK", 16)
    torch.manual_seed(9)
    endless = random(generator() if given else None, replacement=True, num_samples=10**12)
    plan = EpochPlan(BatchSampler(endless, 4, False), translate_dataset(DATA), whole=True, batched=True, at_once=False)
    assert len(plan) == 25 * 10**10 and plan.size(10**10) == 4
    torch.manual_seed(9)
    theirs = iter(BatchSampler(random(generator() if given else None, replacement=True, num_samples=10**12), 4, False))
    seen: Counter[int] = Counter()
    for position, expected in enumerate(itertools.islice(theirs, 500)):
        assert [index for index, _ in plan.items(position)] == plan.indices(position) == expected
        for source, occurrence in plan.items(position):
            assert occurrence == seen[source]
            seen[source] += 1
        plan.forget(position)
        assert len(plan._blocks) <= 2
    with pytest.raises(KeyError):
        plan.items(3)


def test_what_is_drawn_at_once_takes_few_bytes():
    sampler = random(None, replacement=True, num_samples=200_000)
    plan = EpochPlan(BatchSampler(sampler, 4, False), translate_dataset(DATA), whole=True, batched=True)
    held = {id(a): a.nbytes for block in plan._blocks.values() for a in (block.indices, block.sources, block.before)}
    assert sum(held.values()) <= 4 * 200_000  # one byte for an index below 256, two for the number of earlier occurrences


def test_batches_read_one_by_one_are_forgotten():
    plan = EpochPlan(iter([[1, 2], [1], [22, 1]]), translate_dataset(DATA), whole=False, batched=True)
    while plan.read():
        pass
    plan.forget(2)
    assert len(plan) == 3 and [plan.size(k) for k in range(3)] == [2, 0, 2] and plan.largest == 2
    assert plan.items(0) == [(1, 0), (2, 0)]  # kept: devices are compared by these samples, whenever they join
    assert plan.items(2) == [(22, 0), (1, 2)] and plan.times_drawn == {1: 3, 2: 1, 22: 1}


class OnTheGpu(torch.Tensor):
    """A tensor that numpy can't read."""

    def numpy(self, *others, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")


def test_where_torch_draws_elsewhere_it_is_read_element_by_element(monkeypatch):
    """As with torch.set_default_device("cuda"): only the user's own generator can be used."""
    if ".numpy()" in inspect.getsource(RandomSampler):
        pytest.skip("this torch's RandomSampler itself reads its order by numpy")
    own, real = generator(), torch.randperm
    expected = list(random(generator()))

    def randperm(n, *, generator=None):
        if generator is not own:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        return real(n, generator=generator).as_subclass(OnTheGpu)

    monkeypatch.setattr(torch, "randperm", randperm)
    order._agrees.cache_clear()
    try:
        plan = EpochPlan(BatchSampler(random(own), 4, False), translate_dataset(DATA), whole=True, batched=True)
        assert [k for position in range(len(plan)) for k in plan.indices(position)] == expected
    finally:
        order._agrees.cache_clear()


def test_nothing_is_drawn_here_under_another_default_device():
    assert order.draws_on_the_cpu(random(None))
    with torch.device("meta"):
        assert not order.draws_on_the_cpu(random(None))
        assert np.concatenate(list(order.begin(SequentialSampler(DATA), N))).tolist() == list(range(N))


class Watched(Sequence):
    """Indices that count how often each is looked up."""

    looked_up = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        type(self).looked_up += 1
        return [7, 2, 2, 22][index]


def test_a_subset_is_resolved_when_an_epoch_wants_it():
    indices = Watched()
    both = ConcatDataset([DATA, Subset(DATA, indices)])
    portable = translate_dataset(both)
    assert len(portable) == N + 4 and Watched.looked_up == 0
    assert portable.source(np.array([3, N, -1, N + 1])).tolist() == [3, N + 7, N + 22, N + 2]
    assert translate_dataset(Subset(DATA, [3, N])).source(np.array([0, 1, 2])).tolist() == [3, -1, -1]  # there are no such
