"""Loads small images in many ways, writes a digest of each sample; tests/golden.py starts `python -m tests.golden_rows OUT`.
With names of pipelines and user code behind OUT it is their rows alone.

It uses only what users use of ddlp, so it runs with the ddlp of an earlier commit too: PYTHONPATH says whose. OUT gets a line
of JSON for each row.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)
from torchvision import transforms as T
from torchvision.transforms import v2

from ddlp import Cache, DDLPLoader, ImageArrays, ImageFiles, TarImages
from ddlp.transforms import Views
from tests.covering import pairwise

__all__ = ["Row", "names"]

SAMPLES, BATCH, SEED, EPOCHS = 37, 2, 11, 2
RANKS = 2
START_S = 60.0  # a device may need so long to start, on a busy machine
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STRATEGIES = ("cpu", "csd", "mte", "wrr", "ordered")
REPEATED_ORDER = ("cpu", "mte", "ordered")  # their batches come in the same order each time; mte's by its ratio
WORKERS = (0, 1, 2)
RESUMES = ("whole", "resumed", "begun elsewhere")  # elsewhere: by another strategy and number of workers
ORDERS = ("shuffled", "repeating", "rank 0 of 2", "rank 1 of 2")


# -- images ------------------------------------------------------------------------------------------------------------


def _pixels(number: int, height: int, width: int) -> np.ndarray:
    """Smooth colours with noise, uint8 (height, width, 3). Raw draws: they are the same with each version of numpy."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.PCG64(number).random_raw(height * width * 3).reshape(height, width, 3) % 48
    smooth = np.stack([x * 3 + number * 7, y * 2 + 90, (x + y) * 2 + number], axis=2) % 256
    return (smooth * 3 // 4 + noise).astype(np.uint8)


_KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("jpg", "RGB", {"subsampling": 2}),
    ("jpg", "RGB", {"subsampling": 1}),
    ("jpg", "RGB", {"subsampling": 0}),
    ("jpg", "L", {}),
    ("jpg", "RGB", {"progressive": True}),
    ("jpg", "RGB", {"subsampling": 2, "optimize": True}),
    ("jpg", "CMYK", {}),
    ("png", "RGB", {}),
)


def _write_images(root: Path) -> list[str]:
    """Write files of all kinds and of different sizes. Returns their paths."""
    paths = []
    for number in range(SAMPLES):
        suffix, mode, options = _KINDS[number % len(_KINDS)]
        image = Image.fromarray(_pixels(number, 61 + number * 13 % 50, 53 + number * 29 % 70)).convert(mode)
        if number % 5 == 3 and suffix == "jpg":
            exif = Image.Exif()
            exif[0x0112] = 1 + number % 8  # the orientation
            options = {**options, "exif": exif.tobytes()}
        if suffix == "jpg":
            options = {"quality": 70 + number, **options}
        paths.append(str(root / f"{number:02d}.{suffix}"))
        image.save(paths[-1], **options)
    return paths


def _write_tar(path: Path, images: list[str]) -> None:
    with tarfile.open(path, "w") as shard:
        for number, image in enumerate(images):
            for name, content in (
                (f"{number:02d}{Path(image).suffix}", Path(image).read_bytes()),
                (f"{number:02d}.cls", str(number).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


class Data(NamedTuple):
    """What data sets are made of."""

    files: list[str]
    tar: str
    arrays: np.ndarray
    cache: str


def _make_data(root: Path) -> Data:
    files = _write_images(root)
    _write_tar(root / "shard.tar", files)
    return Data(files, str(root / "shard.tar"), np.stack([_pixels(k, 40, 40) for k in range(SAMPLES)]), str(root / "cache"))


# -- pipelines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """A transform, the kind of data set that it is for, and the loader's arguments that belong to it."""

    transform: Callable[[], Any]
    options: Callable[[Data], dict[str, Any]] = lambda data: {}
    source: str = "files"

    def dataset(self, data: Data) -> Dataset[Any]:
        transform = self.transform()
        if self.source == "tar":
            return TarImages(data.tar, transform=transform, target="cls")
        if self.source == "arrays":
            return ImageArrays(data.arrays, list(range(SAMPLES)), transform)
        return ImageFiles(data.files, list(range(SAMPLES)), transform)


def _to_float(*steps: Any) -> Any:
    return T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])


