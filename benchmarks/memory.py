"""Memory of all processes during an epoch, the engine's included, against DataLoader's.

All have the same data set, batch size and number of workers. Training steps are so long that each loader prefetches as much as
it may. Each loader runs in a program of its own. The PSS (proportional set size) of its processes is added up ten times a
second from the first batch on; a page that n processes share counts 1/n in each. Batches in shared memory that no process has
mapped are in no PSS: they are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.common import Aim, BenchFailed, add_output, alternate, command, emit, say, spread, user_environment
from benchmarks.data import MEANS_KB, add_data, ensure_data
from ddlp.process.cores import family

PEER = "DataLoader"
STRATEGIES = {"DDLPLoader, cpu": "cpu", "DDLPLoader, wrr with its engine": "wrr"}


@dataclass
class Line:
    """A contender: memory of all its processes, in MB (1e6 bytes). `unmapped_mb`: the part of the peak that none has mapped."""

    name: str
    peak_mb: list[float] = field(default_factory=list)
    unmapped_mb: list[float] = field(default_factory=list)
    median_mb: list[float] = field(default_factory=list)
    processes: int = 0


@dataclass
class Result:
    """All contenders."""

    batch: int
    workers: int
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_data(parser)
    parser.add_argument("--batch", type=int, default=256, help="batch size (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="num_workers of each (%(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="batches taken (%(default)s)")
    parser.add_argument("--step-s", type=float, default=1.5, help="seconds of a training step (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    directory = ensure_data(options.data, "imagenet1", MEANS_KB[0])
    result = Result(options.batch, options.workers, [Line(name) for name in (PEER, *STRATEGIES)])

    def turn(line: Line) -> float:
        samples, line.processes = _watched(line.name, directory, options)
        peak = max(samples)
        line.peak_mb.append(peak[0] / 1e6)
        line.unmapped_mb.append(peak[1] / 1e6)
        line.median_mb.append(statistics.median(total for total, _ in samples) / 1e6)
        return line.peak_mb[-1]

    alternate({line.name: lambda line=line: turn(line) for line in result.lines}, options.rounds, say, "MB")  # type: ignore[misc]
    peer, *ours = result.lines
    aims = [
        Aim(f"{PEER} / {line.name}, peak", 1.0, statistics.median(peer.peak_mb) / statistics.median(line.peak_mb))
        for line in ours
    ]
    emit(options, result, table(result), aims)
    return 0


def _watched(name: str, directory: Path, options: argparse.Namespace) -> tuple[list[tuple[int, int]], int]:
    """Return (bytes, of these unmapped) of all processes, ten times a second, and the largest number of processes."""
    work = {
        "name": name, "directory": str(directory), "batch": options.batch, "workers": options.workers, "steps": options.steps,
        "step_s": options.step_s,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.child", "benchmarks.memory"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=user_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(work) + "\n")
    process.stdin.flush()
    try:
        if process.stdout.readline() != "first batch\n":
            raise BenchFailed(f"{name}: no batch came; its messages are above.")
        over = threading.Event()
        ends = threading.Thread(target=_set_at_a_line, args=(process.stdout, over), daemon=True)
        ends.start()
        samples, most = [], 0
        while not over.wait(0.1):
            pids = family(process.pid)
            most = max(most, len(pids))
            samples.append(held_bytes(pids))
        return samples or [(0, 0)], most
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _set_at_a_line(stream: IO[str], event: threading.Event) -> None:
    stream.readline()
    event.set()


def held_bytes(pids: list[int]) -> tuple[int, int]:
    """Return (total, unmapped) in bytes. Unmapped is shared memory that a process has open and none has mapped.

    The total is these processes' PSS and the unmapped memory.
    """
    pss, mapped, held = 0, set(), {}
    for pid in pids:
        with contextlib.suppress(OSError):
            pss += next(
                int(line.split()[1]) << 10
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                if line.startswith("Pss:")
            )
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "/dev/shm" in line or "/memfd:" in line:
                    mapped.add(int(line.split()[4]))
            for entry in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    link = f"/proc/{pid}/fd/{entry}"
                    if os.readlink(link).startswith(("/dev/shm/", "/memfd:")):
                        status = os.stat(link)
                        held[status.st_ino] = status.st_blocks * 512
    unmapped = sum(size for inode, size in held.items() if inode not in mapped)
    return pss + unmapped, unmapped


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"batches of {result.batch}, {result.workers} workers; MB, medians of rounds",
        f"{'':34}{'peak':>24}{'median':>8}{'of the peak, unmapped':>23}{'processes':>11}",
    ]
    for line in result.lines:
        middle, unmapped = statistics.median(line.median_mb), statistics.median(line.unmapped_mb)
        rows.append(f"{line.name:34}{spread(line.peak_mb):>24}{middle:8.0f}{unmapped:23.0f}{line.processes:11}")
    return "\n".join(rows)


def _loader(work: Mapping[str, Any]) -> Any:
    import torch
    from torch.utils.data import DataLoader, Subset

    from benchmarks.data import dataset
    from ddlp.loader import DDLPLoader

    images: Any = dataset(Path(work["directory"]), "imagenet1")
    count = (work["steps"] + 4 * work["workers"]) * work["batch"]  # never near the epoch's end
    ring = Subset(images, [k % len(images) for k in range(count)])
    common: dict[str, Any] = {"shuffle": True, "num_workers": work["workers"], "pin_memory": torch.cuda.is_available()}
    if work["name"] == PEER:
        return DataLoader(ring, work["batch"], **common)
    return DDLPLoader(ring, work["batch"], **common, strategy=STRATEGIES[work["name"]], seed=0)


def turn(work: Mapping[str, Any]) -> None:
    """Run a training program, which the parent watches."""
    loader = _loader(work)
    batches = iter(loader)
    for step in range(work["steps"]):
        batch = next(batches)
        if step == 0:
            print("first batch", flush=True)
            limit = time.monotonic() + 60
            while STRATEGIES.get(work["name"]) == "wrr" and not loader.live().ready_csd and time.monotonic() < limit:
                time.sleep(0.1)  # its engine and that one's worker are to be among the processes
        time.sleep(work["step_s"])
        del batch
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
