"""Each side alone, as a bare loop: no loader, no ledger, no socket. Its rate is the bound, so it must be as fast as it can be.

Run as a process of its own: ``python -m benchmarks.bare SIDE --data DIR --cpu K ...``. Each line on its standard input is a
number of seconds; 0 means "until the next line". The process prepares batches for so long, then prints one JSON line
``{"samples": n, "began": t, "ended": t}`` (time.monotonic) about the batches that it has finished. The sides: ``host`` and
``engine`` prepare batches. ``fetch`` does what the host does with a batch of the engine: map it, verify it, convert it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import SequentialSampler

from benchmarks.common import BenchFailed, user_environment
from benchmarks.data import loader
from csd_engine.batchfile.reader import Layout
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.machine.directory import Directory
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.sample import prepare_sample
from csd_engine.prepare.started_batch import BatchRequest
from csd_engine.service.worker import Slowdown, WrittenRows
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.sources.base import Epoch, Resources
from ddlp.sources.host.native import Rows
from ddlp.transfer.mapped_batch import map_batch
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.portable import Portable, portable

_FETCHED_FILES = 4


def delivered_as(output: str) -> torch.memory_format:
    """Return the memory format of the images: for uint8 the batch file's, which needs no conversion; else ToTensor's."""
    return torch.channels_last if output == "uint8" else torch.contiguous_format


def _order(parts: Portable) -> list[int]:
    """Return a fixed random order of all samples. A loop repeats it, so the few very large files count as in an epoch."""
    return np.random.default_rng(0).permutation(len(parts.dataset)).tolist()


def host_batch(parts: Portable, batch: int, order: Sequence[int] | None = None) -> Callable[[int], torch.Tensor]:
    """Return a function that prepares the n-th batch as the host does: reads, decodes, transforms, applies the epilogue.

    ``order``: the indices to repeat again and again; None: all, in a fixed random order.
    """
    ring = np.asarray(order or _order(parts))
    maker = _maker(parts)
    never_before = np.zeros(batch, dtype=np.int64)
    # The same memory for every batch. A loader can't do that, since it gives its batches away; but a bound must not be too low.
    plan = EpochPlan(SequentialSampler(range(0)), parts.dataset, whole=True, batched=False)
    resources = Resources(Epoch(parts, 0, 0), plan, parts.dataset.reader(), MemoryPool(1))
    rows = Rows(resources, batch)

    def make(k: int) -> torch.Tensor:
        sources, at = ring[(k * batch + np.arange(batch)) % len(ring)], 0
        with maker.start(BatchRequest(sources, never_before, 0, k, known=True)) as started:
            while at < batch:
                at = started.make(at, rows)
        return rows.pixels().images

    return make


def _maker(parts: Portable) -> BatchMaker:
    return BatchMaker(parts.dataset.reader(), parts.pipeline, parts.shape, parts.pipeline.boxes)


def engine_batch(parts: Portable, batch: int, directory: str, slowdown: float) -> Callable[[int], object]:
    """Return a function that prepares the n-th batch as an engine's worker does: into a file in the spool, which it removes."""
    maker, ring = _maker(parts), np.asarray(_order(parts))
    layout, never_before = Layout(batch, *parts.shape, 0), np.zeros(batch, dtype=np.int64)
    spool = Directory(directory)
    slow = Slowdown(slowdown)  # as in the worker: a slow processor also writes its files slowly

    def make(k: int) -> None:
        slow.begin()
        writer = BatchWriter(spool, f"{k:032x}", k, layout)
        sources, at = ring[(k * batch + np.arange(batch)) % len(ring)], 0
        rows = WrittenRows(writer)
        with maker.start(BatchRequest(sources, never_before, 0, k)) as started:
            while at < batch:
                at = started.make(at, rows)
                if owed_s := slow.owed_s():
                    began = time.monotonic()
                    time.sleep(owed_s)
                    slow.slept(time.monotonic() - began)
        writer.publish().unlink()

    return make


