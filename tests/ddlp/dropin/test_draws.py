"""User code's draws are keyed, whoever makes the sample, and even if few samples draw. Without draws there is no cost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from ddlp import DDLPLoader
from ddlp.sampling.keyed_generators import GENERATORS
from tests.ddlp.dropin.small_sets import Draws, DrawsInBatches, numbered

SAMPLES = 60
RARE = (37, 38, 55)
DRAW = {
    "torch": lambda: torch.randn(()).item(),
    "numpy": lambda: np.random.randn(),
    "random": lambda: random.gauss(0, 1),
}


class Rare(Dataset):
    """Only a few samples draw; the last of these from two generators. ``asked`` lists the samples that were requested."""

    def __init__(self, names: tuple[str, ...], at: tuple[int, ...] = RARE, fails: bool = False) -> None:
        self.names, self.at, self.fails = names, at, fails
        self.asked: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[float, int]:
        self.asked.append(index)
        names = self.names if index == self.at[-1] else self.names[:1]
        drawn = sum(DRAW[name]() for name in names) if index in self.at else 0.0
        if self.fails and index in self.at:
            raise KeyError(f"drawn {drawn}")
        return drawn, index


class RareInBatches(Rare):
    """The same with ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[tuple[float, int]]:
        return [self[index] for index in indices]


def samples(loader: Any) -> list[tuple[float, int]]:
    return sorted((value, index) for values, indices in loader for value, index in zip(values.tolist(), indices.tolist()))


@pytest.fixture(autouse=True)
def own_draws() -> None:
    """The training has drawn a normal number from each generator, which then holds a second one."""
    for draw in DRAW.values():
        draw()


def states() -> list[Any]:
    return [generator.state() for generator in GENERATORS.values()]


@pytest.mark.parametrize("names", [("torch", "numpy"), ("numpy", "random"), ("random", "torch")])
@pytest.mark.parametrize("kind", [Rare, RareInBatches])
@pytest.mark.some(3)
def test_a_sample_in_many_that_draws_is_keyed(kind, names):
    found, before = [], states()
    for workers in (0, 1, 2):
        loader = DDLPLoader(kind(names), 4, num_workers=workers, seed=5)
        found.append([samples(loader), samples(loader)])
    assert states()[1:] == before[1:]  # torch's generator gave the base seeds
    assert found[0] == found[1] == found[2] and found[0][0] != found[0][1]
    assert sum(value != 0 for value, _ in found[0][0]) == len(RARE)
    if kind is Rare:  # nor do the draws depend on the batches
        assert samples(DDLPLoader(Rare(names), 7, shuffle=True, seed=5)) == found[0][0]


def test_a_sample_has_the_same_draws_beside_others_that_draw():
    rare, always = (dict(map(reversed, samples(DDLPLoader(Rare(("numpy",), at), 4, seed=5)))) for at in (RARE, range(SAMPLES)))
    assert all(rare[index] == always[index] for index in RARE)


def test_the_training_process_keeps_its_generators_whatever_draws():
    for dataset in (Rare(("torch", "numpy", "random")), Draws(), TensorDataset(torch.arange(20))):
        iterator = iter(DDLPLoader(dataset, 4, seed=2))
        before = states()
        list(iterator)
        assert states() == before


def test_what_draws_from_the_start_is_asked_once():
    """A data set that begins to draw later is asked for one batch twice, in the first epoch only."""
    always, rare = Rare(("torch",), tuple(range(SAMPLES))), Rare(("torch",))
    for dataset in (always, rare):
        loader = DDLPLoader(dataset, 4)
        list(loader)
        first = sorted(dataset.asked)
        dataset.asked.clear()
        list(loader)
        assert sorted(dataset.asked) == list(range(SAMPLES))
        assert first == sorted([*range(SAMPLES), *([36, 37, 38, 39] if dataset is rare else [])])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_follows_from_keyed_draws(workers):
    words = []
    for at in (RARE[:1], range(SAMPLES)):
        iterator = iter(DDLPLoader(Rare(("random",), at, fails=True), 1, num_workers=workers, seed=3))
        for _ in range(37 if at == RARE[:1] else 0):
            next(iterator)
        for _ in range(0 if at == RARE[:1] else 37):
            with pytest.raises(KeyError):
                next(iterator)
        with pytest.raises(KeyError) as error:
            next(iterator)
        words.append(str(error.value).rsplit("drawn ", 1)[1].rstrip("'\n"))
    assert words[0] == words[1] and float(words[0])


def mixed(batch: list[Any]) -> tuple[torch.Tensor, list[float]]:
    return default_collate(batch), [draw() for draw in DRAW.values()]


