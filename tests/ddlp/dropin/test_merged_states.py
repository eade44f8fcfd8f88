"""An epoch that goes on with another number of ranks: the rest of it has each sample once, with its bits."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays, merge_states
from ddlp.sampling.merged import _dealt, _order

SAMPLES = 53
RANDOM = transforms.Compose([transforms.RandomCrop(6), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


def arrays() -> ImageArrays:
    images = np.random.default_rng(3).integers(0, 256, (SAMPLES, 8, 8, 3), dtype=np.uint8)
    return ImageArrays(images, list(range(SAMPLES)), RANDOM)


class Own(Dataset):
    """User code, run by torch's workers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3) + index, index


def loaders(data: Any, ranks: int, batch_size: int | None, epoch: int = 4, **options: Any) -> list[DDLPLoader]:
    """The loader of each rank."""
    drop_last = options.pop("uneven_dropped", False)
    made = []
    for rank in range(ranks):
        sampler = DistributedSampler(data, ranks, rank, seed=9, drop_last=drop_last)
        made.append(DDLPLoader(data, batch_size, sampler=sampler, seed=5, **options))
        made[-1].set_epoch(epoch)
    return made


def steps(all_ranks: list[DDLPLoader], count: int) -> tuple[list[tuple[int, torch.Tensor]], list[dict[str, Any]], bool]:
    """Train `count` steps on all ranks. Returns the samples, the states, and whether the epoch is over."""
    samples, iterators, over = [], [iter(one) for one in all_ranks], False
    for _ in range(count):
        for iterator in iterators:
            batch = next(iterator, None)
            over = over or batch is None
            if batch is not None:
                images, targets = batch if isinstance(batch[1], torch.Tensor) else (batch[0][None], torch.tensor([batch[1]]))
                samples += zip(targets.tolist(), images)
    states = [json.loads(json.dumps(one.state_dict())) for one in all_ranks]
    for iterator in iterators:
        getattr(iterator, "_shutdown_workers", lambda: None)()
    return samples, states, over


def unbroken(data: Any) -> dict[int, torch.Tensor]:
    """Each sample as a single rank gets it."""
    (loader,) = loaders(data, 1, 7)
    return {int(k): image for images, targets in loader for k, image in zip(targets, images)}


def check(delivered: list[list[tuple[int, torch.Tensor]]], expected: dict[int, torch.Tensor], ranks: list[int]) -> None:
    """Check that all samples came, with their bits. A leg may repeat a few of its own, to give all ranks the same number."""
    seen: set[int] = set()
    for leg, count in zip(delivered, ranks, strict=True):
        numbers = [number for number, _ in leg]
        assert not seen & set(numbers), "a sample that was delivered came again"
        assert len(numbers) - len(set(numbers)) < count
        assert all(torch.equal(image, expected[number]) for number, image in leg)
        seen |= set(numbers)
    assert seen == set(range(SAMPLES))


@pytest.mark.parametrize("make", [arrays, Own], ids=["portable", "user code"])
def test_eight_ranks_four_and_sixteen(make):
    data, delivered = make(), []
    plan = [(8, 2, 2, 0), (4, 3, 2, 2), (16, 1, 9, 0)]
    state: Any = None
    for ranks, batch_size, count, workers in plan:
        group = loaders(data, ranks, batch_size, num_workers=workers if ranks < 8 else 0)
        for one in group:
            if state is not None:
                one.load_state_dict(state)
        samples, states, _ = steps(group, count)
        delivered.append(samples)
        state = merge_states(states)
    check(delivered, unbroken(data), [one[0] for one in plan])
    (loader,) = loaders(data, 1, 2)
    loader.load_state_dict(state)
    assert state["epoch"] == 5 and sum(len(targets) for _, targets in loader) == SAMPLES, "the next epoch must be complete"


def test_nothing_is_left_where_all_was_delivered():
    data = arrays()
    _, states, over = steps(loaders(data, 3, 6), 3)
    assert not over
    (loader,) = loaders(data, 1, 2)
    loader.load_state_dict(merge_states(states))
    assert list(loader) == []
    loader.set_epoch(5)
    assert sum(len(targets) for _, targets in loader) == SAMPLES


