"""The data sets and pipelines of the benchmarks. The sets are made once, below one directory.

They are read before a measurement, so that no disk is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

from ddlp import decode
from ddlp.transforms import Views

ROOT = Path("data/bench")
MEANS_KB = (110.0, 46.0)  # ImageNet's mean file, and that of easy pictures of the same sizes
# So many that one image of 12 megapixels is among them, as in ImageNet: that image alone takes 3 % of the time.
IMAGES = 1600
CIFAR_IMAGES = 20000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PIPELINES = ("imagenet1", "imagenet2", "imagenet3", "cifar10")
# What people train with today. Each begins as imagenet1 does, toimage and v1tensor on a tensor: v1tensor is torchvision's
# reference training with --backend tensor, v1tensor_ra that with --auto-augment ra --random-erase 0.1, v2tensor_ta by v2 with
# --auto-augment ta_wide. timm's comes from `create_transform`, simclr makes two views.
PRESETS = (
    "randaugment", "trivialaugment", "autoaugment", "colorjitter", "toimage", "v1tensor", "v1tensor_ra", "v2tensor_ta", "timm",
    "simclr",
)  # fmt: skip
OF_BATCHES = PRESETS[:4]  # one image a sample, nothing erased: their batches have the same parts as imagenet1's
JITTER = 0.4  # colorjitter's brightness, contrast and saturation
RESIZE = {"imagenet2": 256, "imagenet3": 232}


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add --data."""
    parser.add_argument("--data", type=Path, default=ROOT, help="where the benchmarks' sets lie, made if missing (%(default)s)")


def transform(pipeline: str) -> Any:
    """Return one of the paper's pipelines (Table IV) on PIL images, cifar10 without Cutout, or a preset."""
    if pipeline == "timm":
        from timm.data import create_transform

        # mmax9: with a magnitude of 10 timm asks Pillow for images of 0 bits, which is an error since Pillow 13.
        return create_transform(224, is_training=True, auto_augment="rand-m9-mstd0.5-inc1-mmax9", re_prob=0.25)
    if pipeline == "toimage":
        on_tensor = [v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        return v2.Compose([*on_tensor, v2.Normalize(MEAN, STD), v2.ToPureTensor()])
    if pipeline == "v2tensor_ta":
        policy = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)
        on_tensor = [v2.PILToTensor(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), policy]
        values = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(0.1), v2.ToPureTensor()]
        return v2.Compose([*on_tensor, *values])
    crop: list[Any] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    if pipeline in ("v1tensor", "v1tensor_ra"):
        erased = pipeline == "v1tensor_ra"
        policies = [T.RandAugment(interpolation=T.InterpolationMode.BILINEAR)] if erased else []
        values = [T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD), *([T.RandomErasing(0.1)] if erased else [])]
        return T.Compose([T.PILToTensor(), *crop, *policies, *values])
    if pipeline == "simclr":
        jitter = T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
        blur = T.RandomApply([T.GaussianBlur(23, (0.1, 2.0))], p=0.5)
        view = T.Compose([*crop, jitter, T.RandomGrayscale(0.2), blur, T.ToTensor(), T.Normalize(MEAN, STD)])
        return Views(view, view)
    chosen: dict[str, Callable[[], Any]] = {
        "randaugment": T.RandAugment,
        "trivialaugment": T.TrivialAugmentWide,
        "autoaugment": T.AutoAugment,
        "colorjitter": lambda: T.ColorJitter(JITTER, JITTER, JITTER),
    }
    if pipeline == "cifar10":
        geometry: list[Any] = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]
    elif pipeline in chosen:
        geometry = [*crop, chosen[pipeline]()]
    else:
        geometry = [T.Resize(RESIZE[pipeline]), T.CenterCrop(224)] if pipeline in RESIZE else crop
    mean, std = (CIFAR_MEAN, CIFAR_STD) if pipeline == "cifar10" else (MEAN, STD)
    return T.Compose([*geometry, T.ToTensor(), T.Normalize(mean, std)])


def set_directory(root: Path, pipeline: str, mean_kb: float) -> Path:
    """Return the directory of a pipeline's data set, below that of the benchmarks."""
    return root / ("cifar10" if pipeline == "cifar10" else f"{mean_kb:g}kb")


def dataset(directory: Path, pipeline: str) -> Dataset:
    """Return the data set for training, with the pipeline as its transform."""
    if pipeline == "cifar10":
        from ddlp.sampledata import cifar10_checksums

        with cifar10_checksums(directory):
            return CIFAR10(str(directory), train=True, transform=transform(pipeline))
    return ImageFolder(str(directory / "train"), transform(pipeline))


def loader(directory: Path, pipeline: str, batch: int, **options: Any) -> DataLoader:
    """Return a plain DataLoader over this data set."""
    return DataLoader(dataset(directory, pipeline), batch, worker_init_fn=decode.not_here, **options)


def ensure_data(root: Path, pipeline: str = "imagenet1", mean_kb: float = MEANS_KB[0]) -> Path:
    """Make the set if it is missing, and read it into the page cache. Returns its directory. Raises SampleDataError."""
    from ddlp.sampledata import make_cifar10, make_imagefolder

    directory = set_directory(root, pipeline, mean_kb)
    if pipeline == "cifar10":
        if not (directory / "cifar-10-batches-py" / "batches.meta").exists():  # the file that is written last
            make_cifar10(directory, CIFAR_IMAGES, 1000)
    elif not (directory / "dataset.json").exists():
        make_imagefolder(directory, IMAGES, mean_kb)
    for path in directory.rglob("*"):
        if path.is_file():
            path.read_bytes()
    return directory


def cycle(images: int, batch: int, ahead: int, times: int = 1) -> list[int]:
    """Return indices: a beginning of ``ahead`` batches, a middle of all images ``times`` over, an end of ``ahead`` batches.

    The order is random and fixed, the batches are whole, and beginning and end repeat indices of the middle. The clock runs
    from the middle's first batch to its last. A loader that prefetches then prepares as many samples as the middle has, and
    each image equally often.
    """
    whole = max(images // batch, 1) * batch
    ring = np.resize(np.random.default_rng(0).permutation(images), whole)
    wanted = np.arange(-ahead * batch, times * whole + ahead * batch) % whole
    chosen: list[int] = ring[wanted].tolist()
    return chosen


def stream(directory: Path, pipeline: str, images: int, batch: int, ahead: int, times: int = 1) -> tuple[Dataset, int]:
    """Return the indices of `cycle` as a data set, to be read in order, and the number of batches in the middle.

    ``images``: the largest number of images to use; 0: all. ``times``: how often the middle has each of them.
    """
    whole: Any = dataset(directory, pipeline)
    count = min(images, len(whole)) if images else len(whole)
    order: Sequence[int] = cycle(count, batch, ahead, times)
    return Subset(whole, order), len(order) // batch - 2 * ahead
