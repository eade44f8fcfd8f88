"""Trains with user code in two workers, and ends in a way: `python -m tests.ddlp.sources.workers.leaves WAY START`.

It prints the workers' process ids once training has its third batch.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils.data import Dataset

from ddlp import DDLPLoader

WAYS = {
    "Ctrl-C": "trains on until it gets SIGINT",
    "kill -9": "trains on until it gets SIGKILL",
    "exception": "an exception in the loop",
    "del": "the iterator is dropped, then the process sleeps",
    "exit": "the loader is there when the interpreter exits",
}


class Rows(Dataset):
    """Samples of 80 kB, so that batches are in shared memory."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return torch.full((20_000,), float(index)), str(index)


def main(way: str, start: str) -> None:
    """Train."""
    loader = DDLPLoader(Rows(), 4, num_workers=2, multiprocessing_context=start)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3)]
    print(*(worker.pid for worker in iterator._workers), flush=True)
    if way == "exception":
        raise ValueError("the user's own error")
    if way == "exit":
        return
    if way == "del":
        del iterator
        print("dropped", flush=True)
        time.sleep(600)
    for batch in iterator:
        kept[0] = batch


if __name__ == "__main__":
    main(*sys.argv[1:])
