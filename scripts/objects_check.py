"""Images in object storage, on a local server: ddlp beside the same files on this machine, and DataLoader with fsspec or s3fs.

The server (`tests/object_server.py`) is a process of its own, with latency and a limited rate. "The bound" is the smaller of
that rate and ddlp's with the files. Peers run the same transform on the same objects: torch's DataLoader with a data set that
opens each object by fsspec's HTTP file system, or by s3fs. With `--shards` the same images come from tar shards as well, a
range each, from a server of their own with the same limits. With `--engine` an engine makes all batches: of files that it
sees, of objects that it requests itself, and of objects whose bytes the host requests and sends it. All sides have `--workers`
workers; the peers are measured with 1 to 16 as well. Rates are medians of rounds in turn, in images a second, each behind a
start of some batches.

    python -m scripts.objects_check                         # some minutes; pip install fsspec aiohttp s3fs
    python -m scripts.objects_check --latency 0.1 --rounds 1 --peers
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from ddlp import DDLPLoader, Device, ImageObjects, TarObjects
from ddlp.sampledata import make_imagefolder
from tests.engine_process import EngineProcess

BATCH = 32
START = 4  # batches before the clock starts
MOST = (1, 2, 4, 8, 16)  # workers of a peer
BUCKET = "bucket"  # the server's
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.02, 0.1], help="seconds (%(default)s)")
    parser.add_argument("--rate", type=float, nargs="+", default=[0.0, 500.0], help="the server's limit; 0: none (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--images", type=int, default=3000, help="of a measurement of ours (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measurement of a peer (%(default)s)")
    parser.add_argument("--faults", type=float, default=0.0, help="part of requests answered by 503, and as many resets")
    parser.add_argument("--shards", type=int, default=0, help="tar shards with the same images, beside the objects (none)")
    parser.add_argument("--engine", action="store_true", help="also the rates of an engine with --workers workers")
    parser.add_argument("--root", type=Path, help="an ImageFolder's directory; made by default")
    parser.add_argument("--peers", nargs="*", choices=("fsspec", "s3fs"), default=["fsspec", "s3fs"], help="(all)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = options.root
        if root is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make_imagefolder(home, 400, mean_kb=110)
            root = home / "train"
        print(f"processors: {sorted(os.sched_getaffinity(0))}, {options.workers} worker(s), batches of {BATCH}", flush=True)
        for latency in options.latency:
            Check(root, latency, options).run()


class Check:
    """The measurements at one latency."""

    def __init__(self, root: Path, latency: float, options: argparse.Namespace) -> None:
        self._root, self._latency, self._options = root, latency, options

    def run(self) -> None:
        """Measure, and print."""
        o = self._options
        files = ImageFolder(str(self._root), TRAIN)
        for rate in o.rate:
            found: dict[str, list[float]] = {"files": [], "objects": []}
            with served(self._root, self._latency, rate, o.faults) as url:
                objects = ImageObjects(url, TRAIN)
                for _ in range(o.rounds):
                    for name, dataset in (("files", files), ("objects", objects)):
                        found[name].append(_ours(dataset, o.workers, o.images))
            bounds = [min(local, rate or local) for local in found["files"]]
            parts = [ours / bound for ours, bound in zip(found["objects"], bounds, strict=True)]
            if o.shards:
                self._sharded(files, rate)
            if o.engine:
                self._by_engine(files, rate)
            print(
                f"{1000 * self._latency:.0f} ms, {f'{rate:.0f} a second at most' if rate else 'any rate'}: files "
                f"{statistics.median(found['files']):.0f}, objects {statistics.median(found['objects']):.0f} images/s, of the "
                f"bound {statistics.median(parts):.3f} ({min(parts):.3f} .. {max(parts):.3f})", flush=True,
            )  # fmt: skip
        if o.peers:
            self._beside(o)

    def _sharded(self, files: ImageFolder, rate: float) -> None:
        o = self._options
        with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
            write_shards(files, Path(home), o.shards)
            objects, shards = (stack.enter_context(served(d, self._latency, rate, o.faults)) for d in (self._root, Path(home)))
            began = time.monotonic()
            urls = [f"{shards}{number}.tar" for number in range(o.shards)]
            sets = TarObjects(urls, TRAIN, index_dir=Path(home, "index")), ImageObjects(objects, TRAIN)
            index_s = time.monotonic() - began
            each = [[_ours(dataset, o.workers, o.images) for dataset in sets] for _ in range(o.rounds)]
        parts = [ours / single for ours, single in each]
        print(
            f"{1000 * self._latency:.0f} ms, {f'{rate:.0f} a second at most' if rate else 'any rate'}: {o.shards} shards "
            f"{statistics.median(ours for ours, _ in each):.0f} images/s, of single objects' {statistics.median(parts):.3f} "
            f"({min(parts):.3f} .. {max(parts):.3f}); both lists took {index_s:.1f} s", flush=True,
        )  # fmt: skip

    def _by_engine(self, files: ImageFolder, rate: float) -> None:
        o = self._options
        with tempfile.TemporaryDirectory() as home, served(self._root, self._latency, rate, o.faults) as url:
            engine = EngineProcess(Path(home), "--root", str(self._root), "--root", url, workers=o.workers)
            try:
                there, carried = (Device(engine.address, str(engine.keys), data=data) for data in ("there", "carried"))
                objects = ImageObjects(url, TRAIN)
                ways = (files, there), (objects, there), (objects, carried)
                each = [[_ours(dataset, 0, o.images, device) for dataset, device in ways] for _ in range(o.rounds)]
            finally:
                engine.end()
        local, own, sent = map(statistics.median, zip(*each, strict=True))
        parts = [found / min(here, rate or here) for here, found, _ in each]
        print(
            f"{1000 * self._latency:.0f} ms, {f'{rate:.0f} a second at most' if rate else 'any rate'}: an engine with "
            f"{o.workers} worker(s), files {local:.0f}, objects that it requests {own:.0f} images/s, of the bound "
            f"{statistics.median(parts):.3f} ({min(parts):.3f} .. {max(parts):.3f}); objects from the host {sent:.0f}",
            flush=True,
        )  # fmt: skip

    def _beside(self, o: argparse.Namespace) -> None:
        with served(self._root, self._latency, 0.0, 0.0) as url:
            objects = ImageObjects(url, TRAIN)
            for name in o.peers:
                peer = _PEERS[name](url, [one.removeprefix(url) for one, _ in objects.samples], list(objects.targets))
                each: list[tuple[float, float]] = []
                for _ in range(o.rounds):
                    each.append((_ours(objects, o.workers, o.images), _theirs(peer, o.workers, o.seconds)))
                best = {workers: _theirs(peer, workers, o.seconds) for workers in MOST}
                ours = statistics.median(one for one, _ in each)
                most = max(best, key=lambda workers: best[workers])
                print(
                    f"{1000 * self._latency:.0f} ms, {name}: objects {ours:.0f}, DataLoader with {o.workers} worker(s) "
                    f"{statistics.median(one for _, one in each):.0f}, {statistics.median(a / b for a, b in each):.1f} times; "
                    f"its best {best[most]:.0f} with {most}, {ours / best[most]:.1f} times "
                    f"({', '.join(f'{workers}: {rate:.0f}' for workers, rate in best.items())})", flush=True,
                )  # fmt: skip


def write_shards(files: ImageFolder, home: Path, count: int) -> None:
    """Write the images into shards of WebDataset's names: 0.tar, 1.tar, ..."""
    for number in range(count):
        with tarfile.open(home / f"{number}.tar", "w") as tar:
            for k, (path, target) in enumerate(files.samples[number::count]):
                tar.add(path, f"{k}.jpg")
                label = tarfile.TarInfo(f"{k}.cls")
                label.size = len(str(target))
                tar.addfile(label, io.BytesIO(str(target).encode()))


