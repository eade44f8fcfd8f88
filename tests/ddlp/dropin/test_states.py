"""States: which loaders they fit, when an epoch is over, and which batches the training loop got."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from ddlp import DDLPLoader
from tests.ddlp.dropin.small_sets import SAMPLES, Counting, Draws, Fails, by_target, numbered, order

SAMPLERS = {"shuffled": lambda: dict(shuffle=True), "own": lambda: dict(sampler=Counting(SAMPLES))}
BATCHES = 11  # of four


def make(paths: list[str], user_code: bool, batch_size: int = 4, **options: Any) -> DDLPLoader:
    return DDLPLoader(Draws() if user_code else numbered(paths), batch_size, **options)


def broken_off(loader: DDLPLoader, batches: int = 3) -> tuple[list[Any], dict[str, Any]]:
    """The first batches, and the state then, as it would be read from a file."""
    iterator = iter(loader)
    given = [next(iterator) for _ in range(batches)]
    return given, json.loads(json.dumps(loader.state_dict()))


# -- which loaders it fits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (dict(batch_size=8), "mid-epoch with batch_size=4, this loader has batch_size=8"),
        (dict(batch_size=2, drop_last=True), "batch_size=4, drop_last=False, this loader has batch_size=2, drop_last=True"),
        (dict(shuffle=False), "sampler='RandomSampler', this loader has sampler='SequentialSampler'"),
        (dict(shuffle=None, sampler=Counting(SAMPLES)), "this loader has sampler='one of your own'"),
        (dict(batch_size=None), "batch_size=4, drop_last=False, this loader has batch_size=None, drop_last=None"),
    ],
)
@pytest.mark.parametrize("user_code", [False, True])
def test_other_batches(paths, user_code, other, said):
    _, state = broken_off(make(paths, user_code, shuffle=True))
    loader = make(paths, user_code, **{"shuffle": True, **other})
    with pytest.raises(ValueError, match=re.escape(said)):
        loader.load_state_dict(state)
    assert loader.state_dict()["epoch"] == 0 and len(list(loader)) == len(loader)


@pytest.mark.parametrize("user_code", [False, True])
def test_another_data_set(paths, user_code):
    """It is compared when the epoch begins. Until then the data set may change."""
    given, state = broken_off(make(paths, user_code, shuffle=True))
    dataset = Draws(40) if user_code else numbered(paths[:40])
    loader = DDLPLoader(dataset, 4, shuffle=True)
    loader.load_state_dict(state)
    said = "len(dataset)=41, len(sampler)=41, this loader has len(dataset)=40, len(sampler)=40"
    for _ in range(2):  # the state stays loaded
        with pytest.raises(ValueError, match=re.escape(said)):
            iter(loader)
    if user_code:
        dataset.count = SAMPLES
        assert len(by_target([*given, *loader])) == SAMPLES


@pytest.mark.parametrize("user_code", [False, True])
def test_other_ranks(paths, user_code):
    dataset = Draws() if user_code else numbered(paths)
    _, state = broken_off(DDLPLoader(dataset, 2, sampler=DistributedSampler(dataset, 2, 0)))
    with pytest.raises(ValueError, match="num_replicas=2, this loader has num_replicas=3"):
        DDLPLoader(dataset, 2, sampler=DistributedSampler(dataset, 3, 0)).load_state_dict(state)
    loader = DDLPLoader(dataset, 2, sampler=DistributedSampler(dataset, 2, 0))
    loader.load_state_dict(state)
    assert len(list(loader)) == 11 - 3


class Buckets:
    """A user's batch sampler whose length depends on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-SAMPLES // (self.epoch + 1))

    def __iter__(self) -> Any:
        size = self.epoch + 1
        return iter([list(range(k, min(k + size, SAMPLES))) for k in range(0, SAMPLES, size)])


@pytest.mark.parametrize("user_code", [False, True])
def test_a_length_that_follows_from_the_epoch(paths, user_code):
    dataset = Draws() if user_code else numbered(paths)
    first = DDLPLoader(dataset, batch_sampler=Buckets())
    first.set_epoch(4)
    given, state = broken_off(first)
    assert order(given)[0] == [0, 1, 2, 3, 4]
    loader = DDLPLoader(dataset, batch_sampler=Buckets())
    loader.load_state_dict(state)
    assert len(by_target([*given, *loader])) == SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("before", "after"), [(False, False), (True, True), (False, True), (True, False)])
@pytest.mark.some(5)
def test_where_nothing_was_delivered_any_loader_will_do(paths, before, after, sampler, workers):
    first = make(paths, before, **SAMPLERS[sampler](), num_workers=workers)
    states = [first.state_dict(), broken_off(first, 0)[1]]
    list(first)
    states.append(first.state_dict())
    for state in states:
        loader = make(paths, after, 8, drop_last=False, **SAMPLERS[sampler](), num_workers=2 - workers)
        loader.load_state_dict(state)
        assert len(by_target(list(loader))) == SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("before", [False, True])
def test_from_one_mode_to_the_other(paths, before, workers):
    given, state = broken_off(make(paths, before, shuffle=True, num_workers=workers))
    loader = make(paths, not before, shuffle=True, num_workers=workers)
    loader.load_state_dict(state)
    targets = [target for batch in order([*given, *loader]) for target in batch]
    assert sorted(targets) == list(range(SAMPLES))

    _, state = broken_off(make(paths, before, **SAMPLERS["own"](), num_workers=workers))
    loader = make(paths, not before, **SAMPLERS["own"](), num_workers=workers)
    loader.load_state_dict(state)
    modes = ("user code", "portable") if before else ("portable", "user code")
    with pytest.raises(ValueError, match="mode='{}', this loader has mode='{}'".format(*modes)):
        iter(loader)


