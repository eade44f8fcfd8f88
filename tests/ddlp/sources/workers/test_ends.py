"""A worker that dies is named with what has ended it, and its sample. One that does not begin is told of, with the place."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset
from torchvision import datasets, transforms

from ddlp import DDLPLoader
from ddlp.sources.workers import context
from tests.small_images import make_images


class Ends(Dataset):
    """Sample ``last`` ends its process."""

    def __init__(self, how: Any, last: int = 5) -> None:
        self.how, self.last = how, last

    def __len__(self) -> int:
        return 8000

    def __getitem__(self, index: int) -> int:
        if index == self.last:
            self.how()
        return index


def by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def by_exit() -> None:
    os._exit(3)


HOW = {"killed": (by_signal, "is killed by signal: Killed"), "exit": (by_exit, "exited unexpectedly, with code 3")}


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.some(3)
def test_a_dead_worker_is_named_with_its_sample(how, start):
    ends, words = HOW[how]
    loader = DDLPLoader(Ends(ends), 4, num_workers=2, multiprocessing_context=start)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid \d+\) {words}. It was worker 1, at sample 5"):
        list(loader)


def test_of_quick_samples_the_batch_is_named():
    with pytest.raises(RuntimeError, match=r"at one of the samples \[7000, 7001\]"):
        list(DDLPLoader(Ends(by_signal, 7001), 2, num_workers=1))


def test_a_sample_of_a_loader_without_batches_is_named():
    with pytest.raises(RuntimeError, match="is killed by signal: Killed. It was worker 0, at sample 5"):
        list(DDLPLoader(Ends(by_signal), None, num_workers=1))


class EndingStream(IterableDataset):
    def __iter__(self) -> Any:
        yield 1
        by_signal()


def test_a_stream_that_dies_is_named():
    with pytest.raises(RuntimeError, match="is killed by signal: Killed. It was worker 0, while it made a batch"):
        list(DDLPLoader(EndingStream(), 1, num_workers=1))


class DiesAt:
    """A step that ends its process at its third image."""

    count = 0

    def __call__(self, image: Any) -> Any:
        self.count += 1
        if self.count == 3:
            by_signal()
        return image


def test_own_steps_that_die_are_named_with_the_file(tmp_path):
    make_images(tmp_path / "class", 8)
    transform = transforms.Compose([transforms.Resize((32, 32)), DiesAt(), transforms.ToTensor()])
    loader = DDLPLoader(datasets.ImageFolder(str(tmp_path), transform), 4, num_workers=1)
    with pytest.raises(RuntimeError, match=r"is killed by signal: Killed. It was worker 0, at sample .*\.(jpg|png)"):
        list(loader)


class Sleeps:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, worker: int) -> None:
        waits_for_what_it_needs(self.seconds)


def waits_for_what_it_needs(seconds: float) -> None:
    time.sleep(seconds)


def test_a_silent_worker_is_told_of_with_its_place(monkeypatch):
    monkeypatch.setattr(context, "_SILENT_S", 1.0)
    loader = DDLPLoader(Ends(by_exit), 1, num_workers=1, worker_init_fn=Sleeps(3.0), sampler=[1])
    with pytest.warns(UserWarning, match=r"worker 0 \(pid \d+\) has not asked for work 1 s after its start .*waits_for_what"):
        list(loader)


def test_a_lock_that_was_held_at_the_fork_is_suspected(monkeypatch):
    monkeypatch.setattr(context, "_SILENT_S", 1.0)
    lock, until = threading.Lock(), time.monotonic() + 3
    hangs = [True]

    def as_a_library_does() -> None:
        if hangs[0]:
            lock.acquire(timeout=max(0.0, until - time.monotonic()))

    os.register_at_fork(after_in_child=as_a_library_does)
    with lock:
        try:
            with pytest.warns(UserWarning, match="the kernel says it waits in futex.*another thread held a lock"):
                list(DDLPLoader(Ends(by_exit), 1, num_workers=1, sampler=[1]))
        finally:
            hangs[0] = False


class Helped(Ends):
    """A process of the worker's own has the worker's ends of the pipes, and outlives it."""

    def __getitem__(self, index: int) -> int:
        if index == 0 and os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_whose_own_child_lives_on(workers):
    with pytest.raises(RuntimeError, match="is killed by signal: Killed.*at sample 5"):
        list(DDLPLoader(Helped(by_signal), 8, num_workers=workers))
