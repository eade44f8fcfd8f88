"""What pays to cache as an operator grows: nothing, the source files, or the operator's results. Cachew's Figure 8, by ddlp.

    python -m scripts.cache_sweep                           # about five minutes
    python -m scripts.cache_sweep --operator-ms 0 10 50 --storage slow --rounds 1
    python -m scripts.cache_sweep --write                   # puts the result into docs/results, for benchmarks.papers.page

A data set of one's own reads small JPEG files. The operator sleeps so many milliseconds for each image, and gives overlapping
patches: several hundred times the file's bytes. What follows takes one of them. Three ways are measured by turns, in the epochs
behind the first:

    compute  no cache: each epoch reads the storage and runs the operator
    source   the files are near, and each epoch runs the operator. ddlp has no cache of source files: here they are copied to
             the local disk before, which is what a user can do today
    full     ddlp.CachePoint() stands behind the operator, with cache=ddlp.Cache(...): its results are kept on the local disk

The storage is a web server on this machine (tests/object_server.py). "slow" has --latency and --rate, "fast" has neither.
Each worker process requests one image at a time. ddlp.ImageObjects, which requests many, can't be used: behind steps of one's
own nothing is kept of it.

"Predicted" follows from rates that are measured beside each point, without the operator's time: those of the storage and of the
local disk with one worker and with all, and of reading what is kept. A worker reads and computes in turn. With w workers:

    compute = min(all workers from the storage, w / (1 / one worker from the storage + operator))
    source  = the same from the local disk
    full    = reading what is kept, whatever the operator takes

Orders agree if no two ways come out the other way round by more than 20 %, here or there. Status 1: some don't, or `full`
overtakes another way more than one step from where it was predicted to.

"Auto keeps": the share of samples that cache="auto" keeps, tried with a few images. It obeys a CachePoint without measuring.
"By times": what ddlp's rule for decoded pixels (ddlp.planning.cache_point.best_point) says to the measured times of ten epochs
with and without the cache.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import io
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

from benchmarks.common import Terminated, alternate, end_on_sigterm, say
from ddlp import Cache, CachePoint, DDLPLoader, ImageFiles
from ddlp.planning.cache_point import OFF, SampleCost, best_point
from ddlp.sampledata import make_thumbnails
from scripts.markdown import markdown_table
from scripts.objects_check import served
from scripts.results import RESULTS, result

KEPT = RESULTS / "cache-sweep.json"
WAYS = ("compute", "source", "full")
BATCH = 8
SIDE, PATCH, STRIDE = 128, 64, 4  # pixels
TIE = 1.2  # rates that differ by less are alike
TURN_S = 0.5  # a turn is as many epochs as take that long
TRIED = 16  # images that cache="auto" gets
QUOTA = "100G"
# Cachew's Figure 8 as its authors have published it (github.com/eth-easl/cachew_experiments, experiments/autocaching): by the
# milliseconds that an operator sleeps for a batch of 900, those of an epoch for each of its 556 batches.
CACHEW = {
    200: (326, 271, 445), 250: (316, 279, 445), 300: (496, 305, 446), 350: (365, 352, 451), 400: (405, 402, 447),
    450: (453, 452, 439), 500: (504, 504, 442),
}  # fmt: skip


class Operator:
    """Sleeps, and gives all patches of an image: uint8 (3, rows, columns, 64, 64), a view of its pixels."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: Image.Image) -> torch.Tensor:
        time.sleep(self.seconds)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.unfold(1, PATCH, STRIDE).unfold(2, PATCH, STRIDE)


def one_patch(patches: torch.Tensor) -> torch.Tensor:
    """Return one of them, drawn: float32 (3, 64, 64), 0 to 1."""
    row, column = (int(torch.randint(count, ())) for count in patches.shape[1:3])
    return patches[:, row, column].float() / 255


class Images(Dataset):
    """Images read by code of one's own: from the local disk, or from a web server, one request at a time in each process."""

    def __init__(self, root: Path, paths: Sequence[Path], operator_s: float, url: str | None) -> None:
        self.keys, self.url = [path.relative_to(root).as_posix() for path in paths], url
        transform = T.Compose([Operator(operator_s), CachePoint(key=f"patches {operator_s}"), one_patch])
        self.files = ImageFiles([str(path) for path in paths], [0] * len(paths), transform)
        self._connection: tuple[int, http.client.HTTPConnection] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        data = Path(self.files.paths[index]).read_bytes() if self.url is None else self._requested(self.url, self.keys[index])
        assert self.files.transform is not None
        return self.files.transform(Image.open(io.BytesIO(data)).convert("RGB")), 0

    def _requested(self, url: str, key: str) -> bytes:
        place = urlsplit(url)
        if self._connection is None or self._connection[0] != os.getpid():
            self._connection = os.getpid(), http.client.HTTPConnection(place.netloc)
        self._connection[1].request("GET", place.path + key)
        answer = self._connection[1].getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise OSError(f"{url}{key}: the server answered {answer.status} {answer.reason}")
        return body


