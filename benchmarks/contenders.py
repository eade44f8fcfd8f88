"""The contenders of `benchmarks.host`. Each runs in a fresh process, pinned by its parent, over the same samples in one order.

`turn` takes the fields of a `Work`, and prints ``{"samples": n, "began": t, "ended": t, "cpu_seconds": c}``. A contender is a
function that takes the work and returns an iterator of enough batches, in the form that training gets. Peers are imported when
their turn comes; none is required.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import multiprocessing
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks import data
from ddlp.process.cores import cpu_s, family, ran_on

AHEAD = 8  # batches before the clock starts: more than any contender prefetches


@dataclasses.dataclass(frozen=True)
class Work:
    """One turn.

    `images`: the largest number of images to use; 0: all. `cores`: the number of cores that the process is pinned to.
    `times`: how often it goes through the images.
    """

    contender: str
    pipeline: str
    directory: str
    batch: int
    images: int
    cores: int = 1
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Contender:
    """A loader to measure: how to make it, its pipelines, the module that it needs, how to install it, whose pixels it has."""

    make: Callable[[Work], Iterator[Any]]
    pipelines: tuple[str, ...] = (*data.PIPELINES, *data.PRESETS)
    module: str | None = None
    install: str = ""
    cores: int = 1
    bits: str = "torchvision's"

    def missing(self) -> str | None:
        """Return why it can't take part here; None if it can."""
        if self.module is None:
            return None
        try:
            importlib.import_module(self.module)
        except Exception as error:  # a package that is installed may still fail to load
            return f"not here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); {self.install}"
        return None


def measure(work: Work) -> dict[str, float]:
    """Time the contender over its cycles through the images, after some batches to warm up. More are prepared at the end too.

    Returns the samples, when it began and ended (time.monotonic), and the cpu_seconds of this process and its children.
    """
    torch.set_num_threads(work.cores)
    batches = CONTENDERS[work.contender].make(work)
    directory = Path(work.directory)
    timed = data.stream(directory, work.pipeline, work.images, work.batch, AHEAD, work.times)[1]
    for _ in range(AHEAD):
        next(batches)
    everybody = family(os.getpid())
    with ran_on(os.sched_getaffinity(0)):
        spent, began = cpu_s(everybody), time.monotonic()
        for _ in range(timed):
            next(batches)
        ended = time.monotonic()
    return {"samples": timed * work.batch, "began": began, "ended": ended, "cpu_seconds": cpu_s(everybody) - spent}


def _ring(work: Work) -> Dataset:
    return data.stream(Path(work.directory), work.pipeline, work.images, work.batch, AHEAD, work.times)[0]


def _ours(**options: Any) -> Callable[[Work], Iterator[Any]]:
    def make(work: Work) -> Iterator[Any]:
        from ddlp.loader import DDLPLoader

        return iter(DDLPLoader(_ring(work), work.batch, num_workers=work.cores, **options))

    return make


def _dataloader(workers: int) -> Callable[[Work], Iterator[Any]]:
    """A DataLoader as a skilled user sets it up: pinned memory if there is a GPU, prefetching, persistent workers."""

    def make(work: Work) -> Iterator[Any]:
        ahead: dict[str, Any] = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
        return iter(DataLoader(_ring(work), work.batch, num_workers=workers, pin_memory=torch.cuda.is_available(), **ahead))

    return make


class _Tensors(Dataset):
    """A data set whose files torchvision.io decodes, with the geometry by v2 on uint8 tensors."""

    def __init__(self, work: Work) -> None:
        from torchvision.io import ImageReadMode, decode_image, read_file
        from torchvision.transforms import v2

        if work.pipeline == "imagenet1":
            self._geometry = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])
        else:
            self._geometry = v2.Compose([v2.Resize(data.RESIZE[work.pipeline], antialias=True), v2.CenterCrop(224)])
        self._read = lambda path: decode_image(read_file(path), ImageReadMode.RGB)
        self._files = _files(work)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self._files[index]
        return self._geometry(self._read(path)), label


def _files(work: Work) -> list[tuple[str, int]]:
    ring: Any = _ring(work)
    return [ring.dataset.samples[index] for index in ring.indices]


def _tensors(work: Work) -> Iterator[Any]:
    """torchvision on tensors. It normalises batch by batch, which is faster than sample by sample."""
    from torchvision.transforms import v2

    finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.MEAN, data.STD, inplace=True)])
    for images, labels in DataLoader(_Tensors(work), work.batch):
        yield finish(images), labels


