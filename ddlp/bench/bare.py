"""Each side alone, as a bare loop: no loader, no ledger, no socket. What a bound is made of must not flatter the loader.

Run as a process of its own: ``python -m ddlp.bench.bare SIDE --data DIR --cpu K --seconds S ...``; prints one JSON line
``{"samples": n, "seconds": s}`` for the whole batches finished within the time. Sides: the host and the engine prepare
batches, ``fetch`` is what the host does to a batch that the engine has made: read it, verify it, convert it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from csd_engine.batchfile import BatchWriter, Layout, read_batch
from csd_engine.samples import prepare_sample
from csd_engine.transforms.bulk import Bulk
from ddlp.bench.data import loader
from ddlp.portable import Portable, portable
from ddlp.transfer.pool import Pool

_FETCHED_FILES = 4


def delivered_as(output: str) -> torch.memory_format:
    """uint8 as the batch file holds it, a pixel's channels side by side: used as it comes. Else as ToTensor gives it."""
    return torch.channels_last if output == "uint8" else torch.contiguous_format


def _order(found: Portable) -> list[int]:
    """A fixed random order of all samples, gone through again and again: a few very large files weigh as in an epoch."""
    return np.random.default_rng(0).permutation(len(found.dataset)).tolist()


def host_batch(found: Portable, batch: int, order: Sequence[int] | None = None) -> Callable[[int], torch.Tensor]:
    """Prepare the n-th batch as the host does: read, decode, transform, and the epilogue to what is delivered.

    ``order``: indices to go through, again and again; None: all, in a fixed random order.
    """
    reader, epilogue = found.dataset.reader(), found.epilogue
    ring = np.asarray(order or _order(found))
    bulk, convert = Bulk.of(found.pipeline, reader.rows()), not epilogue.keeps_bytes
    # The same memory for every batch: whoever hands batches out can't do that, and the bound must not be too low.
    rows = np.empty((batch, *found.shape), dtype=np.uint8)
    bits = epilogue.empty(batch, found.shape[0], found.shape[1], Pool(1)) if convert else None
    never_before = np.zeros(batch, dtype=np.int64)

    def make(k: int) -> torch.Tensor:
        sources = ring[(k * batch + np.arange(batch)) % len(ring)]
        if bulk is not None:
            for part in bulk.slices(batch):
                bulk.fill(sources[part], never_before[part], 0, k, rows[part], None)
                if bits is not None:
                    epilogue.convert(rows[part], bits[part])
        else:
            for row, source in enumerate(sources.tolist()):
                image = rows[0 if convert else row]
                prepare_sample(reader, found.pipeline, (source, 0), 0, k, image, None)
                if bits is not None:
                    epilogue.convert(image[None], bits[row : row + 1])
        return epilogue.tensor(rows if bits is None else bits)

    return make


def engine_batch(found: Portable, batch: int, directory: str, slowdown: float) -> Callable[[int], object]:
    """Prepare the n-th batch as an engine's worker does: into a batch file in the spool, which is then removed."""
    reader, order = found.dataset.reader(), _order(found)
    layout = Layout(batch, *found.shape, 0)
    row_buffer = np.empty(found.shape, dtype=np.uint8)

    def make(k: int) -> None:
        writer = BatchWriter(directory, f"{k:032x}", k, layout)
        for row in range(batch):
            began = time.process_time()
            item = (order[(k * batch + row) % len(order)], 0)
            prepare_sample(reader, found.pipeline, item, 0, k, row_buffer, None)
            writer.write(row, row_buffer)
            if slowdown > 1:
                time.sleep((slowdown - 1) * (time.process_time() - began))
        writer.publish().unlink()

    return make


def fetched_batch(found: Portable, batch: int, directory: str) -> Callable[[int], object]:
    """Bring a batch file in as the host does: read and verified into memory of a pool, then the epilogue into some."""
    pool = Pool(2)
    layout = Layout(batch, *found.shape, 0)
    reader, order = found.dataset.reader(), _order(found)
    paths = []
    for number in range(_FETCHED_FILES):
        writer = BatchWriter(directory, f"{number:032x}", number, layout)
        for row in range(batch):
            pixels = np.empty(found.shape, dtype=np.uint8)
            prepare_sample(reader, found.pipeline, (order[(number * batch + row) % len(order)], 0), 0, 0, pixels, None)
            writer.write(row, pixels)
        paths.append(writer.publish())

    def make(k: int) -> torch.Tensor:
        number = k % _FETCHED_FILES
        memory = pool.empty((layout.image_bytes,), np.uint8)
        pixels = read_batch(paths[number], f"{number:032x}", number, layout, memory).images
        return found.epilogue(torch.from_numpy(pixels), pool=pool)

    return make


def main(arguments: list[str] | None = None) -> None:
    """Run one side for a time."""
    parser = argparse.ArgumentParser(prog="python -m ddlp.bench.bare", description=__doc__)
    parser.add_argument("side", choices=["host", "engine", "fetch"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cpu", type=int, default=None, help="run on this CPU alone")
    parser.add_argument("--seconds", type=float, default=5.0, help="0: until standard input closes")
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--output", default="float32")
    parser.add_argument("--spool", default=None)
    options = parser.parse_args(arguments)
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    torch.set_num_threads(1)
    images = loader(options.data, "imagenet1", options.batch)
    found = portable(images, getattr(torch, options.output), delivered_as(options.output))
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-", dir=options.spool) as spool:
        make: Callable[[int], object]
        if options.side == "host":
            make = host_batch(found, options.batch)
        elif options.side == "engine":
            make = engine_batch(found, options.batch, spool, options.slowdown)
        else:
            make = fetched_batch(found, options.batch, spool)
        make(0)  # warm: imports, page cache, tables
        print("ready", flush=True)
        sys.stdin.readline()
        began, done = time.monotonic(), 0
        stop = _stop_at_end_of_input() if options.seconds == 0 else None
        while time.monotonic() - began < options.seconds or (stop is not None and not stop()):
            make(done + 1)
            done += 1
        print(json.dumps({"samples": done * options.batch, "seconds": time.monotonic() - began}), flush=True)


def _stop_at_end_of_input() -> Callable[[], bool]:
    import select

    return lambda: bool(select.select([sys.stdin], [], [], 0)[0])


class Bare:
    """A bare loop in a process of its own: made ready, then started by `go`."""

    def __init__(
        self, side: str, data: Path, batch: int, cpu: int, seconds: float, slowdown: float = 1.0, output: str = "float32"
    ) -> None:
        command = [sys.executable, "-m", "ddlp.bench.bare", side, "--data", str(data), "--batch", str(batch)]
        command += ["--cpu", str(cpu), "--seconds", repr(seconds), "--slowdown", repr(slowdown), "--output", output]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdin is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the bare {side} loop did not start: {' '.join(command)}")

    def go(self) -> None:
        """Start the loop."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> float:
        """Samples a second. Ends an endless loop."""
        out, _ = self._process.communicate()
        made = json.loads(out.strip().splitlines()[-1])
        return made["samples"] / made["seconds"]


def both_at_once(
    data: Path, batch: int, cpus: tuple[int, int], seconds: float, slowdown: float, output: str, host: str = "host"
) -> tuple[float, float]:
    """Samples a second of host (or what else runs on its CPU) and engine, each on its CPU, both busy at the same time."""
    sides = [
        Bare(host, data, batch, cpus[0], seconds, output=output),
        Bare("engine", data, batch, cpus[1], seconds, slowdown),
    ]
    for side in sides:
        side.go()
    on_host, engine = (side.result() for side in sides)
    return on_host, engine


if __name__ == "__main__":
    main()