def _augmented(step: Any) -> Any:
    return _to_float(T.Resize((40, 36)), step)


def _crop() -> Any:
    return _to_float(T.RandomResizedCrop(32), T.RandomHorizontalFlip())


def _view() -> list[Any]:
    jitter = T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    blur = T.RandomApply([T.GaussianBlur(5, (0.1, 2.0))], p=0.5)
    return [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), jitter, T.RandomGrayscale(0.3), blur, T.ToTensor()]


def blend(images: torch.Tensor) -> torch.Tensor:
    """A quarter of each image is its neighbour's."""
    return images * 0.75 + images.roll(1, 0) * 0.25


def blend_batch(batch: list[Any]) -> list[Any]:
    return [blend(batch[0]), batch[1]]


PIPELINES: dict[str, Pipeline] = {
    "crop": Pipeline(_crop),
    "crop, by stream": Pipeline(_crop, lambda data: {"transfer": "stream"}),
    "crop, uint8": Pipeline(_crop, lambda data: {"output": torch.uint8}),
    "crop, float16, channels last": Pipeline(
        _crop, lambda data: {"output": torch.float16, "memory_format": torch.channels_last}
    ),
    "crop, fast": Pipeline(lambda: _to_float(T.RandomResizedCrop(12, (0.6, 1.0))), lambda data: {"decode": "fast"}),
    "crop, cached": Pipeline(
        lambda: _to_float(T.Resize(40), T.RandomCrop(32), T.RandomVerticalFlip()),
        lambda data: {"cache": Cache(data.cache, "64M")},
    ),
    "crop, blended": Pipeline(_crop, lambda data: {"batch_transform": blend_batch}),
    "crop, tar": Pipeline(_crop, source="tar"),
    "centre": Pipeline(lambda: _to_float(T.Resize(40, T.InterpolationMode.BICUBIC), T.CenterCrop(32))),
    "pad, arrays": Pipeline(
        lambda: _to_float(T.RandomCrop(40, padding=4, padding_mode="reflect"), T.RandomHorizontalFlip()), source="arrays"
    ),
    "v2": Pipeline(
        lambda: v2.Compose(
            [v2.RandomResizedCrop(32), v2.RandomPhotometricDistort(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        )
    ),
    "v2, as PIL": Pipeline(
        lambda: v2.Compose([v2.ToImage(), v2.Resize((36, 40), antialias=True), v2.ToDtype(torch.float32, scale=True)]),
        lambda data: {"as_pil": True},
    ),
    "erasing": Pipeline(
        lambda: T.Compose([T.RandomResizedCrop(32), T.ToTensor(), T.Normalize(MEAN, STD), T.RandomErasing(0.7)])
    ),
    "RandAugment": Pipeline(lambda: _augmented(T.RandAugment())),
    "TrivialAugmentWide": Pipeline(lambda: _augmented(T.TrivialAugmentWide())),
    "AutoAugment": Pipeline(lambda: _augmented(T.AutoAugment())),
    "AugMix": Pipeline(lambda: _augmented(T.AugMix())),
    "colours": Pipeline(
        lambda: _augmented(T.Compose([T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.3), T.GaussianBlur(3)]))
    ),
    "tones": Pipeline(
        lambda: _augmented(
            T.Compose(
                [
                    *(T.RandomSolarize(120), T.RandomPosterize(3), T.RandomInvert(), T.RandomEqualize()),
                    *(T.RandomAutocontrast(), T.RandomAdjustSharpness(2)),
                ]
            )
        )
    ),
    "geometry": Pipeline(
        lambda: _augmented(
            T.Compose(
                [
                    T.RandomRotation(30, T.InterpolationMode.BILINEAR),
                    T.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5, T.InterpolationMode.BICUBIC),
                    T.RandomPerspective(0.4),
                ]
            )
        )
    ),
    "two views": Pipeline(lambda: Views(T.Compose(_view()), T.Compose([*_view(), T.Normalize(MEAN, STD)]))),
}


# -- user code ---------------------------------------------------------------------------------------------------------