def _dali(work: Work) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    files = _files(work)

    conditional = work.pipeline in data.PRESETS  # DALI's policies are made of if statements

    @pipeline_def(
        batch_size=work.batch, num_threads=1, device_id=None, prefetch_queue_depth=2, enable_conditionals=conditional
    )
    def graph() -> Any:
        paths, labels = [path for path, _ in files], [label for _, label in files]
        encoded, label = fn.readers.file(files=paths, labels=labels, name="reader")
        if work.pipeline not in data.RESIZE:
            images = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
            images, mirror = fn.resize(images, resize_x=224, resize_y=224), fn.random.coin_flip()
            images = _dalis(work.pipeline, images)
        else:
            images = fn.resize(fn.decoders.image(encoded), resize_shorter=data.RESIZE[work.pipeline])
            mirror = 0
        mean, std = [255 * m for m in data.MEAN], [255 * s for s in data.STD]
        images = fn.crop_mirror_normalize(images, crop=(224, 224), mirror=mirror, mean=mean, std=std, output_layout="CHW")
        return images, label

    with _own_temporary_directory():  # DALI writes Python files for the if statements, and does not remove them
        return iter(DALIGenericIterator([graph()], ["images", "labels"], size=len(files)))


@contextlib.contextmanager
def _own_temporary_directory() -> Iterator[None]:
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = before


def _dalis(pipeline: str, images: Any) -> Any:
    """Apply a preset's operators by DALI."""
    from nvidia.dali import fn
    from nvidia.dali.auto_aug.auto_augment import auto_augment_image_net
    from nvidia.dali.auto_aug.rand_augment import rand_augment
    from nvidia.dali.auto_aug.trivial_augment import trivial_augment_wide

    if pipeline == "randaugment":
        return rand_augment(images, n=2, m=9, shape=(224, 224))
    if pipeline == "trivialaugment":
        return trivial_augment_wide(images, shape=(224, 224))
    if pipeline == "autoaugment":
        return auto_augment_image_net(images, shape=(224, 224))
    if pipeline == "colorjitter":
        brightness, contrast, saturation = (fn.random.uniform(range=[1 - data.JITTER, 1 + data.JITTER]) for _ in range(3))
        return fn.color_twist(images, brightness=brightness, contrast=contrast, saturation=saturation)
    return images


def _spdl(work: Work) -> Iterator[Any]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder
    from torchvision.transforms import RandomResizedCrop, v2

    files = _files(work)
    finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.MEAN, data.STD, inplace=True)])
    end = "format=pix_fmts=rgb24"

    def geometry(packets: Any) -> str:
        if work.pipeline != "imagenet1":
            shorter = data.RESIZE[work.pipeline]
            size = f"'if(gt(iw,ih),-1,{shorter})':'if(gt(iw,ih),{shorter},-1)'"
            return f"scale={size}:flags=bilinear,crop=224:224,{end}"
        frame = torch.empty((1, packets.height, packets.width), device="meta")
        top, left, height, width = RandomResizedCrop.get_params(frame, [0.08, 1.0], [3 / 4, 4 / 3])
        flip = "hflip," if torch.rand(()) < 0.5 else ""
        return f"crop={width}:{height}:{left}:{top}:exact=1,scale=224:224:flags=bilinear,{flip}{end}"

    def load(start: int) -> tuple[torch.Tensor, torch.Tensor]:
        frames, labels = [], []
        for path, label in files[start : start + work.batch]:
            packets = spdl.io.demux_image(path)
            frames.append(spdl.io.decode_packets(packets, filter_desc=geometry(packets)))
            labels.append(label)
        images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
        return finish(images.contiguous()), torch.tensor(labels)

    starts = range(0, len(files), work.batch)
    builder: Any = PipelineBuilder()  # each method returns the builder itself, with another type: mypy can't follow
    pipeline = builder.add_source(starts).pipe(load, concurrency=1).add_sink(2).build(num_threads=1)
    with pipeline.auto_stop():
        yield from pipeline


def write_tar(stream: IO[bytes], paths: Iterable[str]) -> None:
    """Write images into a TAR archive, in this order, as TurboLoader reads them."""
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for position, path in enumerate(paths):
            tar.add(path, f"{position:06}.jpg")


