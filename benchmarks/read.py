"""A published batch file into tensors, its checksum verified, against a raw read of the same bytes.

Three ways are measured. The file is mapped, as files of an engine on this machine are. It is read into memory that is there
already, as the pool's is, or a GPU's pinned buffers (pinned here if there is a GPU). It is read into fresh memory. The bound is
a raw read: `os.readv` from the page cache into the same kind of memory; beside the mapping, into memory that is there. The
checksum alone, over bytes in memory, shows the cost of the verification. Fresh memory comes from numpy for the raw read, and
from `csd_engine.kernels.fresh_memory` for the batch.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Aim, add_output, alternate, command, emit, say, spread
from csd_engine.batchfile.checksum import Checksum
from csd_engine.batchfile.reader import Layout, read_batch
from csd_engine.batchfile.writer import BatchWriter
from ddlp.process.cores import pinned
from ddlp.transfer.mapped_batch import map_batch
from ddlp.tryout.rounds import ratios

MAPPED = "a mapping"
WAYS = (MAPPED, "memory that is there", "fresh memory")
VERIFIED, RAW, CHECKSUM = "verified batch, {}", "raw read, {}", "checksum alone"
_AIM = 0.9
_FILES = 4


@dataclass
class Result:
    """Rates in MB (1e6 bytes) a second, round by round."""

    batch: int
    file_mb: float
    pinned: bool
    clock: str
    rates: dict[str, list[float]] = field(default_factory=dict)

    def of_raw(self, way: str) -> list[float]:
        """Return the verified batch's rate divided by the raw read's, round by round."""
        return ratios(self.rates[VERIFIED.format(way)], self.rates[RAW.format(WAYS[1] if way == MAPPED else way)])


def report_parts(quick: bool) -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    return [("A batch file into tensors", ["--rounds", "3", "--batch", "64", "--reads", "4"] if quick else [])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--batch", type=int, default=256, help="images of a batch (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="their height and width in pixels (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (%(default)s)")
    parser.add_argument("--reads", type=int, default=12, help="batches of a turn (%(default)s)")
    parser.add_argument("--spool", help="directory for the files (the system's temporary one)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time, if other programs run")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    with pinned(max(os.sched_getaffinity(0))), tempfile.TemporaryDirectory(prefix="ddlp-bench-", dir=options.spool) as spool:
        result = measure(options, Path(spool))
    emit(
        options,
        result,
        table(result),
        [Aim(f"{way}: of a raw read", _AIM, statistics.median(result.of_raw(way))) for way in WAYS],
    )
    return 0


def measure(options: argparse.Namespace, spool: Path) -> Result:
    """Measure all rounds, on files that were just written."""
    layout = Layout(options.batch, options.size, options.size, 3)
    paths = [_written(spool, number, layout) for number in range(_FILES)]
    buffer = torch.empty(layout.image_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    held = buffer.numpy()
    held[:] = 0  # so that its pages are there

    def verified(number: int, memory: np.ndarray | None) -> None:
        batch = read_batch(paths[number], f"{number:032x}", number, layout, memory)
        torch.from_numpy(batch.images)

    def raw(number: int, memory: np.ndarray | None) -> None:
        memory = np.empty(layout.image_bytes, np.uint8) if memory is None else memory
        descriptor = os.open(paths[number], os.O_RDONLY)
        try:
            view, done = memoryview(memory), 0
            os.lseek(descriptor, layout.file_bytes - layout.data_bytes, os.SEEK_SET)
            while done < len(view):
                done += os.readv(descriptor, [view[done:]])
        finally:
            os.close(descriptor)
        torch.from_numpy(memory)

    def checksum(number: int, memory: np.ndarray | None) -> None:
        total = Checksum()
        total.update(memoryview(held))
        total.hexdigest()

    def mapped(number: int, memory: np.ndarray | None) -> None:
        batch = map_batch(paths[number], f"{number:032x}", number, layout)
        assert batch is not None
        torch.from_numpy(batch.images)

    turns: dict[str, Callable[[], float]] = {VERIFIED.format(MAPPED): _turn(mapped, None, options, layout)}
    for way, memory in zip(WAYS[1:], (held, None), strict=True):
        turns[VERIFIED.format(way)] = _turn(verified, memory, options, layout)
        turns[RAW.format(way)] = _turn(raw, memory, options, layout)
    turns[CHECKSUM] = _turn(checksum, held, options, layout)
    for turn in turns.values():
        turn()
    result = Result(options.batch, layout.file_bytes / 1e6, torch.cuda.is_available(), options.clock)
    result.rates = alternate(turns, options.rounds, say, "MB/s")
    return result


def _turn(
    once: Callable[[int, np.ndarray | None], None], memory: np.ndarray | None, options: argparse.Namespace, layout: Layout
) -> Callable[[], float]:
    clock = time.perf_counter if options.clock == "wall" else time.process_time

    def turn() -> float:
        gc.collect()
        began = clock()
        for k in range(options.reads):
            once(k % _FILES, memory)
        return options.reads * layout.image_bytes / 1e6 / (clock() - began)

    return turn


def _written(spool: Path, number: int, layout: Layout) -> Path:
    writer = BatchWriter(str(spool), f"{number:032x}", number, layout)
    draws = np.random.default_rng(number)
    for row in range(layout.batch):
        writer.write(row, draws.integers(0, 256, (layout.height, layout.width, layout.channels), dtype=np.uint8))
    return Path(writer.publish())


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"batches of {result.batch}, {result.file_mb:.1f} MB each, from the page cache, one core; MB/s, medians (least .. most)"
    ]
    for name, rates in result.rates.items():
        rows.append(f"{name:40}{spread(rates):>26}")
    for way in WAYS:
        rows.append(f"verified / raw, {way:24}{spread(result.of_raw(way), '.3f'):>26}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