class OwnDataset(Dataset[Any]):
    """Opens its images by itself, and draws from all three global generators."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.transform = _crop()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as image:
            pixels = self.transform(image.convert("RGB"))
        return pixels + torch.rand(()) + np.random.rand() + random.random(), index


class OwnStep:
    """A transform that ddlp does not know."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.asarray(image).astype(np.float32)).permute(2, 0, 1)
        return pixels.roll(random.randrange(4), 1) * torch.rand(()) + float(np.random.rand())


class OwnStream(IterableDataset[Any]):
    """The workers share its samples among them."""

    def __init__(self, files: list[str]) -> None:
        self.samples = OwnDataset(files)

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.samples[index] for index in range(first, len(self.samples), step))


def own_collate(samples: list[Any]) -> dict[str, Any]:
    """A batch of another structure."""
    images = torch.stack([image for image, _ in samples])
    return {"images": images.flip(-1), "brightness": images.mean((1, 2, 3)), "targets": [target for _, target in samples]}


USER_CODE: dict[str, Callable[[Data], tuple[Any, dict[str, Any]]]] = {
    "own data set": lambda data: (OwnDataset(data.files), {}),
    "own step": lambda data: (
        ImageFiles(data.files, list(range(SAMPLES)), T.Compose([T.RandomResizedCrop(32), OwnStep()])),
        {},
    ),
    "own step, in threads": lambda data: (
        ImageFiles(data.files, list(range(SAMPLES)), T.Compose([T.Resize((32, 36)), T.Lambda(np.array)])),
        {"own_steps": "threads"},
    ),
    "own collate": lambda data: (PIPELINES["crop"].dataset(data), {"collate_fn": own_collate}),
    "IterableDataset": lambda data: (OwnStream(data.files), {}),
    "TensorDataset": lambda data: (
        TensorDataset(torch.from_numpy(data.arrays).permute(0, 3, 1, 2) / 255, torch.arange(SAMPLES)),
        {},
    ),
}
_TRAVELS = ("own step", "own step, in threads", "own collate")  # as far as the user's code


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What one way of loading gave.

    Attributes:
        name: says the way.
        samples: digests of all samples, by place: epochs and samplers' orders.
        order: the places of the batches in the order in which they came; None: it may be another one each time.
        by_devices: how many batches came from devices. It may differ each time.
        error: why there is no result.
    """

    name: str
    samples: list[str]
    order: list[int] | None = None
    by_devices: int = 0
    error: str = ""

    def digest(self) -> str:
        """Return one digest over samples and order, 16 hex digits."""
        return hashlib.sha256(json.dumps([self.samples, self.order]).encode()).hexdigest()[:16]


class Case(NamedTuple):
    """One way to load."""

    what: str
    strategy: str
    workers: int
    resume: str
    order: str

    @property
    def name(self) -> str:
        return f"{self.what} | {self.strategy} | {self.workers} workers | {self.resume} | {self.order}"


def _is_there(what: str, strategy: str, workers: int, resume: str, order: str) -> bool:
    if what == "IterableDataset":  # has neither indices nor ranks, and its workers' shares follow from their number
        return strategy in ("cpu", "wrr", "ordered") and order == "shuffled" and resume != "begun elsewhere"
    return what in PIPELINES or what in _TRAVELS or strategy != "csd"


def cases() -> list[Case]:
    """Some of all ways. Any two values of two of their parts meet in one of them. Those of a pipeline come together."""
    axes = (STRATEGIES, WORKERS, RESUMES, ORDERS)
    return [
        case
        for kinds in (PIPELINES, USER_CODE)
        for case in sorted(
            itertools.starmap(Case, pairwise(kinds, *axes, where=_is_there)),
            key=lambda case: (list(kinds).index(case.what), case.strategy != "csd"),
        )
    ]


def names(*parts: str) -> list[str]:
    """The names of all rows; or of those of some pipelines and user code, by their names."""
    if parts:
        return [case.name for case in cases() if case.what in parts]
    ranks = [_rank_name(strategy, rank) for strategy in _RANKS_STRATEGIES for rank in range(RANKS)]
    return [*(case.name for case in cases()), *ranks]


def _hash(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else repr(value.item()).encode())
    elif isinstance(value, list | tuple):
        for item in value:
            _hash(digest, item)
    else:
        digest.update(f"{type(value).__name__} {value!r}".encode())


def _parts(batch: Any) -> tuple[list[int], list[Any]]:
    """Return a batch's targets, which are the samples' indices, and what it has by sample."""
    if isinstance(batch, dict):
        return batch["targets"], [batch[name] for name in sorted(batch)]
    images, targets = batch
    views = images if isinstance(images, list | tuple) else [images]
    return targets.tolist(), [*views, targets]


def _digests(batch: Any) -> list[str]:
    """Return a digest of each sample of a batch: types, shapes, and all values."""
    targets, parts = _parts(batch)
    layouts = [part.is_contiguous(memory_format=torch.channels_last) for part in parts if getattr(part, "ndim", 0) == 4]
    found = []
    for k in range(len(targets)):
        digest = hashlib.sha256(repr(layouts).encode())
        _hash(digest, [part[k] for part in parts])
        found.append(digest.hexdigest())
    return found


def _order(order: str, dataset: Any) -> dict[str, Any]:
    """Return the arguments that make a loader's order."""
    if isinstance(dataset, IterableDataset):
        return {}
    if order == "repeating":
        return {"sampler": RandomSampler(dataset, True, SAMPLES, torch.Generator().manual_seed(SEED))}
    if order == "shuffled":
        return {"shuffle": True, "generator": torch.Generator().manual_seed(SEED)}
    return {"sampler": DistributedSampler(dataset, 2, int(order.split()[1]), seed=SEED)}


