"""A sampler gives an index that is wrong: the error comes in its batch's place, with DataLoader's type; all others come."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import transforms as v1

from ddlp import DDLPLoader
from tests.ddlp.dropin.beside import epochs
from tests.ddlp.dropin.small_sets import DETERMINISTIC, Listed, numbered

SIZED = (v1.Resize(20), v1.CenterCrop(16))
TRANSFORMS = {
    "known": DETERMINISTIC,
    "own steps": v1.Compose([*SIZED, v1.Lambda(lambda image: image.rotate(7)), v1.ToTensor()]),
    "user code": v1.Compose([v1.Lambda(lambda image: image.rotate(7)), *SIZED, v1.ToTensor()]),
}
BAD = [99, -13, None, 1.5, "1", slice(0, 2), 2**70, (1, 2), [1], np.float64(1), np.array([1, 2]), torch.tensor(1.5)]
ODD = [-1, np.int8(2), True, torch.tensor(2), torch.tensor([2])]  # indices that a list takes


class Numbers(Dataset):
    """A user's data set."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: Any) -> tuple[int, Any]:
        return list(range(12))[index], index


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sampler": lambda bad: dict(sampler=Listed([3, bad, 4, 5])),
    "sampler, two at a time": lambda bad: dict(sampler=Listed([3, 5, bad, 4, 5, 6]), batch_size=2),
    "without batches": lambda bad: dict(sampler=Listed([3, bad, 4]), batch_size=None),
    "batch sampler": lambda bad: dict(batch_sampler=Listed([[3, 4], bad, [5]])),
    "within a batch": lambda bad: dict(batch_sampler=Listed([[3, 4], [1, bad], [5]])),
    "SubsetRandomSampler": lambda bad: dict(sampler=SubsetRandomSampler([3, bad, 4, 5])),
}


def sets(paths: list[str], transform: str) -> list[Any]:
    return [numbered(paths[:12], TRANSFORMS[transform]), *([Numbers()] if transform == "user code" else [])]


def check(dataset: Any, arguments: Callable[[], dict[str, Any]], workers: int = 0) -> list[Any]:
    """Two epochs are DataLoader's. Returns the steps of the first: "batch", or the type of an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = (epochs(kind(dataset, num_workers=workers, **arguments())) for kind in (DataLoader, DDLPLoader))
    assert ours == theirs
    return [what if kind == "batch" else detail for (kind, detail), what in ((step, "batch") for step in ours[0][0])]


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.some(3)
def test_one_bad_index(paths, transform, kind):
    for dataset in sets(paths, transform):
        for bad in (*BAD, *ODD):
            steps = check(dataset, lambda bad=bad: SAMPLERS[kind](bad))
            assert steps.count("batch") >= 2, bad


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.some(1)
def test_in_workers(paths, transform):
    for dataset in sets(paths, transform):
        assert check(dataset, lambda: dict(sampler=Listed([3, 99, 4])), 2) == ["batch", "IndexError", "batch"]
        assert check(dataset, lambda: dict(batch_sampler=Listed([[3], None, [4]])), 2) == ["batch", "TypeError", "batch"]


SUBSETS = [[3, 99, 4], [3, None, 4], [3, "1", 4], [3, 1.5, 4], ["1", "2"], [True, False], [[1], [2]], [-1, -13], [], [2**70],
           np.array([True, False]), np.array([[1], [2]]), np.array([1.0, 2.0]), torch.tensor([[1], [2]]), torch.tensor([3, 2]),
           range(5)]  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.some(1)
def test_a_subset_with_bad_indices(paths, transform):
    for dataset in sets(paths, transform):
        for indices in SUBSETS:
            check(Subset(dataset, indices), dict)
            check(Subset(Subset(dataset, indices), [0, 1]), dict)
            joined = [Subset(dataset, indices), dataset] if len(indices) else [dataset, Subset(dataset, [0])]
            check(ConcatDataset(joined), lambda: dict(batch_size=3, shuffle=True))


TORCHS = {
    "random": lambda: RandomSampler(range(20)),  # type: ignore[arg-type]
    "with replacement": lambda: RandomSampler(range(20), True, 30, torch.Generator().manual_seed(1)),  # type: ignore[arg-type]
    "sequential": lambda: SequentialSampler(range(20)),  # type: ignore[arg-type]
    "weighted": lambda: WeightedRandomSampler([1.0] * 20, 20),
}


@pytest.mark.parametrize("kind", TORCHS)
def test_torchs_samplers_of_a_longer_data_set(paths, kind):
    for dataset in sets(paths, "known"):
        steps = check(dataset, lambda: dict(sampler=TORCHS[kind](), batch_size=3))
        assert "IndexError" in steps


@pytest.mark.parametrize("strategy", ["csd", "mte", "wrr", "ordered"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.some(4)
def test_beside_a_device(paths, engine, strategy, first):
    """The device is never asked for such a batch, and makes the others."""
    order = [99, *range(12)] if first else [*range(6), 99, *range(6, 12), 1.5]
    dataset = numbered(paths[:12])
    kind: Any = SubsetRandomSampler if strategy == "mte" else Listed  # mte must know the whole order
    loader = DDLPLoader(dataset, 1, sampler=kind(order), num_workers=2, strategy=strategy, spool=engine)
    steps, targets = [], []
    iterator = iter(loader)
    while True:
        try:
            targets += next(iterator)[1].tolist()
        except StopIteration:
            break
        except (IndexError, TypeError) as error:
            steps.append(type(error).__name__)
    assert sorted(targets) == list(range(12))
    assert sorted(steps) == (["IndexError"] if first else ["IndexError", "TypeError"])
    assert strategy != "csd" or loader.report().batches_csd == 12


def test_a_state_beside_such_a_batch(paths):
    dataset = numbered(paths[:12])
    order = [3, 5, 99, 4, 7]
    loader = DDLPLoader(dataset, 1, sampler=SubsetRandomSampler(order), generator=torch.Generator().manual_seed(4))
    iterator, seen = iter(loader), []
    for _ in range(3):
        try:
            seen += next(iterator)[1].tolist()
        except IndexError:
            seen.append(99)
    again = DDLPLoader(dataset, 1, sampler=SubsetRandomSampler(order), generator=torch.Generator())
    again.load_state_dict(loader.state_dict())
    iterator = iter(again)
    while len(seen) < 5:
        try:
            seen += next(iterator)[1].tolist()
        except IndexError:
            seen.append(99)
    assert sorted(seen) == sorted(order)
    assert list(iterator) == []