def _turboloader(work: Work) -> Iterator[Any]:
    """TurboLoader's fused pass over a TAR file: it decodes the crop's window alone.

    On one core it is fastest without a prefetching thread. It has no Resize by the shorter side, and the fused pass takes no
    further operators, so imagenet1 is the only pipeline that it can do.
    """
    import turboloader

    files = _files(work)
    archive = os.memfd_create("turboloader")  # in memory, like the other contenders' files; it goes with the process
    with os.fdopen(os.dup(archive), "wb") as stream:
        write_tar(stream, [path for path, _ in files])
    labels = torch.tensor([label for _, label in files])
    loader = turboloader.DataLoader(
        f"/proc/self/fd/{archive}", work.batch, image_size=224, train_aug=True, transform=turboloader.ImageNetNormalize(),
        output_format="pytorch", prefetch_batches=0,
    )  # fmt: skip
    for images, meta in loader:
        yield torch.from_numpy(images), labels[meta["indices"]]


def _bare(work: Work) -> Iterator[Any]:
    from benchmarks.bare import host_batch
    from ddlp.translate.portable import portable

    parts = portable(data.loader(Path(work.directory), work.pipeline, work.batch), torch.float32, None)
    ring: Any = _ring(work)
    batch = host_batch(parts, work.batch, ring.indices)
    return (batch(k) for k in itertools.count())


def _bare_at_once(work: Work) -> Iterator[Any]:
    """A bare loop on each core, in independent processes: the cores share nothing but the memory's bandwidth."""
    several = multiprocessing.get_context("spawn")
    receiver, sender = several.Pipe(duplex=False)
    for cpu in sorted(os.sched_getaffinity(0)):
        several.Process(target=_bare_loop, args=(work, cpu, sender), daemon=True).start()
    for _ in range(work.cores):
        receiver.recv_bytes()  # it has begun
    while True:
        yield receiver.recv_bytes()


def _bare_loop(work: Work, cpu: int, sender: Any) -> None:
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):  # the process that counts has ended
        for _ in _bare(work):
            sender.send_bytes(b"1")


_IMAGENET = ("imagenet1", "imagenet2", "imagenet3")
_ONE_VIEW = (*data.PIPELINES, *data.PRESETS[:-1])  # the bare loops make one image of each sample
_DALIS = (*_IMAGENET, *data.OF_BATCHES)  # DALI has no operators for the others
_DALI = "nvidia.dali", "pip install nvidia-dali-cuda120 (runs without a GPU)"

OURS, OURS_UINT8, OURS_FAST = "DDLPLoader", "DDLPLoader, uint8", "DDLPLoader, decode='fast'"
OURS_TWO = "DDLPLoader, 2 workers, 2 cores"
BASELINES = ("DataLoader, 0 workers", "DataLoader, 1 worker")
BARE, BARE_TWO = "bare loop (the bound)", "a bare loop on each of 2 cores"
DALI, SPDL, TENSORS = "DALI, CPU, 1 thread", "SPDL, 1 thread", "torchvision.io + v2 on tensors"
TURBOLOADER = "TurboLoader, 1 thread"
PEERS = (TENSORS, DALI, SPDL, TURBOLOADER)  # beside DataLoader

CONTENDERS: dict[str, Contender] = {
    OURS: Contender(_ours()),
    OURS_UINT8: Contender(_ours(output=torch.uint8)),
    OURS_FAST: Contender(_ours(decode="fast"), (*_IMAGENET, *data.PRESETS), bits="close"),
    BASELINES[0]: Contender(_dataloader(0)),
    BASELINES[1]: Contender(_dataloader(1)),
    TENSORS: Contender(_tensors, _IMAGENET, bits="its tensors'"),
    DALI: Contender(_dali, _DALIS, *_DALI, bits="its own"),
    SPDL: Contender(_spdl, _IMAGENET, "spdl.io.lib", "pip install spdl, and FFmpeg 4 to 8's libraries", bits="FFmpeg's"),
    TURBOLOADER: Contender(_turboloader, ("imagenet1",), "turboloader", "pip install turboloader", bits="its own"),
    BARE: Contender(_bare, _ONE_VIEW),
    OURS_TWO: Contender(_ours(), cores=2),
    BARE_TWO: Contender(_bare_at_once, _ONE_VIEW, cores=2),
}


def turn(work: Mapping[str, Any]) -> NoReturn:
    """Measure a `Work`, print what `measure` returns, and end the process."""
    np.random.seed(0)
    print(json.dumps(measure(Work(**work))), flush=True)
    os._exit(0)  # batches that are still being prepared are of no interest
