#!/usr/bin/env python3
"""Measure the processor time that a batch of 38.5 MB takes on its way from an engine to this host, over loopback.

    python -m scripts.stream_cost ways                    # CURVE, clear and sealed, by themselves: no engine
    python -m scripts.stream_cost batches --data data/bench   # a real engine: Ocycle and Pcycle

`ways`: for `zmq`, a ROUTER sends messages of 1 MiB to a DEALER, which copies them to their place. For `tcp`, a plain socket is
read to their place. Both sum the batch file's checksum.

`batches`: a host asks an engine for batches of 256 samples of 224x224 and takes each as a loader does, uint8 (Ocycle). It has
made the same batches itself, in one thread (Pcycle). The least of all is shown too: other programs make others longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import zmq

from benchmarks.data import ensure_data
from csd_engine.batchfile.checksum import READ_BYTES, Checksum
from csd_engine.batchfile.reader import Layout, identity
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.prepare.batch_maker import BatchMaker, Destination
from csd_engine.protocol.aead import CIPHERS, TAG_BYTES, Aead, ciphers
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.transforms import Pipeline
from ddlp.sources.engine.events import LeasePublished
from ddlp.sources.engine.fetch import BatchFetcher
from ddlp.sources.engine.link import EngineLink

LAYOUT = Layout(256, 224, 224, 3, 0)
BATCH_BYTES = LAYOUT.image_bytes
_PART = 1 << 20
_KEY, _WINDOW = bytes(32), 8
_DRAWN = {"scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], "interpolation": "bilinear"}
_OPERATORS = [{"op": "RandomResizedCrop", "size": [224, 224], **_DRAWN}, {"op": "RandomHorizontalFlip", "p": 0.5}]
PIPELINE = {"format": 1, "order": "pillow13", "mode": "RGB", "ops": _OPERATORS}


# -- the ways by themselves: a sender process, and this one


def _cpu_ms(batches: int, one: Callable[[], None]) -> float:
    one()  # memory is new, and connections are slow to start
    began = time.process_time()
    for _ in range(batches):
        one()
    return (time.process_time() - began) / batches * 1000


def _pieces(size: int) -> list[tuple[int, int]]:
    return [(at, min(size, BATCH_BYTES - at)) for at in range(0, BATCH_BYTES, size)]


def _send_zmq(pipe: Connection, batches: int, file: int, curve: bool) -> None:
    router, pair = zmq.Context().socket(zmq.ROUTER), zmq.curve_keypair()
    if curve:
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = pair
    pipe.send((router.bind_to_random_port("tcp://127.0.0.1"), pair[0]))

    def one() -> None:
        for at, length in _pieces(_PART):
            router.send_multipart([router.recv_multipart()[0], b"head", os.pread(file, length, at)])

    pipe.send(_cpu_ms(batches, one))
    router.recv_multipart()  # libzmq's thread has sent all


def _receive_zmq(pipe: Connection, batches: int, curve: bool) -> float:
    port, server = pipe.recv()
    dealer = zmq.Context().socket(zmq.DEALER)
    if curve:
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = server
    dealer.connect(f"tcp://127.0.0.1:{port}")
    for _ in range(_WINDOW):
        dealer.send(b"next")
    place = memoryview(np.zeros(BATCH_BYTES, np.uint8))

    def one() -> None:
        checksum = Checksum()
        for at, length in _pieces(_PART):
            frame = dealer.recv_multipart(copy=False)[1].buffer
            dealer.send(b"next")
            for step in range(0, length, READ_BYTES):
                piece = place[at + step : at + min(step + READ_BYTES, length)]
                piece[:] = frame[step : step + len(piece)]
                checksum.update(piece)

    return _cpu_ms(batches, one)


def _send_tcp(pipe: Connection, batches: int, file: int, cipher: str | None, size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        end, _ = listener.accept()
    aead = Aead(cipher, _KEY, sealing=True) if cipher else None
    record, count = memoryview(bytearray(TAG_BYTES + size)), 0

    def one() -> None:
        nonlocal count
        for at, length in _pieces(size):
            os.preadv(file, [record[TAG_BYTES : TAG_BYTES + length]], at)
            if aead is not None:
                aead.seal(count.to_bytes(12, "big"), b"", record[TAG_BYTES : TAG_BYTES + length], record[:TAG_BYTES])
            count += 1
            end.sendall(record[: TAG_BYTES + length])

    pipe.send(_cpu_ms(batches, one))
    end.close()


def _receive_tcp(pipe: Connection, batches: int, cipher: str | None, size: int) -> float:
    end = socket.create_connection(("127.0.0.1", pipe.recv()))
    aead = Aead(cipher, _KEY, sealing=False) if cipher else None
    place, tag, count = memoryview(np.zeros(BATCH_BYTES, np.uint8)), bytearray(TAG_BYTES), 0

    def one() -> None:
        nonlocal count
        checksum = Checksum()
        for at, length in _pieces(size):
            piece = place[at : at + length]
            end.recv_into(tag, TAG_BYTES, socket.MSG_WAITALL)
            end.recv_into(piece, length, socket.MSG_WAITALL)
            if aead is not None:
                aead.begin(count.to_bytes(12, "big"), b"")
                aead.run(piece)
                aead.opened(tag)
            count += 1
            checksum.update(piece)

    return _cpu_ms(batches, one)


def ways(batches: int) -> None:
    """Print the processor time of each way, host and engine."""
    file = os.memfd_create("batch")
    os.write(file, np.random.default_rng(1).integers(0, 256, BATCH_BYTES, np.uint8).tobytes())
    found: list[tuple[str, Callable[..., None], Callable[..., float], tuple[Any, ...]]] = [
        (f"zmq, {'CURVE' if curve else 'clear'}", _send_zmq, _receive_zmq, (curve,)) for curve in (True, False)
    ]
    for name in (None, *CIPHERS):
        for size in (1 << 16, 1 << 18, 1 << 20, 1 << 22):
            found.append((f"tcp, {name or 'clear'}, {size >> 10} KiB", _send_tcp, _receive_tcp, (name, size)))
    print(f"{'way':32} {'host ms':>8} {'engine ms':>9} {'GB/s':>6}")
    for name, send, receive, options in found:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=send, args=(there, batches, file, *options), daemon=True)
        child.start()
        began = time.monotonic()
        host = receive(here, batches, *options)
        rate = BATCH_BYTES * (batches + 1) / (time.monotonic() - began) / 1e9
        print(f"{name:32} {host:8.1f} {here.recv():9.1f} {rate:6.2f}", flush=True)
        child.join(1)
        child.kill()


# -- a real engine


@contextlib.contextmanager
def _engine(home: Path, root: Path, cipher: str) -> Iterator[tuple[EngineLink, int]]:
    keys = make_keys(home / "keys")
    command = [sys.executable, "-m", "csd_engine", "--listen", "tcp://127.0.0.1:*", "--spool", str(home / "spool")]
    command += ["--keys", str(keys), "--root", str(root), "--workers", "1"]
    environment = {**os.environ, "DDLP_STREAM_CIPHER": cipher}
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        assert engine.stdout is not None
        pair = load_pair(keys / "host.key_secret")
        address = json.loads(engine.stdout.readline())["ready"]
        link = EngineLink(address, load_public(keys / "server.key"), pair.public, pair.secret)
        yield link, engine.pid
        link.close()
    finally:
        engine.send_signal(signal.SIGTERM)
        engine.wait()


class _Memory(Destination):
    def __init__(self) -> None:
        self._images = np.zeros(LAYOUT.image_shape, np.uint8)

    def whole(self) -> np.ndarray:
        """Return all of it."""
        return self._images

    def place(self, part: slice) -> tuple[np.ndarray, None]:
        """See `Destination.place`."""
        return self._images[part], None

    def done(self, part: slice) -> None:
        """See `Destination.done`."""


def _engine_s(pid: int) -> float:
    """Return the processor seconds of the engine's service, without its workers."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batches(count: int, data: Path) -> None:
    """Print Ocycle, Pcycle and their ratio for each cipher of this computer, and for CURVE."""
    root = ensure_data(data).resolve() / "train"
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    pipeline = Pipeline.parse(PIPELINE)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        dataset = FileSet(str(root), write_manifest(home / "manifest", names), len(names))
        order = np.random.default_rng(2).integers(0, len(names), (count, LAYOUT.batch))
        maker = BatchMaker(open_reader(dataset, str, lambda _: home / "manifest"), pipeline, (224, 224, 3), 0)
        memory, times = _Memory(), []
        for sources in order:
            began, done = time.process_time(), 0
            with maker.start(sources, np.zeros_like(sources), 5, 0) as batch:
                while done < LAYOUT.batch:
                    done = batch.make(done, memory)
            times.append((time.process_time() - began) * 1000)
        made_ms, least_ms = statistics.median(times), min(times)
        print(f"Pcycle: {made_ms:.0f} ms, least {least_ms:.0f}")
        for cipher in (*ciphers(), "curve"):
            (home / cipher).mkdir()
            with _engine(home / cipher, root, cipher) as (link, pid):
                events: SimpleQueue[Any] = SimpleQueue()
                job = link.open_job(pipeline, dataset, LAYOUT, lambda _: home / "manifest", events.put)
                fetcher = BatchFetcher(job, False, partial(print, "  "))
                times, service_s = [], 0.0
                for lease, sources in enumerate(order):
                    before_s, began = _engine_s(pid), time.process_time()
                    items = [(int(one), 0) for one in sources]
                    name = identity(pipeline.digest, fingerprint(dataset), 5, 0, items)
                    job.lease(lease, name, 5, 0, items)
                    event = None
                    while not isinstance(event, LeasePublished):
                        event = events.get(timeout=60)
                    fetcher.read(event.path, name, lease, LAYOUT, memory.whole)
                    times.append((time.process_time() - began) * 1000)
                    service_s += _engine_s(pid) - before_s
                    job.release(lease)
            middle, least, service_ms = statistics.median(times[1:]), min(times[1:]), service_s / count * 1000
            ratios = f"Ocycle / Pcycle {middle / made_ms:.3f}, of the least {least / least_ms:.3f}"
            print(f"{cipher:18} Ocycle {middle:5.1f} ms, least {least:5.1f}; engine's service {service_ms:4.0f} ms; {ratios}")


def main() -> None:
    """Run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ways", "batches"))
    parser.add_argument("--batches", type=int, default=20, help="how many of each way (%(default)s)")
    parser.add_argument("--data", type=Path, default=Path("data/bench"), help="the benchmarks' sets (%(default)s)")
    given = parser.parse_args()
    if given.what == "ways":
        ways(given.batches)
    else:
        batches(given.batches, given.data)


if __name__ == "__main__":
    main()