@pytest.mark.parametrize("epochs", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_any_ranks_at_any_step(epochs: int) -> None:
    """Against an unbroken run. Ranks, batch sizes, steps, and states that the same ranks load in between are random."""
    data, draw = arrays(), random.Random(1)
    expected = unbroken(data)
    for _ in range(epochs):
        delivered, used, over, state = [], [], False, None
        while not over:
            ranks, batch_size = draw.choice([1, 2, 3, 5, 8]), draw.choice([None, 1, 2, 4])
            group = loaders(data, ranks, batch_size, strategy=draw.choice(["cpu", "cpu", "wrr"]))
            for one in group:
                if state is not None:
                    one.load_state_dict(state)
            leg, states, over = steps(group, draw.randrange(0, 4))
            if draw.random() < 0.5 and not over:  # first the same ranks go on from their states
                group = loaders(data, ranks, batch_size)
                for one, own in zip(group, states, strict=True):
                    one.load_state_dict(own)
                more, states, over = steps(group, draw.randrange(0, 4))
                leg += more
            delivered.append(leg)
            used.append(ranks)
            draw.shuffle(states)
            state = merge_states(states)
        check(delivered, expected, used)


def test_uneven_ends_are_dropped_where_the_sampler_drops_them():
    data = arrays()
    group = loaders(data, 4, 3, uneven_dropped=True, drop_last=True)
    first, states, _ = steps(group, 2)
    group = loaders(data, 3, 2, uneven_dropped=True, drop_last=True)
    for one in group:
        one.load_state_dict(merge_states(states))
    second, _, over = steps(group, 20)
    numbers = [number for number, _ in first + second]
    assert over and len(numbers) == len(set(numbers)) == 24 + (52 - 24) // 3 // 2 * 2 * 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples, ranks", [(53, 4), (3, 5), (1, 4), (8, 8), (7, 1)])
def test_an_order_is_dealt_out_as_torch_does(samples, ranks, drop_last):
    for rank in range(ranks):
        theirs = DistributedSampler(range(samples), ranks, rank, seed=2, drop_last=drop_last)  # type: ignore[arg-type]
        theirs.set_epoch(6)
        ours = _dealt(_order(theirs, 6, samples), ranks, drop_last)[rank::ranks]
        assert ours.tolist() == list(theirs)


def test_what_can_not_be_merged():
    data = arrays()
    group = loaders(data, 2, 4)
    _, states, _ = steps(group, 2)
    with pytest.raises(ValueError, match=r"had 2 ranks, and 1 states were given, of ranks \[1\]"):
        merge_states(states[1:])
    with pytest.raises(ValueError, match="of ranks \\[0, 0\\]"):
        merge_states([states[0], states[0]])
    with pytest.raises(ValueError, match="no states"):
        merge_states([])
    with pytest.raises(ValueError, match="not a state of DDLPLoader"):
        merge_states([states[0], {**states[1], "merged": {"deals": 3}}])
    other = loaders(data, 2, 4, epoch=9)
    _, others, _ = steps(other, 1)
    with pytest.raises(ValueError, match="of epoch 9, another of epoch 4"):
        merge_states([states[0], others[1]])
    plain = DDLPLoader(data, 4, shuffle=True)
    next(iter(plain))
    with pytest.raises(ValueError, match="it must be torch's DistributedSampler"):
        merge_states([plain.state_dict()])
    merged = merge_states(states)
    with pytest.raises(ValueError, match="this loader has RandomSampler"):
        plain.load_state_dict(merged)
    fewer = ImageArrays(data.images[:50], list(range(50)), RANDOM)
    with pytest.raises(ValueError, match="a data set of 53 samples, this one has 50"):
        loaders(fewer, 2, 4)[0].load_state_dict(merged)


def test_states_between_two_epochs():
    data = arrays()
    group = loaders(data, 3, 4)
    assert merge_states([one.state_dict() for one in group])["epoch"] == 4
    for one in group:
        assert len(list(one)) == 5
    state = merge_states([one.state_dict() for one in group])
    assert state["epoch"] == 5 and "merged" not in state
    (alone,) = loaders(data, 1, 4, epoch=5)
    alone.load_state_dict(state)
    assert len(list(alone)) == len(DataLoader(data, 4))
