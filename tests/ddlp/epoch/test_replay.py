"""`DDLPLoader.replay`: it gives the user's loop a real batch and measures a step. It does not change the epochs after it."""

from __future__ import annotations

import copy
import random
import threading
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler
from torchvision import transforms as T

from ddlp import DDLPError, DDLPLoader, ImageFiles
from ddlp.epoch.replay import WARM_UP, replayed
from ddlp.stats.live import Life
from ddlp.stats.waiting import Ceiling
from tests.engine_process import until
from tests.small_images import make_images

SAMPLES, BATCH = 24, 4

pytestmark = pytest.mark.usefixtures("hard_limit")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    paths = make_images(tmp_path_factory.mktemp("images"), SAMPLES)
    return ImageFiles(paths, list(range(SAMPLES)), T.Compose([T.RandomResizedCrop(16), T.ToTensor()]))


class Draws(Dataset):
    """User code whose samples are numbers from the three global generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, float(torch.rand(())), random.random(), float(np.random.rand())


class Counting(Draws):
    """User code whose samples depend on how many were made before, which is its state."""

    def __init__(self) -> None:
        self.made = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.made += 1
        return index, self.made

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


class OneStream(IterableDataset):
    """A stream that can be read only once, like a socket."""

    def __init__(self) -> None:
        self._numbers = iter(range(3 * SAMPLES))

    def __iter__(self) -> Iterator[int]:
        for number in self._numbers:
            yield number
            if number % SAMPLES == SAMPLES - 1:
                return


class Shuffling(Sampler):
    """A user's sampler with a private generator and a private number of its epoch."""

    def __init__(self) -> None:
        self._random, self._epochs = np.random.default_rng(3), 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        self._epochs += 1
        first = self._epochs % SAMPLES
        return iter([first, *(int(k) for k in self._random.permutation(SAMPLES) if k != first)])


LOADERS: dict[str, Callable[[Any], DDLPLoader]] = {
    "portable": lambda images: DDLPLoader(images, BATCH, shuffle=True, num_workers=2),
    "portable, own generator": lambda images: DDLPLoader(
        images, BATCH, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "portable, without batches": lambda images: DDLPLoader(images, None, shuffle=True),
    "portable, with replacement": lambda images: DDLPLoader(
        images, BATCH, sampler=RandomSampler(range(SAMPLES), True, 40, torch.Generator().manual_seed(5))
    ),
    "portable, weighted": lambda images: DDLPLoader(
        images, BATCH, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES), seed=7
    ),
    "portable, sampler of one's own": lambda images: DDLPLoader(images, BATCH, sampler=Shuffling()),
    "portable, a device": lambda images: DDLPLoader(images, BATCH, num_workers=2, strategy="ordered", seed=7),
    "user code": lambda _: DDLPLoader(Draws(), BATCH, shuffle=True),
    "user code, workers": lambda _: DDLPLoader(Draws(), BATCH, shuffle=True, num_workers=2),
    "user code, workers that stay": lambda _: DDLPLoader(Draws(), BATCH, shuffle=True, num_workers=2, persistent_workers=True),
    "user code with a state": lambda _: DDLPLoader(Counting(), BATCH, sampler=Shuffling()),
    "a stream": lambda _: DDLPLoader(OneStream(), BATCH),
    "a stream, workers": lambda _: DDLPLoader(OneStream(), BATCH, num_workers=1),
}


def flat(batch: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(part) for part in (batch if isinstance(batch, (list, tuple)) else [batch])]


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))


def step(batch: Any) -> None:
    """Draw random numbers, as dropout in a training step does, and change the batch in place."""
    torch.rand(3), random.random(), np.random.rand()
    for tensor in flat(batch):
        if tensor.is_floating_point():
            tensor.mul_(2)


