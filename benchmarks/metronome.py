"""How fast each core was while something else was measured on it.

The speed of a virtual machine's core depends on its neighbours. It changes by a factor of 1.5 and more, within seconds and for
minutes. Turns that follow each other then differ by more than the contenders do. So a process on each core prepares the same
sample again and again, 20 times a second and at the highest priority there. The time that this takes shows the core's speed at
that moment for this kind of work. The metronome takes 2 to 4 % of the core, which the contender there does without.

Run as ``python -m benchmarks.metronome --data DIR --cpu K --beats FILE``. It appends pairs of float64 to FILE (time.monotonic,
and the seconds that the sample took) until it is ended, or its parent has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import BenchFailed, user_environment
from csd_engine.data.base import Reader, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.prepare.sample import prepare_sample
from ddlp.deploy.prove import standard_pipeline

PERIOD_S = 0.05
_PRIORITY = 10  # among real-time processes, which run before all usual ones
_LEAST = 3  # the fewest beats from which a speed is taken
_SOME = 25  # samples among which the one with the median time is chosen


class Metronome:
    """A metronome on each of these CPUs, within a `with` block. Speeds are in samples a second, always of the same sample."""

    def __init__(self, directory: Path, cpus: Sequence[int]) -> None:
        self._directory, self._cpus = directory, tuple(cpus)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Metronome:
        self._beats = tempfile.TemporaryDirectory(prefix="ddlp-bench-")
        command = [sys.executable, "-m", "benchmarks.metronome", "--data", str(self._directory)]
        try:
            for cpu in self._cpus:
                options = ["--cpu", str(cpu), "--beats", str(self._file(cpu))]
                # In a session of its own, so that Ctrl-C reaches this process alone. This process ends the other.
                process = subprocess.Popen([*command, *options], env=user_environment(), start_new_session=True)
                self._processes.append(process)
            while not all(self._file(cpu).exists() for cpu in self._cpus):
                if any(process.poll() is not None for process in self._processes):
                    raise BenchFailed("the metronome did not start; its messages are above")
                time.sleep(PERIOD_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()
        self._beats.cleanup()

    def _file(self, cpu: int) -> Path:
        return Path(self._beats.name) / str(cpu)

    def speeds(self, began: float, ended: float) -> dict[int, float]:
        """Return each CPU's mean speed between these two times (time.monotonic): by the beats within, else by the nearest."""
        speeds = {}
        for cpu in self._cpus:
            data = self._file(cpu).read_bytes()
            beats = np.frombuffer(data[: len(data) // 16 * 16]).reshape(-1, 2)
            within = np.flatnonzero((beats[:, 0] >= began) & (beats[:, 0] < ended))
            if len(within) < _LEAST:
                within = np.argsort(abs(beats[:, 0] - (began + ended) / 2))[:_LEAST]
            speeds[cpu] = float(np.mean(1 / beats[within, 1]))
        return speeds


def _images(root: Path, manifest: Path) -> Reader:
    """Open the first few images of the set. Without a DataLoader: torch takes seconds to import, and 700 MB of memory.

    ``manifest``: a temporary file to write.
    """
    paths = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*"))[:_SOME]
    if not paths:
        raise SystemExit(f"there are no images in the directories below {root}")
    dataset = FileSet(str(root.absolute()), write_manifest(manifest, paths), len(paths))
    reader = open_reader(dataset, str, lambda _: manifest)
    manifest.unlink()  # the reader has it open
    return reader


def main(arguments: list[str] | None = None) -> None:
    """Beat on one core."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metronome", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cpu", type=int, required=True)
    parser.add_argument("--beats", type=Path, required=True)
    options = parser.parse_args(arguments)
    parent = os.getppid()
    os.sched_setaffinity(0, {options.cpu})
    clock = time.thread_time  # it does not count waiting for other processes
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        clock = time.perf_counter  # it waits for no other process, and this clock also counts the pauses of the core itself
    pipeline, reader = standard_pipeline(), _images(options.data / "train", options.beats.with_suffix(".manifest"))
    row = np.empty(pipeline.output_shape(None), dtype=np.uint8)

    def beat(source: int) -> tuple[float, float]:
        at, began = time.monotonic(), clock()
        prepare_sample(reader, pipeline, (source, 0), 0, 0, row, None)
        return at, clock() - began

    beat(0)  # warm: tables
    some = range(len(reader))
    usual = sorted(some, key=lambda source: beat(source)[1])[len(some) // 2]
    with options.beats.open("ab", buffering=0) as file:
        while os.getppid() == parent:  # else the parent was killed
            file.write(np.array(beat(usual)).tobytes())
            time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