class KnownImages(Images):
    """The same, with a description of what they are, without which nothing is kept of a data set of one's own."""

    def __ddlp__(self) -> ImageFiles:
        return self.files


@dataclass(frozen=True)
class Parts:
    """What predicts a sweep, in images/s, without the operator's time: `one`: with one worker. `kept`: from what is kept."""

    storage_one: float
    storage: float
    disk_one: float
    disk: float
    kept: float

    def predicted(self, operator_s: float, workers: int) -> dict[str, float]:
        """Return the images/s of each way, by the formula above."""
        ways = {"compute": (self.storage_one, self.storage), "source": (self.disk_one, self.disk)}
        found = {way: min(all_of_them, workers / (1 / one + operator_s)) for way, (one, all_of_them) in ways.items()}
        return {**found, "full": self.kept}


@dataclass(frozen=True)
class Point:
    """What was found at one point of a sweep. Rates: images/s by way.

    Attributes:
        measured: of the epochs behind the first, medians of the turns.
        predicted: by `Parts`.
        filling_epoch: the first epoch's time of `full`, as a multiple of that of `compute`.
        auto_keeps_percent: of the samples that cache="auto" got.
    """

    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    filling_epoch: float
    auto_keeps_percent: float

    @property
    def fastest(self) -> str:
        """The way with the most images/s."""
        return max(WAYS, key=self.measured.__getitem__)

    @property
    def agrees(self) -> bool:
        """Whether the predicted order is the measured one."""
        for at, first in enumerate(WAYS):
            for second in WAYS[at + 1 :]:
                ratios = [rates[first] / rates[second] for rates in (self.measured, self.predicted)]
                if (ratios[0] - 1) * (ratios[1] - 1) < 0 and any(max(one, 1 / one) > TIE for one in ratios):
                    return False
        return True

    @property
    def by_times(self) -> str:
        """The way that `best_point` chooses from the measured times: "full" or "compute". It knows no source cache."""
        plain_s, kept_s = 1 / self.measured["compute"], 1 / self.measured["full"]
        cost = SampleCost(self.filling_epoch * plain_s, kept_s, 1.0)
        return "compute" if best_point(plain_s, {"full": cost}, 1, 1 << 40) == OFF else "full"

    @property
    def by_auto(self) -> str:
        """The way that cache="auto" chooses."""
        return "full" if self.auto_keeps_percent else "compute"

    def right(self, way: str) -> bool:
        """Whether none of the two ways that ddlp can choose from is faster than this one by more than a tie."""
        return max(self.measured["compute"], self.measured["full"]) <= TIE * self.measured[way]

    @property
    def figures(self) -> dict[str, float]:
        """What is kept of it."""
        return {
            **{way: round(self.measured[way]) for way in WAYS},
            **{f"predicted_{way}": round(self.predicted[way]) for way in WAYS},
            "filling_epoch": round(self.filling_epoch, 2),
            "auto_keeps_percent": round(self.auto_keeps_percent),
        }

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> Point:
        """Return the point of these figures."""
        measured, predicted = ({way: figures[prefix + way] for way in WAYS} for prefix in ("", "predicted_"))
        return cls(measured, predicted, figures["filling_epoch"], figures["auto_keeps_percent"])


def crossing(points: Sequence[Mapping[str, float]], other: str) -> int:
    """Return from which point on `full` is faster than the other way, to the end; as many as there are points: nowhere."""
    at = len(points)
    while at and points[at - 1]["full"] > points[at - 1][other]:
        at -= 1
    return at


def shape_agrees(points: Sequence[Point]) -> bool:
    """Whether a sweep has its crossings within one step of the predicted ones."""
    return all(
        abs(crossing([one.measured for one in points], other) - crossing([one.predicted for one in points], other)) <= 1
        for other in ("compute", "source")
    )


def loader_of(
    root: Path, paths: Sequence[Path], url: str, way: str, operator_s: float, workers: int, cache: Path | None = None
) -> DDLPLoader:
    """Return the loader of a way. ``cache``: where "full" keeps results; other ways keep none."""
    kind, kept_in = (KnownImages, cache) if way == "full" else (Images, None)
    return DDLPLoader(
        kind(root, paths, operator_s, None if way == "source" else url), BATCH, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0, seed=1, cache=False if kept_in is None else Cache(kept_in, QUOTA),
    )  # fmt: skip


