"""An engine's images a second on a core against a bare Pillow loop on the same computer.

All prepare the same files with the same crops (RandomResizedCrop to 224 pixels), in turns, round after round. The bare loop
(`benchmarks.pillow_loop`) opens, crops and resizes into an array, in as many processes as the engine has workers. It is the
bound of an engine that works with Pillow; --local measures such an engine too. An engine does more than the loop: it draws the
crops, checks where the files lie, writes batch files with checksums, and answers over its socket. With the kernel it is still
faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks import pillow_loop
from benchmarks.common import add_output, command, emit, say, spread
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.batchfile.reader import Layout, identity
from csd_engine.data.base import fingerprint
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.protocol.codec import Failed, Message, Published, Refused
from csd_engine.service.worker_process import child_environment
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import Crop
from csd_engine.transforms.resample import native_order
from ddlp.deploy.prove import some_images
from ddlp.deploy.shell import Shell
from ddlp.devices import address_book as book
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.process.cores import pinned
from ddlp.sources.engine.device_link import link_to
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
from ddlp.sources.engine.link import EngineLink, JobHandle
from ddlp.tryout.rounds import ratios

SIZE = 224
IMAGES = Path("data/bench/110kb")
SEED, EPOCH = 0, 0
LOOP = Path(pillow_loop.__file__).read_text()
_SUFFIXES = (".jpg", ".jpeg", ".png")
_SILENCE_S = 300.0  # a slow board may need so long for one batch
_WARM_BATCHES = 2


@dataclass
class Result:
    """Images a second on one core, round by round."""

    where: str
    workers: int
    images: int
    batch: int
    versions: dict[str, str]
    engine: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    kernel: str = "none"  # of the engine
    pillow: list[float] = field(default_factory=list)  # of an engine without kernel; empty: not measured

    @property
    def in_bare_loops(self) -> list[float]:
        """The engine's rate in bare loops, round by round."""
        return ratios(self.engine, self.bare)