class Numbers(Draws):
    """No sample draws."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("kind", [Numbers, Draws, DrawsInBatches])
def test_draws_of_a_collate_fn_are_keyed(kind):
    found, asked = [], iter(DDLPLoader(kind(), 4, collate_fn=mixed, seed=5))
    before = states()
    list(asked)
    assert states() == before
    for workers in (0, 1, 2):
        loader = DDLPLoader(kind(), 4, collate_fn=mixed, num_workers=workers, seed=5)
        found.append([[drawn for _, drawn in loader] for _ in range(2)])
    assert found[0] == found[1] == found[2]
    assert len({tuple(drawn) for epoch in found[0] for drawn in epoch}) == 2 * 11


class Seeds(Draws):
    """A sample is its worker's seeds, before and after drawing from all generators."""

    def __getitem__(self, index: int) -> list[int]:
        super().__getitem__(index)
        np.random.seed(torch.initial_seed() % 2**32)
        return [torch.initial_seed(), torch.utils.data.get_worker_info().seed, index]


def test_the_initial_seed_in_a_worker_is_dataloaders():
    found = []
    for kind in (DataLoader, DDLPLoader):
        torch.manual_seed(4)
        found.append([torch.stack(batch).tolist() for batch in kind(Seeds(), 4, num_workers=2)])
    assert found[0] == found[1]


def seeds_numpy(worker: int) -> None:
    """As in PyTorch's notes on reproducibility."""
    np.random.seed(torch.initial_seed() % 2**32)


def seeds_all(worker: int) -> None:
    seeds_numpy(worker)
    random.seed(worker)
    torch.manual_seed(worker)


@pytest.mark.parametrize(("init", "theirs"), [(seeds_numpy, [1]), (seeds_all, [0, 1, 2])])
def test_a_generator_that_worker_init_fn_seeds_follows_dataloader(init, theirs):
    found = []
    for kind in (DataLoader, DDLPLoader):
        torch.manual_seed(4)
        loader = kind(Draws(), 4, num_workers=2, worker_init_fn=init)
        found.append(torch.cat([numbers for numbers, _ in loader]))
    keyed = torch.cat([numbers for numbers, _ in DDLPLoader(Draws(), 4, seed=int(loader._last.seed()))])
    assert torch.equal(found[0][:, theirs], found[1][:, theirs])
    others = [k for k in range(3) if k not in theirs]
    assert torch.equal(keyed[:, others], found[1][:, others])
    assert "worker_init_fn" in loader.explain() and "follows DataLoader" in loader.explain()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_profiler_sees_torchs_mark_for_each_batch(workers):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        list(DDLPLoader(Numbers(), 8, num_workers=workers))
    (mark,) = (event for event in profile.key_averages() if event.key.startswith("enumerate(DataLoader)"))
    assert mark.count == 7  # six batches and the end


class Watching:
    """A target_transform that draws for some targets, and notes the state in which it finds torch's generator."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self.at = at
        self.seen: list[bytes] = []

    def __call__(self, target: int) -> tuple[int, float]:
        self.seen.append(torch.get_rng_state().numpy().tobytes())
        return target, sum(draw() for draw in DRAW.values()) if target in self.at else 0.0


def test_a_target_transform_without_draws_finds_the_generators_as_they_are(paths):
    """Nothing is saved, seeded and put back for it, but for the first few targets."""
    watching = Watching(())
    for _ in DDLPLoader(numbered(paths, target_transform=watching), 4):
        torch.rand(())  # the training draws, too
    assert all(len(set(watching.seen[k : k + 4])) == 1 for k in range(8, 40, 4))


@pytest.mark.parametrize("at", [(), tuple(range(41)), (30,)])
@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_a_target_transform(paths, at, workers):
    """They follow from the sample, and leave the training's generators alone, even if a late target is the first to draw."""
    found = []
    for size in (4, 7):
        torch.manual_seed(3)
        loader = DDLPLoader(numbered(paths, target_transform=Watching(at)), size, num_workers=workers, seed=5)
        before = [generator.state() for generator in GENERATORS.values()]
        iterator = iter(loader)
        state = torch.get_rng_state()  # iter() has drawn the base seed
        found.append([number for _, (_, numbers) in iterator for number in numbers.tolist()])
        assert torch.equal(torch.get_rng_state(), state)
        assert [generator.state() for generator in GENERATORS.values()][1:] == before[1:]
    assert found[0] == found[1]
    assert [number != 0.0 for number in found[0]] == [k in at for k in range(len(found[0]))]
