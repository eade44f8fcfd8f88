"""Workers that are forked beside threads of all kinds begin: no lock that they need is held in them."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from torchvision import datasets, transforms

from ddlp import DDLPLoader
from tests.small_images import make_images

TRANSFORM = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])


class Opened(Dataset):
    """Images that the user's code opens: the workers use what ddlp postpones, its kernel and torch."""

    def __init__(self, root: Path) -> None:
        self.images = datasets.ImageFolder(str(root), TRANSFORM)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.images[index]


@pytest.mark.parametrize("forks", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_no_fork_hangs(forks, tmp_path, capsys):
    make_images(tmp_path / "class", 24)
    over = threading.Event()
    second = DDLPLoader(datasets.ImageFolder(str(tmp_path), TRANSFORM), 4, num_workers=2)

    def trains() -> None:
        while not over.is_set():
            for _ in second:
                pass

    def shows_progress() -> None:
        while not over.is_set():
            print(second.live().report.samples, end="\r", file=sys.stderr)

    def computes() -> None:
        while not over.is_set():
            torch.ones(300, 300) @ torch.ones(300, 300)

    threads = [threading.Thread(target=loop) for loop in (trains, shows_progress, computes)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(forks):
            batches = list(DDLPLoader(Opened(tmp_path), 2, num_workers=2, timeout=120))
            assert [len(images) for images, _ in batches] == [2, 2]
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("module", ["ddlp.decode.opening", "csd_engine.kernels", "ddlp.sources.engine.embedded"])
@pytest.mark.parametrize("holder", ["another thread", "this one"])
def test_a_lock_of_ours_that_is_held_at_the_fork(module, holder, tmp_path):
    make_images(tmp_path / "class", 4)
    lock = importlib.import_module(module)._lock
    held, over = threading.Event(), threading.Event()

    def holds() -> None:
        with lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=holds)
    thread.start()
    held.wait()
    if holder == "this one":
        over.set()
        thread.join()
        lock.acquire()
    try:
        iterator = iter(DDLPLoader(Opened(tmp_path), 2, num_workers=1, timeout=120))
        if holder == "another thread":  # as far as the training process does not want it itself
            over.set()
        assert [len(images) for images, _ in iterator] == [2, 2]
    finally:
        if holder == "this one":
            lock.release()
        over.set()
        thread.join()