class Sweep:
    """The measurements of one storage.

    Args:
        root, paths: the image files on the local disk.
        url: of the same files in the storage.
        home: a directory for its caches, which is made.
        options: of the command.
    """

    def __init__(self, root: Path, paths: Sequence[Path], url: str, home: Path, options: argparse.Namespace) -> None:
        self._root, self._paths, self._home, self._options = root, paths, home, options
        self._loader = partial(loader_of, root, paths, url)
        home.mkdir()
        every = options.workers
        self._parts = {
            "storage_one": self._loader("compute", 0.0, 1), "storage": self._loader("compute", 0.0, every),
            "disk_one": self._loader("source", 0.0, 1), "disk": self._loader("source", 0.0, every),
            "kept": self._loader("full", 0.0, every, home / "parts"),
        }  # fmt: skip
        for loader in self._parts.values():
            _seconds(loader)

    def point(self, operator_s: float) -> Point:
        """Measure one point, and beside it what predicts it: so both have the same of the machine's other work."""
        workers = self._options.workers
        with tempfile.TemporaryDirectory(dir=self._home) as cache:
            loaders = {way: self._loader(way, operator_s, workers, Path(cache)) for way in WAYS}
            first = {way: _seconds(loader) for way, loader in loaders.items()}
            found = self._medians({**self._parts, **loaders})
        parts = Parts(**{name: found[name] for name in self._parts})
        measured = {way: found[way] for way in WAYS}
        predicted = parts.predicted(operator_s, workers)
        return Point(measured, predicted, first["full"] / first["compute"], self._auto_keeps(operator_s))

    def _medians(self, loaders: Mapping[str, DDLPLoader]) -> dict[str, float]:
        """Return the images/s of each loader, which take turns."""

        def turn(loader: DDLPLoader) -> float:
            epochs, passed = 0, 0.0
            while passed < TURN_S:
                epochs, passed = epochs + 1, passed + _seconds(loader)
            return epochs * len(self._paths) / passed

        turns = {name: partial(turn, loader) for name, loader in loaders.items()}
        rates = alternate(turns, self._options.rounds, lambda _: None)
        return {name: statistics.median(values) for name, values in rates.items()}

    def _auto_keeps(self, operator_s: float) -> float:
        """Return the per cent of a few samples that cache="auto" has kept, in a cache directory of its own."""
        with (
            tempfile.TemporaryDirectory(dir=self._home) as directory,
            mock.patch.dict(os.environ, XDG_CACHE_HOME=directory),
        ):
            loader = DDLPLoader(KnownImages(self._root, self._paths[:TRIED], operator_s, None), BATCH, seed=1, cache="auto")
            for _ in range(2):
                _seconds(loader)
            counts = loader.report().cache
            return 0.0 if counts is None else 100 * counts.hits / (counts.hits + counts.misses)


def _seconds(loader: DDLPLoader) -> float:
    """Return how long an epoch takes."""
    began = time.monotonic()
    for _ in loader:
        pass
    return time.monotonic() - began