def fetched_batch(parts: Portable, batch: int, directory: str) -> Callable[[int], object]:
    """Return a function that fetches the n-th batch file as the host does: maps and verifies it, then applies the epilogue."""
    pool = MemoryPool(2)
    layout = Layout(batch, *parts.shape, 0)
    reader, order = parts.dataset.reader(), _order(parts)
    paths = []
    for number in range(_FETCHED_FILES):
        writer = BatchWriter(Directory(directory), f"{number:032x}", number, layout)
        for row in range(batch):
            pixels = np.empty(parts.shape, dtype=np.uint8)
            prepare_sample(reader, parts.pipeline, (order[(number * batch + row) % len(order)], 0), 0, 0, pixels, None)
            writer.write_rows(row, pixels[np.newaxis])
        paths.append(writer.publish())

    def make(k: int) -> torch.Tensor:
        number = k % _FETCHED_FILES
        mapped = map_batch(paths[number], f"{number:032x}", number, layout)
        assert mapped is not None
        return parts.epilogue(torch.from_numpy(mapped.images), pool=pool)

    return make


def main(arguments: list[str] | None = None) -> None:
    """Run one side for each time that standard input asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description=__doc__)
    parser.add_argument("side", choices=["host", "engine", "fetch"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pipeline", default="imagenet1")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cpu", type=int, default=None, help="run on this CPU alone")
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--output", default="float32")
    parser.add_argument("--spool", default=None)
    options = parser.parse_args(arguments)
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    torch.set_num_threads(1)
    images = loader(options.data, options.pipeline, options.batch)
    parts = portable(images, getattr(torch, options.output), delivered_as(options.output))
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-", dir=options.spool) as spool:
        make: Callable[[int], object]
        if options.side == "host":
            make = host_batch(parts, options.batch)
        elif options.side == "engine":
            make = engine_batch(parts, options.batch, spool, options.slowdown)
        else:
            make = fetched_batch(parts, options.batch, spool)
        make(0)  # warm: imports, page cache, tables
        print("ready", flush=True)
        done = 0
        while line := sys.stdin.readline():
            seconds, first, began = float(line), done, time.monotonic()
            while time.monotonic() - began < seconds if seconds else not _is_told():
                make(done + 1)
                done += 1
            ended = time.monotonic()
            if not seconds:
                sys.stdin.readline()
            print(json.dumps({"samples": (done - first) * options.batch, "began": began, "ended": ended}), flush=True)


def _is_told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Timed(NamedTuple):
    """A rate in samples a second, and the time in which it was measured (time.monotonic)."""

    rate: float
    began: float
    ended: float

    @classmethod
    def of(cls, samples: int, began: float, ended: float) -> Timed:
        """Return the rate of so many samples in this time."""
        return cls(samples / (ended - began), began, ended)


class Bare:
    """A bare loop in a process of its own. `go` starts it, `result` waits for its figures. A context."""

    def __init__(
        self, side: str, data: Path, batch: int, cpu: int, output: str, slowdown: float = 1.0, pipeline: str = "imagenet1"
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.bare", side, "--data", str(data), "--batch", str(batch)]
        command += ["--cpu", str(cpu), "--slowdown", repr(slowdown), "--output", output, "--pipeline", pipeline]
        self._endless = False
        # In a session of its own, so that Ctrl-C reaches this process alone. This process ends the other.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=user_environment(), start_new_session=True
        )
        try:
            if self._answer() != "ready":
                raise BenchFailed(f"the bare {side} loop did not start: {' '.join(command)}")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, at which it ends; after a signal its spool would be left behind

    def go(self, seconds: float = 0.0) -> None:
        """Start. ``seconds``: how long the loop runs; 0: until `result` is called."""
        self._endless = not seconds
        self._say(repr(seconds))

    def result(self) -> Timed:
        """Wait until the time is over, and return the rate."""
        if self._endless:
            self._say("enough")
        answer = json.loads(self._answer())
        return Timed.of(answer["samples"], answer["began"], answer["ended"])

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return line.strip()


def both_at_once(sides: Sequence[Bare], seconds: float) -> list[Timed]:
    """Run all sides at the same time, each on its CPU, and return their rates."""
    for side in sides:
        side.go(seconds)
    return [side.result() for side in sides]


if __name__ == "__main__":
    main()