def _expected(order: str) -> list[list[list[int]]]:
    """Return the indices of each batch of each epoch, as DataLoader has them."""
    numbers: Any = range(SAMPLES)
    loader: DataLoader[Any] = DataLoader(numbers, BATCH, **_order(order, numbers))
    epochs = []
    for epoch in range(EPOCHS):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        epochs.append([batch.tolist() for batch in loader])
    return epochs


def _loader(case: Case, data: Data, strategy: str, workers: int) -> DDLPLoader:
    if case.what in PIPELINES:
        pipeline = PIPELINES[case.what]
        dataset: Any = pipeline.dataset(data)
        options = pipeline.options(data)
    else:
        dataset, options = USER_CODE[case.what](data)
    if strategy == "mte":
        options["ratio"] = 0.6
    order = _order(case.order, dataset)
    return DDLPLoader(dataset, BATCH, num_workers=workers, strategy=strategy, seed=SEED, **order, **options)


def _iterate(loader: DDLPLoader) -> Iterator[Any]:
    """Iterate. Before the second batch wait until a device has one ready, if one is starting or has been given work."""
    for step, batch in enumerate(loader):
        yield batch
        idle, until = 0, time.monotonic() + START_S
        while step == 0 and idle < 10 and time.monotonic() < until:
            now = loader.live()
            if now.ready_csd or not now.devices:
                break
            idle = idle + 1 if all(device.state != "starting" and not device.held for device in now.devices) else 0
            time.sleep(0.005)


