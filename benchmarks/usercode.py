"""Samples/s of data sets that can't travel, against DataLoader with the same workers.

Such data sets run in torch's own workers, or with 0 workers in the training process. The random draws of each sample are keyed.
The bench shows what that costs: both loaders run epochs of the same data set by turns, without training. The clock runs from an
epoch's first batch to its last, so it leaves out the start of the workers. Only `audio` draws random numbers.

The sets of images (`benchmarks.user_images`) run with one worker, on one core with the loader.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from benchmarks.common import Aim, add_output, alternate, command, emit, say, spread
from benchmarks.data import add_data, ensure_data
from benchmarks.user_images import IMAGE_SETS, missing
from ddlp import decode
from ddlp.loader import DDLPLoader
from ddlp.process.cores import pinned
from ddlp.tryout.rounds import ratios

PEER, OURS = "DataLoader", "DDLPLoader"
_AIM = 0.95


class Trivial(Dataset):
    """A sample is its number."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return index


class Batches(Trivial):
    """Rows of a matrix. One call of ``__getitems__`` gives a batch."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._rows = torch.randn(samples, 32)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return list(self._rows[indices])


class Dicts(Trivial):
    """Dicts of three values, one of them text."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((16,), float(index)), "label": index % 10, "name": f"sample {index}"}


class Rows(Trivial):
    """Lines of a CSV file. A line is parsed when it is asked for."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._lines = [",".join(f"{number:.4f}" for number in row) for row in torch.rand(samples, 20).tolist()]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        *values, target = map(float, self._lines[index].split(","))
        return torch.tensor(values), target


class Audio(Trivial):
    """The logarithm of the spectrum of a tone with noise: one second at 16 kHz, cut at random."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        tone = torch.sin(torch.arange(16_000) * (2 * math.pi * (200 + index % 800) / 16_000))
        first = int(torch.randint(0, 4_000, ()))
        wave = (tone + 0.1 * torch.randn(16_000))[first : first + 12_000]
        spectrum = torch.stft(wave, 400, 160, window=torch.hann_window(400), return_complex=True)
        return spectrum.abs().log1p(), index % 10


class Stream(IterableDataset):
    """A stream of rows and their numbers, divided among the workers."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return ((torch.full((16,), float(index)), index) for index in range(first, self._samples, step))


def _tensors(samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 32), torch.arange(samples))


# How each is made from a number of samples, and how many thousand samples an epoch has.
SETS: dict[str, tuple[Callable[[int], Any], int]] = {
    "TensorDataset": (_tensors, 100),
    "trivial": (Trivial, 400),
    "__getitems__": (Batches, 200),
    "dicts": (Dicts, 40),
    "CSV rows": (Rows, 40),
    "audio": (Audio, 2),
    "IterableDataset": (Stream, 60),
}


@dataclass
class Line:
    """One data set and number of workers: samples/s of each round."""

    data: str
    workers: int
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> list[float]:
        """Ours divided by DataLoader's, round by round."""
        return ratios(self.ours, self.theirs)


@dataclass
class Result:
    """All data sets."""

    batch: int
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--batch", type=int, default=64, help="batch size (%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="num_workers (0 1 2)")
    sets = [*SETS, *IMAGE_SETS]
    parser.add_argument("--sets", choices=sets, nargs="+", default=list(SETS), metavar="S", help=f"of {', '.join(sets)}")
    parser.add_argument("--part", type=float, default=1.0, metavar="X", help="part of each epoch's samples (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (%(default)s)")
    add_data(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    result = measure(options)
    aims = [
        Aim(f"{OURS} / {PEER}, {line.data}, {line.workers} workers", _aim(line.data), statistics.median(line.ratio))
        for line in result.lines
    ]
    emit(options, result, table(result), aims)
    return 0


def measure(options: argparse.Namespace) -> Result:
    """Measure all rounds. Both loaders take turns with each data set and number of workers."""
    result = Result(options.batch)
    for data in options.sets:
        if data in IMAGE_SETS:
            result.lines += _images(options, data)
            continue
        make, thousands = SETS[data]
        dataset = make(max(3 * options.batch, round(1000 * thousands * options.part)))
        shuffle = None if isinstance(dataset, IterableDataset) else True
        for workers in options.workers:
            say(f"{data}, {workers} workers")
            result.lines.append(_line(options, data, dataset, shuffle, workers))
    return result


def _images(options: argparse.Namespace, data: str) -> list[Line]:
    """Measure a set of images with one worker, on one core. Returns nothing if its package is missing."""
    if lacks := missing(data):
        say(f"{data}: left out, {lacks} is not installed")
        return []
    say(f"{data}, 1 worker, one core")
    dataset = IMAGE_SETS[data][0](ensure_data(options.data))
    shuffle = None if isinstance(dataset, IterableDataset) else True
    with pinned(min(os.sched_getaffinity(0))):
        return [_line(options, data, dataset, shuffle, 1)]


def _line(options: argparse.Namespace, data: str, dataset: Any, shuffle: bool | None, workers: int) -> Line:
    how: dict[str, Any] = {"shuffle": shuffle, "num_workers": workers}
    loaders = {  # workers that DataLoader forks here would have postponed images, too
        PEER: DataLoader(dataset, options.batch, worker_init_fn=decode.not_here, **how),
        OURS: DDLPLoader(dataset, options.batch, **how),
    }
    turns = {name: partial(samples_per_s, loader, options.batch) for name, loader in loaders.items()}
    figures = alternate(turns, options.rounds, say, "samples/s")
    return Line(data, workers, figures[PEER], figures[OURS])


def _aim(data: str) -> float:
    return IMAGE_SETS[data][2] if data in IMAGE_SETS else _AIM


def samples_per_s(loader: Any, batch: int) -> float:
    """Run an epoch. Return samples a second, from its first batch on."""
    batches = iter(loader)
    next(batches)
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
    return count * batch / (time.perf_counter() - began)


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"samples/s in batches of {result.batch}, nobody trains; medians (least .. most) of {len(result.lines[0].ours)} rounds",
        f"{'data set':17}{'workers':>7}{PEER:>30}{OURS:>30}{'ours / DataLoader':>24}",
    ]
    for line in result.lines:
        rows.append(
            f"{line.data:17}{line.workers:7}{spread(line.theirs):>30}{spread(line.ours):>30}{spread(line.ratio, '.2f'):>24}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