def epochs(loader: DDLPLoader, replays: bool) -> list[Any]:
    """Two epochs and a part of one. With ``replays``, each begins with a replay."""
    torch.manual_seed(11), random.seed(11), np.random.seed(11)
    found: list[Any] = []
    for batches in (100, 100, 2):
        if replays:
            for batch in loader.replay(2 * WARM_UP):
                step(batch)
        found.append(copy.deepcopy(loader.state_dict()))
        for batch, _ in zip(loader, range(batches)):
            found.append(copy.deepcopy(batch))
            step(batch)
    found.append(loader.state_dict())
    return found


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:ddlp")
@pytest.mark.some(5)
def test_epochs_are_the_same_as_without_it(images: ImageFiles, kind: str) -> None:
    without, with_it = (epochs(LOADERS[kind](images), replays) for replays in (False, True))
    assert len(without) == len(with_it) > 3
    for one, other in zip(without, with_it):
        assert one == other if isinstance(one, dict) else equal(one, other)


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if "device" not in kind])
@pytest.mark.filterwarnings("ignore:ddlp")
@pytest.mark.some(5)
def test_the_batch_is_as_an_epoch_delivers_it(images: ImageFiles, kind: str) -> None:
    loader = LOADERS[kind](images)
    given = [copy.deepcopy(batch) for batch in loader.replay(2 * WARM_UP)]
    assert len(given) == 2 * WARM_UP and all(equal(given[0], one) for one in given)
    delivered = next(iter(loader))
    assert type(delivered) is type(given[0])
    assert [(part.shape, part.dtype) for part in flat(delivered)] == [(part.shape, part.dtype) for part in flat(given[0])]


