"""A published batch into this host's memory, verified, through the spool and over the socket.

An engine on this machine publishes batches. It listens on a TCP socket of the loopback interface. Each batch is fetched by the
code that fetches an epoch's batches. The spool is read from the page cache, and both sides share the processors: the figures
are the cost of the transfer alone, not the speed of a network or a disk. The bare figure is a plain read of the same bytes from
the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import add_output, command, emit
from csd_engine.batchfile.reader import Layout, identity
from csd_engine.data.base import fingerprint
from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.service.worker_process import child_environment
from csd_engine.transforms.pipeline import Pipeline
from ddlp.data.images import ImageArrays
from ddlp.process.cores import cpu_s
from ddlp.sources.engine.dataset_upload import DatasetUpload
from ddlp.sources.engine.fetch import BatchFetcher
from ddlp.sources.engine.link import EngineLink
from ddlp.translate.datasets import translate_dataset

ROWS = 64  # images of the data set; batches repeat them


@dataclass(frozen=True)
class Line:
    """One way: seconds a batch (median and worst), its bandwidth, and the processor seconds a batch of host and engine."""

    name: str
    median_s: float
    worst_s: float
    mb_per_s: float
    host_cpu_s: float
    engine_cpu_s: float


@dataclass(frozen=True)
class Result:
    """All ways, with batches of ``batch`` images of ``size`` x ``size`` x 3 bytes."""

    batch: int
    size: int
    lines: list[Line]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--batch", type=int, default=256, help="images of a batch (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="their height and width in pixels (%(default)s)")
    parser.add_argument("--batches", type=int, default=20, help="batches to fetch each way (%(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as home:
        lines = measure(Path(home), options.batch, options.size, options.batches)
    result = Result(options.batch, options.size, lines)
    emit(options, result, table(result))
    return 0


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"batches of {result.batch} x {result.size} x {result.size} x 3 bytes",
        f"{'':22}{'ms a batch':>12}{'worst':>8}{'MB/s':>8}{'host CPU ms':>13}{'engine CPU ms':>15}",
    ]
    for line in result.lines:
        times = f"{line.median_s * 1e3:12.1f}{line.worst_s * 1e3:8.1f}{line.mb_per_s:8.0f}"
        rows.append(f"{line.name:22}{times}{line.host_cpu_s * 1e3:13.1f}{line.engine_cpu_s * 1e3:15.1f}")
    return "\n".join(rows)


def measure(home: Path, batch: int, size: int, batches: int) -> list[Line]:
    """Start an engine below ``home``, and fetch so many batches each way."""
    keys = make_keys(home / "keys")
    command = [sys.executable, "-m", "csd_engine", "--listen", "tcp://127.0.0.1:*", "--spool", str(home / "spool")]
    command += ["--keys", str(keys), "--root", str(home), "--parent", str(os.getpid())]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment())
    try:
        assert engine.stdout is not None
        address = json.loads(engine.stdout.readline())["ready"]
        pair = load_pair(keys / "host.key_secret")
        link = EngineLink(address, load_public(keys / "server.key"), pair.public, pair.secret)
        try:
            return _measure(link, engine.pid, batch, size, batches)
        finally:
            link.close()
    finally:
        engine.terminate()
        engine.communicate()


def _measure(link: EngineLink, engine: int, batch: int, size: int, batches: int) -> list[Line]:
    upload = DatasetUpload.sent_to(link.open().spool)
    try:
        images = np.random.default_rng(0).integers(0, 256, (ROWS, size, size, 3), dtype=np.uint8)
        dataset = upload.describe(translate_dataset(ImageArrays(images, range(ROWS))))
        pipeline = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": []})
        layout = Layout(batch, size, size, 3)
        events: queue.SimpleQueue[say.Message] = queue.SimpleQueue()
        job = link.open_job(pipeline, dataset, layout, None, events.put, array_part=upload.array_part)
        items = [(k % ROWS, 0) for k in range(batch)]
        name = identity(pipeline.digest, fingerprint(dataset), 0, 0, items)
        memory = np.empty(layout.image_bytes, np.uint8)

        def published(lease: int) -> Path:
            job.send_lease(lease, name, 0, 0, items)
            while not isinstance(event := events.get(timeout=60), say.Published):
                if isinstance(event, say.Failed):
                    raise RuntimeError(event.reason)
            return job.path(event)

        def bare(path: Path, lease: int) -> None:
            with open(path, "rb", buffering=0) as stream:
                stream.readinto(memory.data)

        def through(fetching: BatchFetcher) -> Callable[[Path, int], object]:
            return lambda path, lease: fetching.read(path, name, lease, layout, lambda: memory)

        ways = {
            "bare read": bare,
            "mapped, from the spool": through(BatchFetcher(job, True, print, mapped=True)),
            "through the spool": through(BatchFetcher(job, True, print)),
            "over the socket": through(BatchFetcher(job, False, print)),
        }
        lines, lease = [], 0
        for title, bring in ways.items():
            seconds, host, device = [], 0.0, 0.0
            for _ in range(batches + 1):
                lease += 1
                path = published(lease)
                began, own, theirs = time.perf_counter(), _own_cpu_s(), cpu_s([engine])
                bring(path, lease)
                seconds.append(time.perf_counter() - began)
                host += _own_cpu_s() - own
                device += cpu_s([engine]) - theirs
                job.release(lease)
            del seconds[0]  # the first turn makes the buffers
            median = statistics.median(seconds)
            mb_per_s = layout.file_bytes / 1e6 / median
            lines.append(Line(title, median, max(seconds), mb_per_s, host / (batches + 1), device / (batches + 1)))
        return lines
    finally:
        upload.close()


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