@dataclass(frozen=True)
class Place:
    """The computer that is measured.

    `images` returns a directory on this host, either the one asked for or one of its own choice, and the paths of so many
    images below it. `bare` runs the bare loop with these arguments and returns its seconds. `there` maps a path of this host
    to the path on that computer.
    """

    name: str
    link: EngineLink
    images: Callable[[Path | None, int], tuple[Path, list[str]]]
    bare: Callable[[dict[str, Any]], float]
    there: Callable[[str], str]
    cpus: list[int] | None
    plain: EngineLink | None = None  # to an engine without kernel


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    return [("An engine's worker against a bare Pillow loop", ["--local"])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", nargs="?", help="a deployed device")
    parser.add_argument("--local", action="store_true", help="an engine of one worker on this computer's last core")
    parser.add_argument(
        "--images", type=Path,
        help="directory of images on this host; for a device it must lie below one of the device's roots (the first root that "
        f"has images; with --local {IMAGES}, made if missing)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="rough length of a turn in seconds (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (%(default)s)")
    parser.add_argument("--files", type=int, default=500, help="largest number of images, drawn at random (%(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if bool(options.name) == options.local:
        print("python -m benchmarks.engine: give the name of a deployed device, or --local", file=sys.stderr)
        return 2
    with _local() if options.local else _device(options.name) as place:
        result = measure(place, options, say)
    emit(options, result, table(result))
    return 0


@contextmanager
def _local() -> Iterator[Place]:
    """Engines of one worker, with and without kernel, on the last core. This process runs on the others, if there are any."""
    usable = sorted(os.sched_getaffinity(0))
    core = usable[-1]
    options = EmbeddedOptions(workers=1, cpus=str(core), slowdown=1.0)
    engine = acquire(options)
    with mock.patch.dict(os.environ, DDLP_KERNEL="off"):
        plain = acquire(replace(options, number=1))

    def images(asked: Path | None, most: int) -> tuple[Path, list[str]]:
        return asked or IMAGES, image_files(asked or IMAGES, most)

    def bare(work: dict[str, Any]) -> float:
        done = subprocess.run(
            [sys.executable, "-c", LOOP], input=json.dumps(work).encode(), stdout=subprocess.PIPE,
            env=child_environment(), check=True,
        )  # fmt: skip
        return float(done.stdout)

    try:
        with pinned(*(set(usable) - {core} or {core}), engine=(core,)):
            yield Place(f"this computer, core {core}", engine.link, images, bare, os.path.abspath, [core], plain.link)
    finally:
        engine.release()
        plain.release()


@contextmanager
def _device(name: str) -> Iterator[Place]:
    """A device from the address book; the bare loop runs there over SSH."""
    record, link = book.load(name), link_to(Device.at(name))
    shell = Shell(record.destination, record.ssh_options)
    roots = ", ".join(host for host, _ in record.directories) or "no directories"

    def there(path: str) -> str:
        path = os.path.abspath(path)
        for host, device in record.directories:
            if path == host or path.startswith(host.rstrip("/") + "/"):
                return device.rstrip("/") + path[len(host.rstrip("/")) :]
        raise DDLPError(
            f"{path} is below none of {name}'s roots ({roots}): the device can't read it. Name a directory below one of "
            "them with --images."
        )

    def images(asked: Path | None, most: int) -> tuple[Path, list[str]]:
        if asked is not None:
            there(str(asked))  # first, since it may raise: it takes long to look through a large directory, or to make images
            return asked, image_files(asked, most)
        for host, _ in record.directories:
            if files := some_images(host, most):
                return Path(host), files
        raise DDLPError(f"there is no image below {name}'s roots on this host ({roots}). Mount them; see ddlp doctor {name}.")

    def bare(work: dict[str, Any]) -> float:
        # With the environment of the engine's workers.
        command = f"cd / && OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 {shlex.join([record.python, '-c', LOOP])}"
        done = shell.run(command, input=json.dumps(work).encode(), timeout_s=_SILENCE_S)
        if done.status != 0:
            raise DDLPError(f"the bare loop failed on {name} with status {done.status}: {done.err[-2000:]!r}")
        return float(done.out)

    try:
        yield Place(name, link, images, bare, there, None)
    finally:
        link.close()
        shell.close()


def image_files(directory: Path, most: int) -> list[str]:
    """Return the paths, below `directory`, of at most so many images. The choice is random and fixed."""
    if not directory.is_dir():
        if directory != IMAGES:
            raise DDLPError(f"{directory} is no directory. Name one of images with --images.")
        from benchmarks.data import ensure_data

        ensure_data(directory.parent)
    paths = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DDLPError(f"there is no image below {directory} ({', '.join(_SUFFIXES)}). Name another one with --images.")
    chosen = np.random.default_rng(0).permutation(len(paths))[:most]
    return [paths[number] for number in chosen]


def crops_of(
    pipeline: Pipeline, root: Path, files: Sequence[str], seed: int = SEED, epoch: int = EPOCH
) -> list[tuple[int, int, int, int]]:
    """Return what an engine crops of each image: left, top, right, bottom."""
    crops = []
    for index, name in enumerate(files):
        with Image.open(root / name) as image:
            steps = pipeline.draw(image.size, Keyed(seed, epoch, index, 0)).primitives
            crops.append(next((step.box for step in steps if isinstance(step, Crop)), (0, 0, *image.size)))
    return crops


class _Turns:
    """An engine's turns, all with one job. A turn sends all its leases at once."""

    def __init__(self, link: EngineLink, root: Path, files: Sequence[str], batch: int, manifest: Path) -> None:
        self._events: SimpleQueue[Message] = SimpleQueue()
        self._dataset = FileSet(os.path.abspath(root), write_manifest(manifest, files), len(files))
        operator = {"op": "RandomResizedCrop", "size": [SIZE, SIZE], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3],
                    "interpolation": "bilinear"}  # fmt: skip
        self.pipeline = Pipeline.parse({"format": 1, "order": native_order(), "mode": "RGB", "ops": [operator]})
        self._batch, self._leases = batch, 0
        layout = Layout(batch, SIZE, SIZE, 3)
        self._job: JobHandle = link.open_job(self.pipeline, self._dataset, layout, lambda _: manifest, self._events.put)

    def turn(self, items: Sequence[int]) -> float:
        """Return the seconds that the engine takes for these samples, from the leases to the last file."""
        began = time.monotonic()
        waiting = set()
        for start in range(0, len(items), self._batch):
            batch = [(index, 0) for index in items[start : start + self._batch]]
            self._leases += 1
            waiting.add(self._leases)
            name = identity(self.pipeline.digest, fingerprint(self._dataset), SEED, EPOCH, batch)
            self._job.send_lease(self._leases, name, SEED, EPOCH, batch)
        while waiting:
            try:
                event = self._events.get(timeout=_SILENCE_S)
            except Empty:
                raise DDLPError(f"the engine published nothing for {_SILENCE_S:g} s. See ddlp status and its log.") from None
            if isinstance(event, Published):
                self._job.release(event.lease)
                waiting.discard(event.lease)
            elif isinstance(event, (Failed, Refused)):
                raise DDLPError(f"the engine failed at the bench's images: {event.reason}")
        return time.monotonic() - began

    def close(self) -> None:
        self._job.close(2.0)


def measure(place: Place, options: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """Measure all rounds. Every other round has the turns in reverse order."""
    root, files = place.images(options.images, options.files)
    workers = place.link.open().workers
    work: dict[str, Any] = {
        "paths": [place.there(str(root / name)) for name in files], "size": SIZE, "resample": int(Image.Resampling.BILINEAR),
        "batch": options.batch, "processes": workers, "cpus": place.cpus,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as scratch:
        links = [place.link] + [place.plain] * (place.plain is not None)
        engines = [_Turns(link, root, files, options.batch, Path(scratch) / "manifest") for link in links if link]
        try:
            work["crops"] = crops_of(engines[0].pipeline, root, files)

            def items(batches: int) -> list[int]:
                return [number % len(files) for number in range(batches * options.batch)]

            def bare(wanted: list[int]) -> float:
                return len(wanted) / place.bare({**work, "items": wanted}) / workers

            def rate_of(turns: _Turns) -> Callable[[list[int]], float]:
                return lambda wanted: len(wanted) / turns.turn(wanted) / workers

            warm = items(_WARM_BATCHES * workers)
            rates = [rate_of(turns) for turns in engines]
            for engine in rates:
                engine(warm)
            batches = workers * max(2, round(options.seconds * bare(warm) / options.batch))
            wanted = items(batches)
            versions = dict(place.link.status().versions)
            result = Result(place.name, workers, len(wanted), options.batch, versions, kernel=versions.get("kernel", "none"))
            sides = list(zip([bare, *rates], [result.bare, result.engine, result.pillow]))  # noqa: B905 - the last may lack
            for number in range(options.rounds):
                for side, values in sides[:: 1 if number % 2 == 0 else -1]:
                    values.append(side(wanted))
                say(f"round {number + 1}/{options.rounds}: engine {result.engine[-1]:.1f}, bare {result.bare[-1]:.1f} images/s")
        finally:
            for turns in engines:
                turns.close()
    return result


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    versions = ", ".join(f"{name} {result.versions.get(name)}" for name in ("machine", "python", "pillow"))
    figures = [
        (f"engine (kernel: {result.kernel})", spread(result.engine, ".1f")),
        ("bare Pillow loop", spread(result.bare, ".1f") + "   the bound of an engine with Pillow"),
        ("engine / bare", spread(result.in_bare_loops, ".3f")),
    ]
    if result.pillow:
        figures += [
            ("engine with Pillow", spread(result.pillow, ".1f")),
            ("engine with Pillow / bare", spread(ratios(result.pillow, result.bare), ".3f")),
            ("engine / with Pillow", spread(ratios(result.engine, result.pillow), ".3f")),
        ]
    lines = [
        f"{result.where} ({versions}), {result.workers} worker(s), {result.images} images a turn in batches of {result.batch}",
        f"medians of {len(result.engine)} rounds (least .. most), images/s on one core, RandomResizedCrop({SIZE})",
        *(f"  {name:27}{text}" for name, text in figures),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
