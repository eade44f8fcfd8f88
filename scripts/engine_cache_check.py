"""What `--cache` brings an engine: its rate in the epoch that fills the cache, in the second one, and without a cache.

    python -m scripts.engine_cache_check                   # evaluation: Resize and CenterCrop are kept

A real engine with one worker process. A rate is that of the worker: the samples by the time that it has worked on them. The
turns alternate, each with an empty cache, and medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from csd_engine.batchfile.reader import Layout, identity
from csd_engine.data.base import fingerprint
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.transforms import Pipeline
from ddlp.sampledata import make_imagefolder
from ddlp.sources.engine.events import LeasePublished
from ddlp.sources.engine.link import EngineLink

LAYOUT = Layout(64, 224, 224, 3, 0)
OPS = [
    {"op": "Resize", "size": 256, "interpolation": "bilinear", "max_size": None},
    {"op": "CenterCrop", "size": [224, 224]},
]
SETTLED_S = 3.0  # files that were changed so lately are not kept


@contextlib.contextmanager
def _engine(home: Path, root: Path, cache: str) -> Iterator[EngineLink]:
    keys = make_keys(home / "keys")
    command = [sys.executable, "-m", "csd_engine", "--listen", f"ipc://{home}/s", "--spool", str(home / "spool")]
    command += ["--keys", str(keys), "--root", str(root), "--workers", "1", "--cache", cache]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert engine.stdout is not None
        pair, address = load_pair(keys / "host.key_secret"), json.loads(engine.stdout.readline())["ready"]
        link = EngineLink(address, load_public(keys / "server.key"), pair.public, pair.secret)
        yield link
        link.close()
    finally:
        engine.send_signal(signal.SIGINT)
        engine.wait()


def _epoch(link: EngineLink, manifest: Path, dataset: FileSet, pipeline: Pipeline, number: int) -> float:
    """Have all batches made, in a random order. Returns the worker's images/s."""
    events: SimpleQueue[Any] = SimpleQueue()
    job = link.open_job(pipeline, dataset, LAYOUT, lambda _: manifest, events.put)
    order, busy_s = np.random.default_rng(number).permutation(len(dataset)), 0.0
    parts = np.split(order, range(LAYOUT.batch, len(order), LAYOUT.batch))
    for lease, part in enumerate(parts):
        items = [(int(source), 0) for source in part]
        job.lease(lease, identity(pipeline.digest, fingerprint(dataset), 5, number, items), 5, number, items)
        while not isinstance(event := events.get(timeout=120), LeasePublished):
            pass
        busy_s += event.busy_s
        job.release(lease)
    job.close(10)
    return len(order) / busy_s


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=800, help="of an epoch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (%(default)s)")
    options = parser.parse_args()
    pipeline = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": OPS})
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        make_imagefolder(home / "images", options.images, mean_kb=110, val_images=0)
        root = home / "images" / "train"
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
        dataset = FileSet(str(root), write_manifest(home / "manifest", names), len(names))
        time.sleep(SETTLED_S)
        for number in range(options.rounds):
            turn: dict[str, float] = {}
            for cache, epochs in (("none", ("files into memory", "without")), (f"{home}/cache{number}", ("first", "second"))):
                with tempfile.TemporaryDirectory() as own, _engine(Path(own), root, cache) as link:
                    for epoch, name in enumerate(epochs):
                        turn[name] = _epoch(link, home / "manifest", dataset, pipeline, epoch)
                    state = link.cache()
            assert state is not None
            assert state.hits + state.misses == 2 * len(names), state
            for name, rate in turn.items():
                found.setdefault(name, []).append(rate)
            told = ", ".join(f"{name} {rate:,.0f}" for name, rate in turn.items())
            print(f"round {number + 1}: {told} images/s; {state.hits} of {len(names)} hits in the second epoch", flush=True)
    rates = {name: statistics.median(values) for name, values in found.items()}
    print(f"second by first   {rates['second'] / rates['first']:.2f}")
    print(f"second by without {rates['second'] / rates['without']:.2f}")
    print(f"first by without  {rates['first'] / rates['without']:.2f}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
