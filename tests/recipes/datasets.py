"""Data sets of torchvision, timm, Hugging Face and ddlp. Each is opened by its own class on a small fake in its real layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset
from torchvision import datasets as tv
from torchvision import transforms

import ddlp
from tests.recipes import fakes
from tests.recipes.pipelines import crop, evaluate, folder, to_float, train
from tests.recipes.recipe import Draws, MakeFiles, OpenSet, Recipe, Way

_TORCHVISION, _OTHERS = "torchvision's data sets", "Other data sets that travel"


def small(fixed: bool) -> Any:
    """CIFAR-10's usual transform. Fixed: without the crop, and always flipped."""
    steps: list[Any] = [] if fixed else [transforms.RandomCrop(32, padding=4)]
    return transforms.Compose([*steps, transforms.RandomHorizontalFlip(1.0 if fixed else 0.5), transforms.ToTensor()])


def plain(fixed: bool) -> Any:
    """ToTensor alone."""
    return transforms.ToTensor()


def _colours(fixed: bool) -> Any:
    """For data sets that do not convert to RGB."""
    return transforms.Compose([*crop(fixed), *to_float(normalize=True)])


def _on_tensors(fixed: bool) -> Any:
    """For loaders that give uint8 tensors: v2's float32 in place of ToTensor."""
    from torchvision.transforms import v2

    return v2.Compose([*crop(fixed, kinds=v2, antialias=True), *to_float(v2, normalize=True)])


# -- torchvision -----------------------------------------------------------------------------------------------------


def open_torchvision(name: str, options: dict[str, Any], unchecked: bool, root: Path, transform: Any) -> Any:
    """Open torchvision's class of that name. `unchecked`: skip its comparison of the files' MD5 with the published ones."""
    kind: Any = getattr(tv, name)
    if not unchecked:
        return kind(str(root), transform=transform, **options)
    import sys

    with fakes.any_checksum(sys.modules[kind.__module__]):
        return kind(str(root), transform=transform, **options)


def _torchvision(
    name: str,
    files: MakeFiles,
    transform: Any = train,
    *,
    unchecked: bool = False,
    draws: Draws = "fixed",
    needs: tuple[str, ...] = (),
    batch: int = 16,
    way: Way = "whole",
    **options: Any,
) -> Recipe:
    opened = partial(open_torchvision, name, options, unchecked)
    return Recipe(name, _TORCHVISION, files, opened, transform, way, draws=draws, needs=needs, batch=batch)


class MyFolder(tv.ImageFolder):
    """A subclass that overrides nothing."""


class MyFiles(tv.DatasetFolder):
    """A subclass that adds only a constructor of its own."""

    def __init__(self, root: str, transform: Any) -> None:
        super().__init__(root, tv.folder.default_loader, (".jpg",), transform)


def _folder_of(kind: Any, root: Path, transform: Any) -> Any:
    return kind(str(root / "train"), transform)


def _torchvision_decodes(root: Path, transform: Any) -> Any:
    from torchvision.io import decode_image

    return tv.ImageFolder(str(root / "train"), transform, loader=decode_image)


def _torchcodec_decodes(root: Path, transform: Any) -> Any:
    """An ImageFolder with torchcodec's decoder, in favour of which torchvision deprecates its own."""
    from torchcodec.decoders import decode_image

    return tv.ImageFolder(str(root / "train"), transform, loader=decode_image)


# -- timm, tar, Hugging Face, ddlp -----------------------------------------------------------------------------------


def _timm(options: dict[str, Any], root: Path, transform: Any) -> Any:
    from timm.data import ImageDataset

    return ImageDataset(str(root / "train"), transform=transform, **options)


def _timm_tar(root: Path, transform: Any) -> Any:
    """timm's reader of a tar file. The folders in the file are the classes."""
    from timm.data import ImageDataset

    return ImageDataset(str(root / "train.tar"), reader="tar", transform=transform)


def _class_tar(root: Path, photos: Sequence[Path]) -> None:
    """train.tar with CLASS/*.jpg."""
    import tarfile

    with tarfile.open(root / "train.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, photo, _, name in fakes.labelled(photos):
            tar.add(photo, f"{name}/{number:05d}.jpg")


def _tar_images(root: Path, transform: Any) -> Any:
    """ddlp's data set of tar shards."""
    kind: Any = ddlp.TarImages
    return kind(sorted(map(str, root.glob("train-*.tar"))), transform)


def _image_files(targets: str, root: Path, transform: Any) -> Any:
    """A list of paths, with targets of one type."""
    rows = [line.split(",") for line in (root / "train.csv").read_text().split()[1:]]
    labels: list[Any] = [int(label) for _, label in rows]
    if targets == "dicts":
        labels = [{"label": int(label), "file": file, "box": [0.0, float(label) / 2]} for file, label in rows]
    elif targets == "texts":
        labels = [f"a photograph of {fakes.CLASSES[label]}" for label in labels]
    return ddlp.ImageFiles([str(root / "images" / file) for file, _ in rows], labels, transform)


class Described(Dataset):
    """A user's data set that describes itself in one line."""

    def __init__(self, root: Path, transform: Any) -> None:
        rows = [line.split(",") for line in (root / "train.csv").read_text().split()[1:]]
        self.paths, self.targets = [str(root / "images" / file) for file, _ in rows], [int(label) for _, label in rows]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), self.targets[index]

    def __ddlp__(self) -> Any:
        return ddlp.ImageFiles(self.paths, self.targets, self.transform)


