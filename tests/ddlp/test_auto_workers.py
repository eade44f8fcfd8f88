"""`num_workers="auto"` of real loaders. The figures are patched only where a machine of so many processors is wanted."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays
from ddlp.observe import read_run

BATCHES, BATCH = 30, 2


@pytest.fixture(autouse=True)
def alone(hard_limit: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test's measurements, two processors, at most three workers. A hang is a failure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("ddlp.begin.auto_workers.processors", lambda: 2.0)
    monkeypatch.setattr("ddlp.auto.workers.MOST", 3)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddlp.begin.auto_workers.processors", lambda: 4.0)


class Draws(Dataset[Any]):
    """User code that sleeps a while for each sample, and draws."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return index, torch.rand(()), float(np.random.rand())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from torch.arange(BATCHES * BATCH)


class Counting(Draws):
    asked = 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return self.asked

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = state["asked"]


class Sleeps:
    """A step behind the known ones."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return image


def native(*steps: Any) -> ImageArrays:
    return ImageArrays(np.zeros((BATCHES * BATCH, 4, 4, 3), np.uint8), range(BATCHES * BATCH),
                       transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(), *steps]))  # fmt: skip


def stored() -> list[Any]:
    """What is kept for other runs."""
    return [json.loads(path.read_text())["figures"] for path in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")]


def train(loader: Any, step_s: float = 0.0) -> list[Any]:
    found = []
    for batch in loader:
        time.sleep(step_s)
        found.append(batch)
    return found


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_wait_become_more(persistent: bool) -> None:
    loader = DDLPLoader(Draws(0.02), BATCH, num_workers="auto", persistent_workers=persistent)
    assert loader.num_workers == 1 and "1 worker, 2 batches each (to begin with, on 2 processors" in loader.explain()
    train(loader)
    assert loader.num_workers == 1  # of this epoch
    train(loader)
    count, notes = loader.num_workers, loader.report().notes
    assert 1 < count == loader.report().workers <= 3
    assert len(notes) == 1 and notes[0] in loader.explain()
    train(loader)  # with the number that the note tells: on a busy machine to start three may have taken longer than it saved
    told = notes[0].removeprefix("num_workers='auto': ").partition(" worker")[0]
    assert told == str(loader.num_workers)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("make", [Draws, native], ids=["user code", "native"])
def test_a_slow_step_needs_one(make: Any) -> None:
    loader = DDLPLoader(make(), BATCH, num_workers="auto")
    assert loader.num_workers == 3
    for _ in range(20):  # one; a busy machine, whose workers take long for their batches, needs more
        train(loader, 0.05)
        (note,) = loader.report().notes  # the number for the next epoch. On a busy machine that one may decide anew
        if ": 1 worker" in note:
            break
    assert ": 1 worker" in note and "training takes one in " in note
    train(loader)
    assert loader.num_workers == 1


@pytest.mark.parametrize("how", ["processes", "threads"])
def test_own_steps_get_more_as_well(how: str) -> None:
    loader = DDLPLoader(native(Sleeps(0.02)), BATCH, num_workers="auto", own_steps=how)
    for _ in range(2):
        assert len(train(loader)) == BATCHES
    assert loader.num_workers == 3


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"seed": 3, "persistent_workers": True}])
@pytest.mark.some(2)
def test_batches_are_the_same_as_with_any_number(options: dict[str, Any]) -> None:
    def epochs(workers: Any) -> tuple[list[Any], int]:
        torch.manual_seed(5)
        loader = DDLPLoader(Draws(0.02), BATCH, shuffle=True, num_workers=workers, **options)
        return [train(loader) for _ in range(3)], loader.num_workers

    (fixed, _), (auto, count) = epochs(2), epochs("auto")
    assert count > 1
    for ours, theirs in zip(auto, fixed, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_epoch_is_recorded_with_its_own_number(tmp_path: Path) -> None:
    loader = DDLPLoader(Draws(0.02), BATCH, num_workers="auto", persistent_workers=True, record=tmp_path / "run")
    for _ in range(2):
        train(loader)
    assert [trace.began.workers for trace in read_run(tmp_path / "run")] == [1, 3]


def test_the_next_run_begins_with_it() -> None:
    train(DDLPLoader(Draws(0.02), BATCH, num_workers="auto", persistent_workers=True))
    assert [kept["workers"] for kept in stored()] == [3]
    again = DDLPLoader(Draws(0.02), BATCH, num_workers="auto")
    next(iter(again))
    assert again.num_workers == 3 and "found by an earlier run" in again.report().notes[0]
    other = DDLPLoader(Draws(0.02), 4, num_workers="auto")  # another batch size is another run
    next(iter(other))
    assert other.num_workers == 1


def test_a_short_epoch_decides_nothing() -> None:
    loader = DDLPLoader(Draws(0.02), 4, num_workers="auto")  # 15 batches
    for _ in range(3):
        train(loader)
    assert loader.num_workers == 1 and not stored()


def test_an_epoch_that_is_broken_off_is_judged_by_what_it_had() -> None:
    loader = DDLPLoader(native(Sleeps(0.02)), BATCH, num_workers="auto", own_steps="threads")
    iterator = iter(loader)
    for _ in range(25):
        next(iterator)
    iterator._shutdown_workers()
    next(iter(loader))
    assert loader.num_workers == 3


def test_a_given_prefetch_factor_stays() -> None:
    loader = DDLPLoader(Draws(0.02), BATCH, num_workers="auto", prefetch_factor=5)
    for _ in range(2):
        train(loader)
        assert loader.prefetch_factor == 5


def test_a_number_of_the_users_own_ends_it() -> None:
    loader = DDLPLoader(Draws(0.02), BATCH, num_workers="auto", persistent_workers=True)
    loader.num_workers = 2
    for _ in range(2):
        train(loader)
    assert loader.num_workers == 2 and not loader.report().notes
    loader.num_workers = "auto"
    assert loader.num_workers == 1
    for _ in range(2):
        train(loader)
    assert loader.num_workers == 3


@pytest.mark.parametrize("given", ["all", "", "Auto", "4"])
def test_other_texts_are_refused(given: str) -> None:
    said = f"num_workers={given!r}: a number of workers, 0 or more, or 'auto'"
    with pytest.raises(ValueError, match=said):
        DDLPLoader(Draws(), BATCH, num_workers=given)
    loader = DDLPLoader(Draws(), BATCH, num_workers=1)
    with pytest.raises(ValueError, match=said):
        loader.num_workers = given
    assert loader.num_workers == 1


@pytest.mark.parametrize("dataset", [Stream(), Counting()])
def test_where_the_number_decides_what_comes_it_stays(dataset: Any) -> None:
    loader = DDLPLoader(dataset, BATCH, num_workers="auto")
    for _ in range(2):
        train(loader)
    assert loader.num_workers == 1 and not stored()
    assert "it stays, since what such a data set gives depends on it" in loader.report().notes[0]


def test_a_state_brings_its_number_of_workers() -> None:
    first = DDLPLoader(Counting(), BATCH, num_workers=2)
    iterator = iter(first)
    next(iterator), next(iterator)
    loader = DDLPLoader(Counting(), BATCH, num_workers="auto")
    loader.load_state_dict(first.state_dict())
    assert loader.num_workers == 2 and len(train(loader)) == BATCHES - 2


def test_a_copy_elsewhere_begins_anew() -> None:
    loader = DDLPLoader(Draws(0.02), BATCH, num_workers="auto", prefetch_factor=4, persistent_workers=True)
    for _ in range(2):
        train(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert "to begin with" in copy.explain() and loader.num_workers == 3
    next(iter(loader)), next(iter(copy))  # the last epoch may have told more
    assert (copy.num_workers, copy.prefetch_factor) == (loader.num_workers, 4)  # this computer's store has it


def test_a_replay_leaves_it_alone() -> None:
    loader = DDLPLoader(Draws(), BATCH, num_workers="auto")
    train(loader)
    before = loader.report().notes
    assert len(list(loader.replay(20))) == 20
    assert loader.report().notes == before and loader.num_workers == 1