def name_of(storage: str, operator_ms: float) -> str:
    """Return a point's name among the figures that are kept."""
    return f"{storage}, {operator_ms:g} ms"


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return Markdown: a line for each point, from `Point.figures` by `name_of`."""
    head = (
        "storage, operator", *(f"{way}, images/s" for way in WAYS), "predicted", "agree", "fastest", "filling epoch",
        "auto keeps", "by times",
    )  # fmt: skip
    lines: list[Sequence[str]] = []
    for name, figures in found.items():
        point = Point.of(figures)
        chosen = [(point.by_auto, f"{point.auto_keeps_percent:g} %"), (point.by_times, point.by_times)]
        lines.append((
            name, *(f"{point.measured[way]:g}" for way in WAYS), ", ".join(f"{point.predicted[way]:g}" for way in WAYS),
            "yes" if point.agrees else "**no**", point.fastest, f"{point.filling_epoch:g}",
            *(f"{told}, {'right' if point.right(way) else 'wrong'}" for way, told in chosen),
        ))  # fmt: skip
    return markdown_table(head, lines)


def verdict(found: Mapping[str, Mapping[str, float]]) -> tuple[str, bool]:
    """Return in a line how many points agree and whether crossings do, for each storage; and whether all do."""
    said, good = [], True
    for storage in dict.fromkeys(name.partition(",")[0] for name in found):
        points = [Point.of(figures) for name, figures in found.items() if name.startswith(f"{storage},")]
        agree, shape = sum(one.agrees for one in points), shape_agrees(points)
        said.append(
            f"{storage}: the predicted order at {agree} of {len(points)} points, crossings "
            f"{'within one step' if shape else 'more than one step off'}"
        )
        good = good and shape and agree == len(points)
    return "; ".join(said), good


def cachew_table() -> str:
    """Return Markdown: Cachew's own figures, milliseconds a batch."""
    head = ("operator, ms a batch", *(f"{way}, ms a batch" for way in WAYS), "fastest")
    lines: list[Sequence[str]] = []
    for operator_ms, times in CACHEW.items():
        lines.append((str(operator_ms), *map(str, times), WAYS[times.index(min(times))]))
    return markdown_table(head, lines)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--operator-ms", type=float, nargs="+", default=[0, 2, 5, 10, 20, 50], metavar="MS",
        help="what the operator takes for an image, rising (0 2 5 10 20 50)",
    )  # fmt: skip
    parser.add_argument("--storage", nargs="+", choices=("slow", "fast"), default=["slow", "fast"], help="(both)")
    parser.add_argument("--rate", type=float, default=150.0, help="images a second of the slow one, at most (%(default)g)")
    parser.add_argument("--latency", type=float, default=0.002, help="seconds before it answers (%(default)g)")
    parser.add_argument("--images", type=int, default=128, help="of an epoch; each takes 3 MB of disk (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="processes, more than cores: the operator sleeps (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way; medians count (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")
    parser.add_argument("--write", action="store_true", help="write docs/results/cache-sweep.json, unless it was stopped")
    options = parser.parse_args(arguments)
    if min(options.operator_ms) < 0 or options.operator_ms != sorted(set(options.operator_ms)):
        parser.error("--operator-ms: give milliseconds, 0 or more, each more than the one before")
    if options.rate <= 0 or options.latency < 0:
        parser.error(f"--rate {options.rate:g} --latency {options.latency:g}: the slow storage needs a rate, and a latency")
    if min(options.workers, options.rounds) < 1 or options.images < options.workers * BATCH:
        parser.error(f"--images {options.images}: each of at least one worker needs a batch of {BATCH}, and at least one round")
    return options


def _run(options: argparse.Namespace, total: int, home: Path, figures: dict[str, dict[str, float]]) -> None:
    """Measure all points, into ``figures``."""
    root = make_thumbnails(home / "images", options.images, 1, side=SIDE) / "train"
    paths = sorted(root.glob("*/*.jpg"))
    for path in paths:
        os.utime(path, (0, 0))  # what was changed in the last seconds is not kept
    for storage in options.storage:
        latency, rate = (options.latency, options.rate) if storage == "slow" else (0.0, 0.0)
        with served(root, latency, rate, 0.0) as url:
            say(f"{len(figures)}/{total}  {storage} storage")
            sweep = Sweep(root, paths, url, home / storage, options)
            for operator_ms in options.operator_ms:
                name = name_of(storage, operator_ms)
                figures[name] = sweep.point(operator_ms / 1000).figures
                rates = ", ".join(f"{way} {figures[name][way]:g}" for way in WAYS)
                say(f"{len(figures)}/{total}  {name}: {rates} images/s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep. Return 0 if orders and crossings agree, 1 if some don't, 130 or 143 if it was stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _options(arguments)
    figures: dict[str, dict[str, float]] = {}
    stopped, total = 0, len(options.storage) * len(options.operator_ms)
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="ddlp-sweep-") as home, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create|ddlp: cache='auto' may keep")
        try:
            _run(options, total, Path(home), figures)
        except KeyboardInterrupt as told:
            stopped = 143 if isinstance(told, Terminated) else 130
            say(f"cache_sweep: stopped after {len(figures)} of {total} points; what was found follows")
        gc.collect()  # the loaders, and so their processes, which write into `home`
    line, good = verdict(figures)
    given = [one for one in arguments if one not in ("--write", "--json")]
    kept = result(
        shlex.join(["python", "-m", "scripts.cache_sweep", *given]), "measured here", "paper.md#cachews-figure-8-what-to-cache",
        figures, f"other programs ran beside it, load {os.getloadavg()[0]:.2g}",
    )  # fmt: skip
    if options.json:
        print(json.dumps({**asdict(kept), "verdict": line}))
    else:
        print("\n".join([table(figures), *([line] if line else [])]))
    if options.write and not stopped:
        kept.write(KEPT)
        say(str(KEPT))
    return stopped or int(not good)


if __name__ == "__main__":
    sys.exit(main())