def _arrays(root: Path, transform: Any) -> Any:
    """Images in memory."""
    import numpy as np

    images, labels = np.load(root / "images.npy"), np.load(root / "labels.npy")
    return ddlp.ImageArrays(images, labels.tolist(), transform)


def _npy(root: Path, photos: Sequence[Path]) -> None:
    """images.npy and labels.npy."""
    import numpy as np

    images, labels = fakes.thumbnails(photos, 32)
    np.save(root / "images.npy", images)
    np.save(root / "labels.npy", labels)


def _other(name: str, files: MakeFiles, opened: OpenSet, transform: Any = train, **options: Any) -> Recipe:
    return Recipe(name, _OTHERS, files, opened, transform, **options)


RECIPES = [
    Recipe("ImageFolder", _TORCHVISION, fakes.imagefolder, folder, train),
    Recipe(
        "an ImageFolder subclass", _TORCHVISION, fakes.imagefolder, partial(_folder_of, MyFolder),
        train,
    ),
    Recipe(
        "a DatasetFolder subclass", _TORCHVISION, fakes.imagefolder, partial(_folder_of, MyFiles),
        train,
    ),
    _torchvision("ImageNet", fakes.imagenet),
    _torchvision("Imagenette", fakes.imagenette),
    _torchvision("Food101", fakes.food101),
    _torchvision("OxfordIIITPet", fakes.pets),
    _torchvision("Caltech101", fakes.caltech101, _colours, needs=("scipy",), way="host"),
    _torchvision("Caltech256", fakes.caltech256, _colours, way="host"),
    _torchvision("Flowers102", fakes.flowers102, unchecked=True, needs=("scipy",)),
    _torchvision("Places365", fakes.places365, unchecked=True),
    _torchvision("StanfordCars", fakes.stanford_cars, needs=("scipy",)),
    _torchvision("FGVCAircraft", fakes.fgvc_aircraft),
    _torchvision("DTD", fakes.dtd),
    _torchvision("EuroSAT", fakes.eurosat, plain, draws="none", batch=32),
    _torchvision("Country211", fakes.country211),
    _torchvision("SUN397", fakes.sun397),
    _torchvision("INaturalist", fakes.inaturalist, way="host"),
    _torchvision("LFWPeople", fakes.lfw, unchecked=True, split="train"),
    _torchvision("CelebA", fakes.celeba, _colours, unchecked=True),
    _torchvision("GTSRB", fakes.gtsrb, evaluate, draws="none"),
    _torchvision("STL10", fakes.stl10, unchecked=True, draws="none", transform=plain, batch=64),
    _torchvision("SVHN", fakes.svhn, small, unchecked=True, needs=("scipy",), batch=64),
    _torchvision("CIFAR10", fakes.cifar10, small, unchecked=True, batch=64),
    _torchvision("CIFAR100", fakes.cifar100, small, unchecked=True, batch=64),
    _torchvision("MNIST", fakes.mnist, plain, draws="none", batch=64),
    _torchvision("FashionMNIST", fakes.fashion_mnist, plain, draws="none", batch=64),
    _torchvision("KMNIST", fakes.kmnist, plain, draws="none", batch=64),
    _torchvision("EMNIST", fakes.emnist, plain, draws="none", batch=64, split="letters"),
    _torchvision("USPS", fakes.usps, plain, draws="none", batch=64),
    _torchvision("FER2013", fakes.fer2013, plain, unchecked=True, draws="none", batch=64),
    Recipe(
        "ImageFolder, loader=torchvision's decode_image", _TORCHVISION,
        fakes.imagefolder, _torchvision_decodes, _on_tensors, way="host",
    ),
    Recipe(
        "ImageFolder, loader=torchcodec's decode_image", _TORCHVISION, fakes.imagefolder,
        _torchcodec_decodes, _on_tensors, needs=("torchcodec",),
    ),
    Recipe("PNG files", _TORCHVISION, fakes.pngs, folder, train),
    Recipe("WebP files", _TORCHVISION, fakes.webps, folder, train),
    _other("timm's ImageDataset", fakes.imagefolder, partial(_timm, {}), needs=("timm",)),
    _other("timm's ImageDataset on a tar file", _class_tar, _timm_tar, way="host", needs=("timm",)),
    _other("TarImages on WebDataset's shards", fakes.shards, _tar_images),
    _other("ddlp.ImageFiles", fakes.table, partial(_image_files, "numbers")),
    _other("ddlp.ImageFiles, targets are dicts", fakes.table, partial(_image_files, "dicts")),
    _other("ddlp.ImageFiles, targets are texts", fakes.table, partial(_image_files, "texts")),
    _other("__ddlp__ in one line", fakes.table, Described),
    _other("ddlp.ImageArrays", _npy, _arrays, small, batch=64),
]  # fmt: skip
