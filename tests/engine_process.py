"""Helpers of the engine's tests: JPEG files, and an engine process with its keys and spool."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from PIL import Image

from csd_engine.batchfile.reader import Layout, identity, read_batch
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.prepare.sample import prepare_sample
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.transforms.pipeline import Pipeline
from ddlp.sources.engine.link import EngineLink, JobHandle

SEED, EPOCH = 5, 3


def make_jpegs(root: Path, random: np.random.Generator) -> list[str]:
    """Write 24 JPEG files of different sizes in 3 class directories; return their relative paths."""
    paths = []
    for number in range(24):
        height, width = random.integers(40, 120, 2)
        coarse = random.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
        relative = f"class{number % 3}/image {number}.jpg"
        (root / relative).parent.mkdir(exist_ok=True)
        Image.fromarray(coarse).resize((int(width), int(height))).save(root / relative, quality=85)
        paths.append(relative)
    return paths


def pipeline(size: int = 32) -> Pipeline:
    """A random crop and flip to `size` pixels."""
    return Pipeline.parse(
        {
            "format": 1,
            "order": "pillow13",
            "mode": "RGB",
            "ops": [
                {
                    "op": "RandomResizedCrop",
                    "size": [size, size],
                    "scale": [0.08, 1.0],
                    "ratio": [0.75, 4 / 3],
                    "interpolation": "bilinear",
                },
                {"op": "RandomHorizontalFlip", "p": 0.5},
            ],
        }
    )


class Recipe:
    """A data set of files, its pipeline and layout, and the expected content of each batch."""

    def __init__(self, root: Path, paths: list[str], manifest: Path, batch: int = 8, size: int = 32) -> None:
        self.root = root
        self.manifest = manifest
        self.dataset = FileSet(str(root), write_manifest(manifest, paths), len(paths))
        self.pipeline = pipeline(size)
        self.layout = Layout(batch, size, size, 3, 0)

    def items(self, start: int) -> list[tuple[int, int]]:
        return [((start + step) % self.dataset.count, 0) for step in range(self.layout.batch)]

    def identity(self, items: list[tuple[int, int]]) -> str:
        return identity(self.pipeline.digest, fingerprint(self.dataset), SEED, EPOCH, items)

    def lease(self, job: JobHandle, number: int, start: int = 0) -> list[tuple[int, int]]:
        items = self.items(start)
        job.send_lease(number, self.identity(items), SEED, EPOCH, items)
        return items

    def expected(self, items: list[tuple[int, int]]) -> np.ndarray:
        reader = open_reader(self.dataset, str, lambda _: self.manifest)
        out = np.zeros((len(items), *self.layout.image_shape[1:]), np.uint8)
        for row, item in enumerate(items):
            prepare_sample(reader, self.pipeline, item, SEED, EPOCH, out[row])
        reader.close()
        return out

    def check(self, path: Path, number: int, items: list[tuple[int, int]]) -> None:
        layout = dataclasses.replace(self.layout, batch=len(items))
        batch = read_batch(path, self.identity(items), number, layout)
        assert np.array_equal(batch.images, self.expected(items))

    def open(self, link: EngineLink, events: SimpleQueue[Any]) -> JobHandle:
        return link.open_job(self.pipeline, self.dataset, self.layout, lambda _: self.manifest, events.put)

    def at_work(
        self, start: Callable[..., EngineProcess], *arguments: str, **link_options: Any
    ) -> tuple[EngineProcess, EngineLink, SimpleQueue[Any], JobHandle]:
        """Start an engine for this data set, open a link and a job. Returns them with the job's events."""
        engine, events = start("--root", str(self.root), *arguments), SimpleQueue[Any]()
        link = engine.link(**link_options)
        return engine, link, events, self.open(link, events)


class EngineProcess:
    """`python -m csd_engine` with new keys, and a spool below `home`. `within` is a command that runs it elsewhere.

    `cards`: the directory for its card; it has no keys then.
    """

    def __init__(
        self,
        home: Path,
        *arguments: str,
        listen: str | None = None,
        keys: Path | None = None,
        workers: int | None = 1,
        within: tuple[str, ...] = (),
        cards: Path | None = None,
    ) -> None:
        self.home = home
        self.spool = home / "spool"
        self.keys = keys or (home / "keys" if cards else make_keys(home / "keys"))
        who = ["--card", str(cards)] if cards else ["--keys", str(self.keys)]
        listen = listen or f"ipc://{home}/s"
        self.process = subprocess.Popen(
            [
                *within,
                sys.executable,
                "-m",
                "csd_engine",
                "--listen",
                listen,
                "--spool",
                str(self.spool),
                *who,
            ]
            + ["--reserve-bytes", "0", *([] if workers is None else ["--workers", str(workers)]), *arguments],
            stdout=subprocess.PIPE,
            stderr=open(home / "log", "wb"),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        try:
            line = self.process.stdout.readline()
        except BaseException:  # at Ctrl-C nobody else knows of it
            self.process.kill()
            self.process.wait()
            raise
        assert line, (home / "log").read_text()
        self.address = json.loads(line)["ready"]

    def link(self, secret: Path | None = None, **options: Any) -> EngineLink:
        """A link of the host, or of the one whose secret key this is."""
        pair = load_pair(secret or self.keys / "host.key_secret")
        return EngineLink(self.address, load_public(self.keys / "server.key"), pair.public, pair.secret, **options)

    def children(self) -> list[int]:
        return children(self.process.pid)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # at SIGTERM it would wait for hosts to fetch their batches
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        """End the engine at once. Its workers end by themselves."""
        self.process.kill()
        self.process.wait(30)

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()


def refused_start(home: Path, root: Path, *arguments: str, spool: Path | None = None) -> str:
    """Start an engine that must end at once, and return what it says: a line, and no traceback."""
    keys = home / "keys" if (home / "keys").exists() else make_keys(home / "keys")
    command = [sys.executable, "-m", "csd_engine", "--listen", f"ipc://{home}/refused", "--spool", str(spool or home / "spool")]
    command += ["--keys", str(keys), "--root", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], Any], timeout_s: float = 30.0, what: str = "the condition") -> Any:
    """Return the condition's first true value."""
    end = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        assert now < end, f"{what} did not come true within {timeout_s} s"
        time.sleep(min(max(0.02, 5 * (now - began)), 0.5))  # a slow condition, as on a board, is asked less often


def wait_for(events: SimpleQueue[Any], kind: type | tuple[type, ...], timeout_s: float = 30.0) -> Any:
    """Return the next event of that kind, and drop those before it."""
    end = time.monotonic() + timeout_s
    seen: list[Any] = []
    while True:
        try:
            event = events.get(timeout=max(0.01, end - time.monotonic()))
        except Empty:
            raise AssertionError(f"no {kind} came within {timeout_s} s, but {seen}") from None
        if isinstance(event, kind):
            return event
        seen.append(event)


def batch_files(spool: Path) -> list[str]:
    """Return the names of all files in the spool's job directories."""
    return sorted(name for path in spool.glob("job-*") for name in os.listdir(path))