def _epochs(case: Case, data: Data, loaders: list[DDLPLoader]) -> Iterator[tuple[list[Any], int]]:
    """Load. Gives each epoch's batches in the order in which they came, and how many devices made; fills ``loaders``."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    state, first, by_devices = "", [], 0
    if case.resume != "whole":
        elsewhere = "ordered" if case.strategy == "cpu" else "cpu", 1 - case.workers % 2
        begun = elsewhere if case.resume == "begun elsewhere" else (case.strategy, case.workers)
        loaders.append(_loader(case, data, *begun))
        loaders[-1].set_epoch(0)
        with contextlib.closing(_iterate(loaders[-1])) as iterator:
            first += itertools.islice(iterator, 3)
            state = json.dumps(loaders[-1].state_dict())
        by_devices = loaders[-1].report().batches_csd
    loader = _loader(case, data, case.strategy, case.workers)
    loaders.append(loader)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        if epoch == 0 and state:
            loader.load_state_dict(json.loads(state))
        batches = [*first, *_iterate(loader)]
        yield batches, by_devices + loader.report().batches_csd
        first, by_devices = [], 0


def _load(case: Case, data: Data, loaders: list[DDLPLoader]) -> Row:
    """Load in one way. Raises ValueError if other batches came than the sampler has."""
    samples: list[str] = []
    order: list[int] = []
    by_devices = 0
    expected = _expected(case.order)
    for epoch, (batches, count) in enumerate(_epochs(case, data, loaders)):
        by_devices += count
        left = dict(enumerate(expected[epoch]))
        if case.what == "IterableDataset":  # the workers' batches come in turns: each has the place where it came
            left = dict(enumerate(list(_parts(batch)[0]) for batch in batches))
        by_place: dict[int, list[str]] = {}
        for batch in batches:
            indices = list(_parts(batch)[0])
            place = next((place for place, wanted in left.items() if wanted == indices), None)
            if place is None:
                raise ValueError(f"epoch {epoch}: a batch of the samples {indices} came, and the sampler has left {left}")
            del left[place]
            by_place[place] = _digests(batch)
            order.append(place)
        if left:
            raise ValueError(f"epoch {epoch}: the sampler's batches {left} did not come")
        samples += (digest for place in sorted(by_place) for digest in by_place[place])
    return Row(case.name, samples, order if case.strategy in REPEATED_ORDER else None, by_devices)


def _rows(data: Data, parts: list[str]) -> Iterator[Row]:
    """Load in all ways of `cases`, or in those of ``parts``.

    A pipeline's loaders live as long as its rows, so that they share an engine's workers.
    """
    for what, group in itertools.groupby(cases(), key=lambda case: case.what):
        if parts and what not in parts:
            continue
        loaders: list[DDLPLoader] = []
        for case in group:
            try:
                yield _load(case, data, loaders)
            except Exception as error:  # an earlier commit may lack what it needs
                yield Row(case.name, [], error=f"{type(error).__name__}: {error}")


# -- real ranks --------------------------------------------------------------------------------------------------------

_RANKS_STRATEGIES = ("wrr", "ordered")


def _rank_name(strategy: str, rank: int) -> str:
    return f"crop | {strategy} | 0 workers | whole | process of rank {rank} of {RANKS}"


def _be_rank(root: Path) -> None:
    """Be a rank of a training. Write its rows."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    files = sorted(map(str, root.glob("*.[jp][pn]g")))
    with open(root / f"rank {rank}", "w") as out:
        for strategy in _RANKS_STRATEGIES:
            dataset = ImageFiles(files, list(range(SAMPLES)), _crop())
            sampler: Any = DistributedSampler(dataset, seed=SEED)
            loader = DDLPLoader(dataset, BATCH, sampler=sampler, strategy=strategy, seed=SEED)
            samples: list[str] = []
            by_devices = 0
            for epoch in range(EPOCHS):
                loader.set_epoch(epoch)
                digests = {}
                for batch in _iterate(loader):
                    digests.update(zip(_parts(batch)[0], _digests(batch)))
                samples += (digests[index] for index in sampler)
                by_devices += loader.report().batches_csd
                torch.distributed.barrier()
            _write(out, Row(_rank_name(strategy, rank), samples, by_devices=by_devices))
    torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _ranks(root: Path) -> Iterator[Callable[[], list[str]]]:
    """Start ranks, which work meanwhile; gives a function that waits for their rows' lines."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "-m", "tests.golden_rows", "--rank", str(root)], env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    )

    def lines() -> list[str]:
        if process.wait():
            raise RuntimeError(f"the ranks ended with status {process.returncode}; what they said is above")
        return [(root / f"rank {rank}").read_text() for rank in range(RANKS)]

    try:
        yield lines
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun ends its ranks
            process.wait()


def _write(out: TextIO, row: Row) -> None:
    out.write(json.dumps(asdict(row)) + "\n")


def main() -> None:
    """Write the rows."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1] == "--rank":
        _be_rank(Path(sys.argv[2]))
        return
    with open(sys.argv[1], "w", buffering=1) as out, tempfile.TemporaryDirectory() as root:
        data, parts = _make_data(Path(root)), sys.argv[2:]
        with _ranks(Path(root)) if not parts else contextlib.nullcontext(list) as lines:
            for row in _rows(data, parts):
                _write(out, row)
            out.writelines(lines())


if __name__ == "__main__":
    main()