def test_its_bits_are_those_of_its_sample(images: ImageFiles) -> None:
    loader = DDLPLoader(images, BATCH, seed=7)
    given = next(loader.replay())
    assert equal(given, next(iter(loader)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:ddlp")
def test_changes_of_the_loop_are_undone(images: ImageFiles, workers: int) -> None:
    def collated(samples: list[Any]) -> Any:
        return UserDict({"images": torch.stack([image for image, _ in samples]), "rest": {"ids": [y for _, y in samples]}})

    loader = DDLPLoader(images, BATCH, num_workers=workers, collate_fn=collated, own_steps="off", seed=7)
    first: Any = None
    for number, batch in enumerate(loader.replay(2 * WARM_UP)):
        assert type(batch) is UserDict and batch["images"].grad is None and not batch["images"].requires_grad
        first = copy.deepcopy(batch) if first is None else first
        assert torch.equal(batch["images"], first["images"]) and batch["rest"] == {"ids": [0, 1, 2, 3]}
        if number % 2:
            batch.pop("images").zero_()
            batch["rest"].clear()
        else:
            (batch["images"].requires_grad_() * 2).sum().backward()


def test_a_batch_that_stays_as_it_is_is_not_copied(images: ImageFiles) -> None:
    places = {batch[0].data_ptr() for batch in DDLPLoader(images, BATCH).replay()}
    assert len(places) == 1
    with torch.inference_mode():
        assert len(list(DDLPLoader(images, BATCH).replay())) == 100


def test_the_batch_transform_runs_in_each_step(images: ImageFiles) -> None:
    called: list[int] = []

    def noted(batch: Any) -> Any:
        called.append(threading.get_ident())
        return {"images": batch[0].neg_(), "number": len(called)}

    loader = DDLPLoader(images, BATCH, batch_transform=noted, seed=7)
    numbers = [(batch["number"], float(batch["images"].sum())) for batch in loader.replay(2 * WARM_UP)]
    assert [number for number, _ in numbers] == list(range(1, 2 * WARM_UP + 1))
    assert set(called) == {threading.get_ident()} and len({total for _, total in numbers}) == 1


def test_the_report_has_the_ceiling_from_then_on(images: ImageFiles) -> None:
    loader = DDLPLoader(torch.utils.data.ConcatDataset([images] * 4), BATCH, num_workers=2)
    for _ in loader:
        pass
    assert loader.report().ceiling is None and "by the time between two batches" in str(loader.report())
    for number, _ in enumerate(loader.replay(30)):
        if number == 20:
            break
    assert loader.report().ceiling is None  # the loop ended early
    for _ in loader.replay(30):
        pass
    report = loader.report()
    assert report.ceiling is not None and report.ceiling.steps == 30 - WARM_UP and report.ceiling.step_s > 0
    assert report.batches_cpu == 24 and report.verdict.replayed and ", replayed)" in str(report) and report.workers == 2
    assert ", replayed)" in report._repr_html_() and loader.live().total.epochs == 1
    for _ in loader:
        pass
    assert loader.report().epoch == 1 and loader.report().verdict.replayed


class Accelerator:
    """Work is queued and done later, as on a GPU. The loop and waiting move its clock forward."""

    def __init__(self) -> None:
        self.now_s = self._free_s = 0.0
        self.queued = 0
        self.drained: list[int] = []  # the number of steps that were queued at each drain

    def clock(self) -> float:
        return self.now_s

    def step(self, host_s: float, work_s: float) -> None:
        self._free_s = max(self._free_s, self.now_s) + work_s
        self.now_s += host_s
        self.queued += 1

    def drain(self) -> None:
        self.now_s = max(self.now_s, self._free_s)
        self.drained.append(self.queued)


@pytest.mark.parametrize("host_s, work_s, step_s", [(0.5, 2.0, 2.0), (2.0, 0.5, 2.0)])
def test_work_that_is_left_to_an_accelerator_counts(host_s: float, work_s: float, step_s: float) -> None:
    accelerator, life = Accelerator(), Life()
    steps = WARM_UP + 16
    for number, _ in enumerate(replayed(torch.zeros(2), steps, None, life, accelerator.drain, accelerator.clock)):
        accelerator.step(host_s, 64.0 if number < WARM_UP else work_s)
    assert accelerator.drained == [WARM_UP, steps]  # never within a step
    assert life.ceiling == Ceiling(step_s, 16)  # all work of the measured steps, and no earlier work


def test_nothing_is_left_running(images: ImageFiles) -> None:
    class Broken(Draws):
        def __getitem__(self, index: int) -> Any:
            raise LookupError("it is gone")

    before = set(threading.enumerate())

    def over() -> bool:  # the threads of torch's queues end a moment after their workers
        return set(threading.enumerate()) <= before and not torch.multiprocessing.active_children()

    for loader in (DDLPLoader(images, BATCH, num_workers=2), DDLPLoader(Draws(), BATCH, num_workers=2)):
        next(loader.replay())
        until(over)
    with pytest.raises(LookupError) as caught:
        DDLPLoader(Broken(), BATCH, num_workers=2).replay()
    until(over)  # the error still holds its frames
    del caught


@pytest.mark.parametrize("kind", ["portable", "user code"])
@pytest.mark.filterwarnings("ignore:ddlp")
def test_an_epoch_goes_on_where_it_was(images: ImageFiles, kind: str) -> None:
    left = LOADERS[kind](images)
    rest: list[list[Any]] = []
    for _ in zip(range(2), left):
        pass
    state = left.state_dict()
    for replays in (False, True):
        loader = LOADERS[kind](images)
        loader.load_state_dict(state)
        if replays:
            assert len(flat(next(loader.replay()))[0]) == BATCH and loader.state_dict() == state
        rest.append(list(loader))
    assert len(rest[0]) == len(rest[1]) == SAMPLES // BATCH - 2 and all(map(equal, *rest))


def test_what_can_not_be_replayed_is_said(images: ImageFiles) -> None:
    class Fixed(Shuffling):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("it has a lock")

    with pytest.raises(ValueError, match="steps=9; give at least 10"):
        DDLPLoader(images, BATCH).replay(9)
    with pytest.raises(DDLPError, match="no batch that could be kept"):
        DDLPLoader(images, 2 * SAMPLES, drop_last=True).replay()
    with pytest.raises(DDLPError, match=r"can't be copied \(TypeError: it has a lock\)"):
        DDLPLoader(images, BATCH, sampler=Fixed()).replay()


