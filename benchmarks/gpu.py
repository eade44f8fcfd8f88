"""Batch files into a GPU's memory, GB/s of each way, beside the most that the machine can do.

The bound is a copy of the same bytes from page-locked memory. A raw read shows how fast the files can be read: into page-locked
memory, by as many threads as the `pinned` way has, without a copy. Each way runs as in a loader, with two fetchers. First its
reads alone are measured, then each batch is also verified on the device and finished by the epilogue. Files are read from the
page cache unless --cold.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Aim, BenchFailed, add_output, alternate, command, emit, say, spread
from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.batchfile.reader import Layout, open_batch
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.machine.directory import Directory
from ddlp.errors import DDLPError
from ddlp.schedule.slots import FETCHERS
from ddlp.transfer.choose_transfer import WAYS, ways
from ddlp.transfer.device_stream import CudaStream, DeviceStream
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.file_readers import BLOCK_BYTES, READERS, FileReader, PinnedReader
from ddlp.transfer.gpu_transfer import FileTransfer, GpuTransfer
from ddlp.transfer.mapped_batch import may_map
from ddlp.tryout.rounds import ratios

BOUND, RAW = "copy from page-locked memory", "raw read"
ALONE, WHOLE = "{}: read", "{}: read, verified, finished"
_AIM = 0.9  # of the bound
Work = Callable[[range], None]  # does the reads of these numbers


@dataclass
class Result:
    """Rates in GB (1e9 bytes) a second, round by round. `missing`: ways that could not take part, and why."""

    device: str
    batch: int
    file_mb: float
    cold: bool
    missing: dict[str, str] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments; none if there is no GPU."""
    return [("Batch files into the GPU's memory", [])] if torch.cuda.is_available() else []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--device", default="cuda", help="cpu only shows that the benchmark runs (%(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="images of a batch (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="their height and width in pixels (%(default)s)")
    parser.add_argument("--files", type=int, default=8, help="number of batch files (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (%(default)s)")
    parser.add_argument("--reads", type=int, default=32, help="batches of a turn (%(default)s)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="W", help="any of %(choices)s (all)")
    parser.add_argument(
        "--pinned", nargs="+", type=_blocks, default=[], metavar="READERSxMIB",
        help=f"also measure the pinned way with so many threads and MiB a block (else {READERS}x{BLOCK_BYTES >> 20} alone)",
    )  # fmt: skip
    parser.add_argument("--spool", help="directory for the files (the system's temporary one)")
    parser.add_argument("--cold", action="store_true", help="drop a file from the page cache before each read of it")
    add_output(parser)


def _blocks(text: str) -> tuple[int, int]:
    match = re.fullmatch("([1-9][0-9]*)x([1-9][0-9]*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text}: wanted is READERSxMIB, as 16x4")
    return int(match[1]), int(match[2])


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BenchFailed("torch finds no GPU here (`nvidia-smi` says why); --device cpu shows that the benchmark runs.")
    stream = CudaStream(device) if device.type == "cuda" else DeviceStream(device)
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-", dir=options.spool) as spool:
        result = measure(options, stream, Path(spool))
    best = [name for name in (ALONE.format("pinned"),) if name in result.rates]
    aims = [
        Aim(f"{name}: of a {BOUND}", _AIM, statistics.median(ratios(result.rates[name], result.rates[BOUND]))) for name in best
    ]
    emit(options, result, table(result), aims)
    return 0


def measure(options: argparse.Namespace, stream: DeviceStream, spool: Path) -> Result:
    """Measure all rounds."""
    layout = Layout(options.batch, options.size, options.size, 3)
    files = [_written(spool, number, layout) for number in range(options.files)]
    name = torch.cuda.get_device_name(stream.device) if stream.device.type == "cuda" else str(stream.device)
    result = Result(name, options.batch, layout.file_bytes / 1e6, options.cold)
    on_device = torch.empty(layout.data_bytes, dtype=torch.uint8, device=stream.device)
    locked = torch.empty(layout.data_bytes, dtype=torch.uint8, pin_memory=stream.pinned)

    def copy(reads: range) -> None:
        for _ in reads:
            with stream.work():
                on_device.copy_(locked, non_blocking=True)
        stream.event().wait()

    def turn(work: Work) -> Callable[[], float]:
        def timed() -> float:
            seconds = 0.0
            for part in _parts(options):
                if options.cold:
                    for k in part:
                        _forget(files[k % len(files)])
                began = time.monotonic()
                work(part)
                seconds += time.monotonic() - began
            return options.reads * layout.data_bytes / 1e9 / seconds

        return timed

    turns = {BOUND: turn(copy), RAW: turn(lambda reads: _raw(files, layout, reads, stream))}
    opened: list[FileReader | GpuTransfer] = []
    mapped = may_map(spool)
    openers = {name: ways(stream, name) for name in options.ways}
    for readers, mib in options.pinned:
        openers[f"pinned, {readers} x {mib} MiB"] = partial(_pinned, stream, readers, mib << 20)
    for name, open_ways in openers.items():
        try:
            way = open_ways(spool, mapped)[0]
        except DDLPError as error:
            result.missing[name] = str(error)
            continue
        turns[ALONE.format(name)] = turn(_alone(way, stream, files, layout))
        gpu_transfer = GpuTransfer(stream, open_ways)
        opened += [way, gpu_transfer]
        turns[WHOLE.format(name)] = turn(_whole(gpu_transfer.open(spool, mapped), files, layout))
    try:
        for timed in turns.values():
            timed()  # warm: memory, its registration, the page cache
        result.rates = alternate(turns, options.rounds, say, "GB/s")
    finally:
        for opener in opened:
            opener.close()
    return result


def _pinned(stream: DeviceStream, readers: int, block_bytes: int, spool: Path, mapped: bool) -> list[FileReader]:
    return [PinnedReader(stream, readers, block_bytes)]


def _parts(options: argparse.Namespace) -> list[range]:
    """Return the reads of a turn in parts; the clock runs within a part. With --cold, a part has each file once."""
    step = options.files if options.cold else options.reads
    return [range(first, min(first + step, options.reads)) for first in range(0, options.reads, step)]


def _alone(way: FileReader, stream: DeviceStream, files: list[Path], layout: Layout) -> Work:
    buffers: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    for _ in range(FETCHERS):
        buffer = torch.empty(layout.data_bytes, dtype=torch.uint8, device=stream.device)
        way.prepare(buffer)
        buffers.put(buffer)

    def read(k: int) -> None:
        path, buffer = files[k % len(files)], buffers.get()
        with open_batch(path, layout) as descriptor:
            kept = way.read(path, descriptor, buffer, layout.data_bytes)
            stream.event().wait()
            del kept
        buffers.put(buffer)

    return _by_fetchers(read)


def _whole(gpu_transfer: FileTransfer, files: list[Path], layout: Layout) -> Work:
    table = torch.arange(256, dtype=torch.float32).div(255).repeat(3, 1)
    epilogue = Epilogue(table, torch.zeros(0, 3))

    def read(k: int) -> None:
        number = k % len(files)
        gpu_transfer.read(epilogue, files[number], f"{number:032x}", number, layout)

    return _by_fetchers(read)


def _by_fetchers(read: Callable[[int], None]) -> Work:
    def work(reads: range) -> None:
        with ThreadPoolExecutor(FETCHERS) as fetchers:
            list(fetchers.map(read, reads))

    return work


def _raw(files: list[Path], layout: Layout, reads: range, stream: DeviceStream) -> None:
    """Read the files' bytes by as many threads as the `pinned` way has, each into memory of its own."""

    def part(work: tuple[int, int]) -> None:
        number, start = work
        place = memoryview(blocks[start // BLOCK_BYTES % READERS].numpy())
        os.preadv(descriptors[number], [place[: min(BLOCK_BYTES, layout.data_bytes - start)]], DATA_OFFSET + start)

    blocks = [torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=stream.pinned) for _ in range(READERS)]
    descriptors = [os.open(path, os.O_RDONLY) for path in files]
    try:
        with ThreadPoolExecutor(READERS) as readers:
            parts = [(k % len(files), start) for k in reads for start in range(0, layout.data_bytes, BLOCK_BYTES)]
            list(readers.map(part, parts))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _written(spool: Path, number: int, layout: Layout) -> Path:
    writer = BatchWriter(Directory(str(spool)), f"{number:032x}", number, layout)
    draws = np.random.default_rng(number)
    writer.write_rows(0, draws.integers(0, 256, layout.image_shape, dtype=np.uint8))
    return Path(writer.publish())


def _forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    where = "read from the disk" if result.cold else "in the page cache"
    rows = [
        f"{result.device}; batches of {result.batch}, {result.file_mb:.1f} MB each, {where}; GB/s, medians (least .. most)",
        *(
            f"{name:38}{spread(rates, '.2f'):>26}{statistics.median(ratios(rates, result.rates[BOUND])):10.3f} of the bound"
            for name, rates in result.rates.items()
        ),
        *(f"{name}: not here: {why}" for name, why in result.missing.items()),
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