@contextlib.contextmanager
def served(root: Path, latency: float, rate: float, faults: float) -> Iterator[str]:
    """Serve the files with latency in seconds, images a second at most (0: any), and a part of faults; yields the URL."""
    command = [sys.executable, "-m", "tests.object_server", str(root), "--latency", str(latency), "--rate", str(rate)]
    command += ["--busy", str(faults), "--reset", str(faults)]
    # In a session of its own, so that Ctrl-C at the terminal does not reach it. It ends with its standard input.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/{BUCKET}/"
    finally:
        process.terminate()  # workers that were forked meanwhile hold its standard input open
        process.communicate()


def _ours(dataset: Any, workers: int, images: int, device: Device | None = None) -> float:
    """ddlp's rate, or that of a device alone.

    All of the order is known ahead, as of shuffle=True; of a sampler of one's own only the next batches are.
    """
    order = [k % len(dataset) for k in range(images + START * BATCH)]
    strategy = "cpu" if device is None else "csd"
    loader = DDLPLoader(Subset(dataset, order), BATCH, num_workers=workers, seed=1, strategy=strategy, csd=device)
    return _rate(loader, lambda _: False)


def _theirs(dataset: Any, workers: int, seconds: float) -> float:
    """A peer's rate. It has as long as it is given, at least some batches."""
    order = itertools.cycle(range(len(dataset)))
    loader = DataLoader(dataset, BATCH, sampler=[next(order) for _ in range(100_000)], num_workers=workers,
                        multiprocessing_context="forkserver", worker_init_fn=_one_thread)  # fmt: skip
    return _rate(loader, lambda passed: passed > seconds)


def _one_thread(_: int) -> None:
    import torch

    torch.set_num_threads(1)


def _rate(loader: Any, enough: Callable[[float], bool]) -> float:
    began, images = 0.0, 0
    for number, (batch, _) in enumerate(loader):
        now = time.monotonic()
        if number < START:
            began = now
            continue
        images += len(batch)
        if enough(now - began):
            break
    return images / (time.monotonic() - began)


class _Opened(Dataset):
    """Objects opened one by one, as people write it."""

    def __init__(self, url: str, keys: list[str], targets: list[int]) -> None:
        self.url, self.keys, self.targets = url, keys, targets
        self._files: Any = None

    def files(self) -> Any:
        raise NotImplementedError

    def path(self, key: str) -> str:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self._files is None:
            self._files = self.files()
        data = self._files.cat_file(self.path(self.keys[index]))
        return TRAIN(Image.open(io.BytesIO(data)).convert("RGB")), self.targets[index]


class _Http(_Opened):
    def files(self) -> Any:
        import fsspec

        return fsspec.filesystem("http")

    def path(self, key: str) -> str:
        return self.url + key


class _S3(_Opened):
    def files(self) -> Any:
        import s3fs

        server = self.url.removesuffix(f"/{BUCKET}/")
        return s3fs.S3FileSystem(key="a", secret="b", endpoint_url=server, client_kwargs={"region_name": "us-east-1"})

    def path(self, key: str) -> str:
        return f"{BUCKET}/{key}"


_PEERS: dict[str, type[_Opened]] = {"fsspec": _Http, "s3fs": _S3}


if __name__ == "__main__":
    main()