# -- when an epoch is over -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("user_code", [False, True])
@pytest.mark.some(2)
def test_an_epoch_is_over_once_its_iterator_says_so(paths, user_code, sampler, workers):
    loader = make(paths, user_code, **SAMPLERS[sampler](), num_workers=workers)
    for _ in loader:
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["epoch"] == 0 and loader.state_dict()["epoch"] == 1
    for taken, batches in ((state, [0, BATCHES, BATCHES]), (loader.state_dict(), [BATCHES, BATCHES])):
        again = make(paths, user_code, **SAMPLERS[sampler](), num_workers=workers)
        again.load_state_dict(taken)
        for epoch, expected in zip(range(taken["epoch"], 3), batches, strict=True):  # go on as a script does
            iterator = iter(again)
            assert again.state_dict()["epoch"] == epoch
            assert len(list(iterator)) == expected


@pytest.mark.parametrize("user_code", [False, True])
def test_a_finished_epoch_fits_any_loader(paths, user_code):
    loader = make(paths, user_code, shuffle=True)
    for _ in loader:
        state = loader.state_dict()
    for options in (dict(shuffle=True), dict(sampler=Counting(SAMPLES)), dict(sampler=Counting(SAMPLES), num_workers=1)):
        other = make(paths, user_code, 8, **options)
        other.load_state_dict(state)
        iterator = iter(other)
        assert other.state_dict()["epoch"] == 0  # nothing is left of it, and a second state says so too
        assert list(iterator) == [] and len(by_target(list(other))) == SAMPLES


@pytest.mark.parametrize("user_code", [False, True])
def test_set_epoch_leaves_a_finished_epoch_behind(paths, user_code):
    loader = make(paths, user_code, shuffle=True)
    states = {}
    for k, _ in enumerate(loader):
        states[k + 1] = loader.state_dict()
    for batches, epoch, left in ((BATCHES, 0, 0), (BATCHES, 1, BATCHES), (3, 0, 8), (3, 1, 8)):
        again = make(paths, user_code, shuffle=True)
        again.load_state_dict(states[batches])
        again.set_epoch(epoch)
        assert again.state_dict()["epoch"] == epoch
        assert len(list(again)) == left
        assert again.state_dict()["epoch"] == epoch + 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("user_code", [False, True])
def test_an_iteration_dropped_after_the_last_batch_is_over(paths, user_code, workers):
    loader = make(paths, user_code, shuffle=True, num_workers=workers)
    for _ in zip(range(BATCHES), loader):
        pass
    assert loader.state_dict()["epoch"] == 1
    for k, _ in enumerate(loader):
        if k == BATCHES - 1:
            break
    assert loader.state_dict()["epoch"] == 2
    for _ in zip(range(BATCHES - 1), loader):
        pass
    state = loader.state_dict()
    again = make(paths, user_code, shuffle=True)
    again.load_state_dict(state)
    assert state["epoch"] == 2 and len(list(again)) == 1


# -- what was delivered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_failed_was_not_delivered(workers):
    loader = DDLPLoader(Fails(2), 2, num_workers=workers)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == [0, 1]
    with pytest.raises(KeyError, match="sample 2 is not well"):
        next(iterator)
    assert next(iterator)[1].tolist() == [4, 5]
    state = loader.state_dict()
    assert state["delivered"] == [[0, 1], [2, 3]]
    again = DDLPLoader(Draws(), 2, num_workers=workers)
    again.load_state_dict(state)
    assert order(list(again))[:2] == [[2, 3], [6, 7]]


@pytest.mark.parametrize("at", [5, BATCHES])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("user_code", [False, True])
@pytest.mark.some(6)
def test_a_batch_that_ctrl_c_kept_from_the_training_loop_was_not_delivered(paths, user_code, sampler, workers, at):
    taken = []

    def interrupted(batch):
        taken.append(batch)
        if len(taken) == at:
            raise KeyboardInterrupt
        return batch

    loader = make(paths, user_code, **SAMPLERS[sampler](), num_workers=workers, batch_transform=interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    again = make(paths, user_code, **SAMPLERS[sampler](), num_workers=workers)
    again.load_state_dict(state)
    rest = list(again)
    assert len(rest) == BATCHES - at + 1 and len(by_target([*taken[:-1], *rest])) == SAMPLES


def test_a_signals_handler_may_ask_at_any_moment(paths):
    """It runs in the training thread, which may hold any of our locks."""
    loader = make(paths, False, **SAMPLERS["own"]())
    iterator = iter(loader)
    next(iterator)
    asked = []

    def ask() -> None:
        with loader._last.keeping, loader._parts.life._lock, iterator.executor.monitor.lock:
            asked.append((loader.state_dict()["drawn"], loader.report().batches_cpu))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60)
    assert asked == [(1, 1)]


def test_set_epoch_reaches_batch_samplers(paths):
    class Outer(BatchSampler):
        """It has an epoch of its own, and so has the sampler inside."""

        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    dataset = numbered(paths)
    inner = DistributedSampler(dataset, 2, 0)
    for sampler in (Buckets(), Outer(inner, 4, False), Outer(RandomSampler(dataset), 4, False)):
        DDLPLoader(dataset, batch_sampler=sampler).set_epoch(7)
        assert sampler.epoch == 7
    assert inner.epoch == 7
