"""User code: transforms after a known prefix, and data sets that users write."""

from __future__ import annotations

import csv
import io
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.transforms import functional

import ddlp
from tests.recipes import fakes
from tests.recipes.pipelines import MEAN, STD, crop, evaluate, folder, to_float, train
from tests.recipes.recipe import Recipe, Way

_OWN = Path(__file__).with_name("grain.py")


# -- transforms ------------------------------------------------------------------------------------------------------


class Warm:
    """A user's transform without draws: less blue."""

    def __call__(self, image: Image.Image) -> Image.Image:
        red, green, blue = image.split()
        return Image.merge("RGB", (red, green, blue.point(lambda value: value * 9 // 10)))


class OnArrays:
    """albumentations on the image's array."""

    def __init__(self, fixed: bool) -> None:
        import albumentations

        p = 1.0 if fixed else 0.5
        limit = (0.2, 0.2) if fixed else (-0.2, 0.2)
        self.augment = albumentations.Compose(
            [
                albumentations.HorizontalFlip(p=p),
                albumentations.RandomBrightnessContrast(brightness_limit=limit, contrast_limit=limit, p=p),
                albumentations.Normalize(MEAN, STD),
            ]
        )

    def __call__(self, image: Image.Image) -> torch.Tensor:
        array = self.augment(image=np.asarray(image))["image"]
        return torch.from_numpy(array.transpose(2, 0, 1).copy())


def _with_lambda(fixed: bool) -> Any:
    brighter = transforms.Lambda(lambda image: functional.adjust_gamma(image, 0.9))
    return transforms.Compose([*crop(fixed), brighter, *to_float(normalize=True)])


def _with_own_class(fixed: bool) -> Any:
    return transforms.Compose([*crop(fixed), Warm(), *to_float(normalize=True)])


def _on_tensors(fixed: bool) -> Any:
    """User code after ToTensor."""
    noise = transforms.Lambda(lambda tensor: tensor + 0.02 * (torch.ones_like if fixed else torch.randn_like)(tensor))
    return transforms.Compose([*crop(fixed), *to_float(normalize=True), noise])


def _with_albumentations(fixed: bool) -> Any:
    return transforms.Compose([transforms.RandomResizedCrop(224, **_same(fixed)), OnArrays(fixed)])


def _same(fixed: bool) -> dict[str, Any]:
    return {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)} if fixed else {}


def _with_operator(name: str, fixed: bool) -> Any:
    """A user's operator of grain.py. Fixed: the noise of `grain` has strength 0."""
    operators = ddlp.load_operators(_OWN)
    operator = operators.same() if name == "same" else operators.grain(strength=0.0 if fixed else 4.0)
    return transforms.Compose([*crop(fixed), operator, *to_float(normalize=True)])


# -- data sets -------------------------------------------------------------------------------------------------------


class Table(Dataset):
    """A CSV file of paths and labels, Pillow, torchvision."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.root, self.transform = root, transform
        with (root / "train.csv").open() as lines:
            self.rows = [(row["file"], int(row["label"])) for row in csv.DictReader(lines)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file, label = self.rows[index]
        image = Image.open(self.root / "images" / file).convert("RGB")
        return self.transform(image), label


class Dicts(Table):
    """Samples as dicts."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return {"pixel_values": image, "labels": label, "file": self.rows[index][0]}


class Lmdb(Dataset):
    """Pickled (bytes, label), opened in each worker."""

    def __init__(self, root: Path, transform: Any) -> None:
        import lmdb

        self.path, self.transform = str(root / "train.lmdb"), transform
        self.environment: Any = None
        with lmdb.open(self.path, subdir=False, readonly=True, lock=False) as environment, environment.begin() as transaction:
            self.length = int(transaction.get(b"length") or 0)

    def _open(self) -> Any:
        import lmdb

        if self.environment is None:
            self.environment = lmdb.open(self.path, subdir=False, readonly=True, lock=False, readahead=False)
        return self.environment

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with self._open().begin() as transaction:
            content, label = pickle.loads(transaction.get(f"{index:08d}".encode()))
        return self.transform(Image.open(io.BytesIO(content)).convert("RGB")), label


class Parquet(Dataset):
    """The column of bytes of a Parquet file, in memory."""

    def __init__(self, root: Path, transform: Any) -> None:
        import pyarrow.parquet

        self.table, self.transform = pyarrow.parquet.read_table(root / "train.parquet"), transform

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.table["image"][index].as_py(), self.table["label"][index].as_py()
        return self.transform(Image.open(io.BytesIO(image["bytes"])).convert("RGB")), label


class _Prepared:
    """A function for Hugging Face's with_transform, as in their examples of image classification."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, rows: Any) -> Any:
        images = [self.transform(image.convert("RGB")) for image in rows["image"]]
        return {"pixel_values": images, "labels": rows["label"]}


def arrow(root: Path, transform: Any) -> Any:
    """Bytes inside Arrow files."""
    import datasets

    datasets.disable_progress_bars()
    table = datasets.load_dataset("parquet", data_files=str(root / "train.parquet"), cache_dir=str(root / "cache"))["train"]
    return table.cast_column("image", datasets.Image()).with_transform(_Prepared(transform))


def arrow_files(root: Path, transform: Any) -> Any:
    """Paths inside Arrow files."""
    import datasets

    datasets.disable_progress_bars()
    table = datasets.load_dataset("imagefolder", data_dir=str(root / "train"), cache_dir=str(root / "cache"))["train"]
    return table.with_transform(_Prepared(transform))


def webdataset(root: Path, transform: Any) -> Any:
    """WebDataset's own pipeline, over all shards."""
    import webdataset

    pattern = str(root / "train-{000000..000001}.tar")
    pipeline = webdataset.WebDataset(pattern, shardshuffle=False, nodesplitter=None, workersplitter=None)
    return pipeline.decode("pil").to_tuple("jpg", "cls").map_tuple(transform, lambda label: label)


def _recipe(name: str, transform: Any, way: Way = "prefix", **options: Any) -> Recipe:
    return Recipe(name, "Behind a known prefix", fakes.imagefolder, folder, transform, way=way, **options)


def _own(name: str, files: Any, opened: Any, transform: Any = train, **options: Any) -> Recipe:
    return Recipe(name, "Data sets of one's own", files, opened, transform, way="host", **options)


RECIPES = [
    _recipe("albumentations on arrays", _with_albumentations, needs=("albumentations",)),
    _recipe("a lambda", _with_lambda),
    _recipe("a transform class of one's own", _with_own_class),
    _recipe("a lambda behind ToTensor", _on_tensors),
    _recipe("load_operators, with draws", partial(_with_operator, "grain"), way="whole"),
    _recipe("load_operators, identity", partial(_with_operator, "same"), way="whole"),
    _own("CSV, Pillow, torchvision", fakes.table, Table),
    _own(
        "CSV, Pillow, albumentations", fakes.table, Table, _with_albumentations,
        needs=("albumentations",),
    ),
    _own("CSV, evaluation", fakes.table, Table, evaluate, draws="none"),
    _own("a data set that gives dicts", fakes.table, Dicts),
    _own("Hugging Face, bytes in Arrow, with_transform", fakes.parquet, arrow, needs=("datasets",)),
    _own("Hugging Face, files, with_transform", fakes.imagefolder, arrow_files, needs=("datasets",)),
    _own("WebDataset's own pipeline", fakes.shards, webdataset, needs=("webdataset",), stream=True),
    _own("LMDB", fakes.lmdb_file, Lmdb, needs=("lmdb",)),
    _own("Parquet", fakes.parquet, Parquet, needs=("pyarrow",)),
]  # fmt: skip
