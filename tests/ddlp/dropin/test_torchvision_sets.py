"""torchvision's data sets of image files, each in its layout and opened by its class: every sample equals the class's."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import re
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, default_convert
from torchvision import datasets, transforms
from torchvision.transforms import v2

from ddlp import DDLPLoader
from tests.ddlp.dropin.beside import equal
from tests.ddlp.dropin.test_data_sets import compare
from tests.recipes import fakes
from tests.recipes.datasets import RECIPES, open_torchvision
from tests.recipes.recipe import MakeFiles

SHRUNK = transforms.Compose([transforms.Resize((24, 20)), transforms.ToTensor()])
GREY_TOO = v2.Compose([v2.Compose([v2.RGB()]), transforms.Resize((24, 20)), transforms.ToTensor()])
PADDED = transforms.Compose([transforms.Pad(2), transforms.ToTensor()])


def plus(target: Any) -> Any:
    return target + 1000


def rendered_sst2(root: Path, photos: Sequence[Path]) -> None:
    for k, photo in enumerate(photos):
        fakes.converted(photo, root / "rendered-sst2" / "valid" / ("negative", "positive")[k % 2] / f"{k}.png")


def omniglot(root: Path, photos: Sequence[Path]) -> None:
    base = root / "omniglot-py" / "images_evaluation"
    for k, photo in enumerate(photos):
        fakes.converted(photo, base / f"alphabet{k % 2}" / f"c{k % 3}" / f"{k}.png", mode="1")
    base.with_suffix(".zip").touch()


def clevr(root: Path, photos: Sequence[Path]) -> None:
    base = root / "clevr" / "CLEVR_v1.0"
    for k, photo in enumerate(photos):
        fakes.converted(photo, base / "images" / "val" / f"CLEVR_val_{k}.png")
    scenes = [{"image_filename": f"CLEVR_val_{k}.png", "objects": [0] * k} for k in range(len(photos))]
    (base / "scenes").mkdir()
    (base / "scenes" / "CLEVR_val_scenes.json").write_text(json.dumps({"scenes": scenes}))


def sbu(root: Path, photos: Sequence[Path]) -> None:
    base = root / "dataset"
    for k, photo in enumerate(photos[1:]):  # one is missing
        fakes.place(photo, base / f"{k}.jpg")
    (root / "SBUCaptionedPhotoDataset.tar.gz").touch()
    numbers = range(len(photos))
    (base / "SBU_captioned_photo_dataset_urls.txt").write_text("".join(f"http://x/{k}.jpg\n" for k in numbers))
    (base / "SBU_captioned_photo_dataset_captions.txt").write_text("".join(f"caption {k}\n" for k in numbers))


def flickr8k(root: Path, photos: Sequence[Path]) -> None:
    for k, photo in enumerate(photos[:4]):
        fakes.place(photo, root / f"{k}_ab.jpg")
    row = "<tr><td><a href='x'>http://x/{k}/</a><ul><li>one {k}</li><li>two</li></ul></td></tr>"
    rows = "".join(row.format(k=k) for k in (2, 0, 3, 1))
    (root / "captions.html").write_text(f"<table>{rows}</table>")


def flickr30k(root: Path, photos: Sequence[Path]) -> None:
    for k, photo in enumerate(photos[:4]):
        fakes.place(photo, root / f"{k}.jpg")
    (root / "captions").write_text("".join(f"{k}.jpg#{n}\tcaption {k * 10 ** n}\n" for k in (2, 0, 3, 1) for n in range(2)))


def qmnist(root: Path, photos: Sequence[Path]) -> None:
    """Images are stored as MNIST's. Targets are rows of eight numbers in another format, which torchvision reads as int32."""
    fakes.mnist(root, photos)
    raw = (root / "MNIST").rename(root / "QMNIST") / "raw"
    (raw / "train-images-idx3-ubyte").rename(raw / "qmnist-train-images-idx3-ubyte")
    count = 32 * len(photos)
    rows = np.random.default_rng(8).integers(0, 10, (count, 8)).astype(">i4")
    (raw / "qmnist-train-labels-idx2-int").write_bytes(struct.pack(">HBB2I", 0, 12, 2, count, 8) + rows.tobytes())
    for name in ("qmnist-train-images-idx3-ubyte", "qmnist-train-labels-idx2-int"):
        (raw / f"{name}.gz").touch()


def semeion(root: Path, photos: Sequence[Path]) -> None:
    drawn = np.random.default_rng(11)
    table = np.concatenate([drawn.integers(0, 2, (18, 256)), np.eye(10, dtype=int)[drawn.integers(0, 10, 18)]], 1)
    np.savetxt(root / "semeion.data", table, "%d")


#: Who writes the files of torchvision's class of that name.
FILES: dict[str, MakeFiles] = {
    **{recipe.name: recipe.files for recipe in RECIPES if hasattr(datasets, recipe.name)},
    "RenderedSST2": rendered_sst2, "Omniglot": omniglot, "CLEVRClassification": clevr, "SBU": sbu, "Flickr8k": flickr8k,
    "Flickr30k": flickr30k, "QMNIST": qmnist, "SEMEION": semeion,
}  # fmt: skip
PLUS = {"target_transform": plus}
#: The arguments of each data set that is opened beside ``root`` and ``transform=SHRUNK``. {root} in a text is the directory.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "ImageNet": [{}, PLUS],
    "EuroSAT": [{}, {"transform": transforms.ToTensor()}],  # all images of EuroSAT have the same size
    "FER2013": [{"transform": transforms.ToTensor()}, PLUS],
    "Country211": [PLUS],
    "Food101": [{}, {**PLUS, "loader": datasets.folder.pil_loader}],
    "OxfordIIITPet": [
        {}, {"target_types": "binary-category"}, {"target_types": ["category", "binary-category"]},
        {"transform": None, "transforms": datasets.vision.StandardTransform(SHRUNK, plus)},
    ],
    "Caltech101": [{"transform": GREY_TOO}, {"transform": GREY_TOO, "target_type": ["category", "category"]}],
    "Caltech256": [{"transform": GREY_TOO, **PLUS}],
    "Flowers102": [{}, {"split": "test", **PLUS}],
    "Places365": [PLUS],
    "GTSRB": [PLUS],
    "LFWPeople": [{"split": "train"}],
    "CelebA": [
        PLUS, {"split": "all", "target_type": "identity"}, {"target_type": ["bbox", "landmarks", "identity"]},
    ],
    "INaturalist": [
        {"target_type": ["full", "phylum"], "loader": datasets.folder.default_loader},
        {"target_type": "class", "transform": GREY_TOO},
    ],
    "Omniglot": [{"background": False}, {"background": False, **PLUS, "loader": datasets.folder.default_loader}],
    "CLEVRClassification": [{"split": "val"}],
    "RenderedSST2": [{"split": "val"}],
    "SBU": [{"target_transform": len, "download": False}],
    "Flickr8k": [{"ann_file": "{root}/captions.html", "target_transform": lambda those: len(those[0])}],
    "Flickr30k": [{"ann_file": "{root}/captions", "target_transform": lambda those: sum(map(len, those))}],
    "MNIST": [{"train": True, "transform": PADDED}, {"train": False, "transform": PADDED}],
    "QMNIST": [{"compat": True}, {"compat": False}],
    "EMNIST": [{"split": "letters"}],
    "USPS": [PLUS],
    "SEMEION": [{"download": False}],
    "CIFAR10": [{"train": True, **PLUS}, {"train": False, **PLUS}],
    "STL10": [{"split": split} for split in ("train", "unlabeled", "train+unlabeled", "test")],
}  # fmt: skip
ARRAYS = {"FER2013", "MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST", "USPS", "CIFAR10", "CIFAR100", "SVHN", "STL10"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> list[Path]:
    """JPEG files, each with other pixels and another size; some are grey."""
    root, drawn = tmp_path_factory.mktemp("photos"), np.random.default_rng(7)
    paths = [root / f"{k}.jpg" for k in range(8)]
    for k, path in enumerate(paths):
        pixels = drawn.integers(0, 256, (30 + k % 7, 40 - k % 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).convert("L" if k % 3 == 2 else "RGB").save(path)
    return paths


@pytest.fixture
def open_sets(photos) -> Callable[[str, Path], list[Any]]:
    """Writes the files of a class below a directory, and opens its data sets."""

    def opened(name: str, root: Path) -> list[Any]:
        if name in ("Flowers102", "StanfordCars", "SVHN"):
            pytest.importorskip("scipy.io")
        root.mkdir(exist_ok=True)
        colour = [photo for number, photo in enumerate(photos) if number % 3 != 2]
        FILES[name](root, photos[:2] if name in ARRAYS else colour if name == "CelebA" else photos)  # CelebA has no grey ones
        unchecked = hasattr(sys.modules[getattr(datasets, name).__module__], "check_integrity")
        found = []
        for arguments in ARGUMENTS.get(name, [{}]):
            given = {key: value.format(root=root) if isinstance(value, str) else value for key, value in arguments.items()}
            found.append(open_torchvision(name, given, unchecked, root, given.pop("transform", SHRUNK)))
        return found

    return opened


@pytest.mark.parametrize("name", FILES)
@pytest.mark.some(7)
def test_every_sample_is_that_of_the_class(open_sets, tmp_path, name):
    for dataset in open_sets(name, tmp_path):
        assert type(dataset).__name__ == name
        compare(dataset)
        for k, (image, target) in enumerate(DDLPLoader(dataset, None)):
            expected, expected_target = default_convert(dataset[k])
            assert torch.equal(image, expected) and repr(target) == repr(expected_target)


@pytest.mark.parametrize("name", ["ImageNet", "Caltech101", "Omniglot", "EuroSAT", "FER2013", "MNIST", "CIFAR10", "STL10"])
def test_an_engine_opens_them_as_well(open_sets, tmp_path, engine, name):
    dataset = open_sets(name, tmp_path)[0]
    compare(dataset, engine)
    if name == "CIFAR10":
        dataset.targets[0], dataset.data[0] = 77, 255
        compare(dataset, engine)


def test_an_image_of_another_size_in_eurosat_is_an_error_of_its_batch(open_sets, tmp_path):
    dataset = open_sets("EuroSAT", tmp_path)[1]
    Image.new("RGB", (32, 64)).save(dataset.samples[4][0])
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(DataLoader(dataset, 3))
    ours = iter(DDLPLoader(dataset, 3))
    next(ours)
    with pytest.raises(ValueError, match=f"{re.escape(dataset.samples[4][0])}.*its place in the batch"):
        next(ours)


def stays(dataset: Any, words: str) -> None:
    said = DDLPLoader(dataset, 4).explain()
    assert "travels    nothing:" in said and words in said, said


def test_what_of_them_stays_on_the_host(open_sets, tmp_path):
    def first(name: str) -> Any:
        return open_sets(name, tmp_path / name)[0]

    plain = transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()])
    for name in ("Caltech101", "Caltech256"):
        dataset = first(name)
        dataset.transform = plain
        stays(dataset, "grey files as grey images")
        assert {dataset[k][0].shape[0] for k in range(len(dataset))} == {1, 3}
    dataset = datasets.Caltech101(str(tmp_path / "Caltech101"), "annotation", GREY_TOO)
    stays(dataset, "'annotation' is read from a file")
    first("INaturalist")
    stays(datasets.INaturalist(str(tmp_path / "INaturalist"), transform=plain), "grey files as grey images")
    dataset = first("OxfordIIITPet")
    stays(datasets.OxfordIIITPet(dataset.root, target_types=["category", "segmentation"], transform=plain), "have images among")
    stays(datasets.OxfordIIITPet(dataset.root, transforms=lambda image, target: (plain(image), target)), "transforms= changes")
    for name in ("Food101", "LFWPeople", "Places365", "Flickr30k"):
        dataset = first(name)
        setattr(dataset, "_loader" if name == "LFWPeople" else "loader", lambda path: Image.open(path).rotate(90))
        stays(dataset, "loader= of its own")


def decoders() -> list[Any]:
    found = [torchvision.io.decode_image, functools.partial(torchvision.io.decode_image, mode="GRAY")]
    with contextlib.suppress(ImportError, OSError, RuntimeError):  # it is made for one version of torch
        found.append(functools.partial(importlib.import_module("torchcodec.decoders").decode_image, mode="UNCHANGED"))
    return found


@pytest.mark.parametrize("decoder", decoders())
def test_a_loader_that_gives_tensors_is_user_code(folder, decoder):
    """A file may have any channels, and more than 8 bits."""
    dataset = datasets.ImageFolder(folder, transforms.CenterCrop(16), loader=decoder)
    stays(dataset, "loader=decode_image gives tensors")
    for (path, _), (ours, _) in zip(dataset.samples, [dataset[k] for k in range(len(dataset))], strict=True):
        grey = isinstance(decoder, functools.partial)
        if grey and Image.open(path).mode != "L":
            continue  # torchvision's grey of a colour file is not Pillow's
        image = Image.open(path).convert("L" if len(ours) == 1 else "RGB")
        assert torch.equal(ours, transforms.functional.pil_to_tensor(transforms.CenterCrop(16)(image)))


class Empty(datasets.ImageFolder):
    pass


class Chosen(datasets.ImageFolder):
    """It chooses its classes and files itself and has further methods, but its samples are ImageFolder's."""

    def __init__(self, root: str, only: str, **options: Any) -> None:
        self.only = only
        super().__init__(root, **options)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        names = [one for one in super().find_classes(directory)[0] if one != "left_out"]
        return names, {name: 7 - k for k, name in enumerate(names)}

    def make_dataset(self, directory: str, *arguments: Any, **options: Any) -> list[tuple[str, int]]:
        made = datasets.ImageFolder.make_dataset(directory, *arguments, **options)
        return [(path, target) for path, target in made if self.only in path]

    def __len__(self) -> int:
        return len(self.samples)

    def weights(self) -> list[int]:
        return [target for _, target in self.samples]


class OwnItem(Empty):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0] + 1, index


class OwnItems(Empty):
    def __getitems__(self, indices: list[int]) -> Any:
        return [(self[index][0] + 1, index) for index in indices]


class LoaderAsProperty(Empty):
    @property
    def loader(self) -> Any:
        return lambda path: datasets.folder.default_loader(path).rotate(90)

    @loader.setter
    def loader(self, _: Any) -> None: ...


class Turned(Empty):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, loader=lambda path: datasets.folder.default_loader(path).rotate(90))


class Watching(Empty):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Shorter(Empty):
    def __len__(self) -> int:
        return 5


@pytest.fixture
def folder(photos, tmp_path):
    for k, photo in enumerate([*photos, photos[0]]):
        fakes.place(photo, tmp_path / ("cats", "dogs", "left_out")[k % 3] / f"{k}.jpg")
    return str(tmp_path)


def test_a_subclass_that_makes_no_samples_of_its_own_travels(folder, engine):
    compare(Empty(folder, SHRUNK), engine)
    chosen = Chosen(folder, os.sep, transform=SHRUNK, target_transform=plus)
    assert len(chosen) == 6 and {target for _, target in chosen} == {1006, 1007}
    compare(chosen, engine)
    assert "Chosen (1 samples)" in DDLPLoader(Chosen(folder, "0.jpg", transform=SHRUNK)).explain()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OwnItem, "a __getitem__ of its own"),
        (OwnItems, "a __getitems__ of its own"),
        (LoaderAsProperty, "a loader of its own"),
        (Turned, "a loader= of its own"),
        (Watching, "a __getattribute__ of its own"),
        (Shorter, "it has 5 samples, and ImageFolder's code gives 9"),
    ],
)
def test_a_subclass_that_makes_them_itself_is_user_code(folder, kind, words):
    dataset = kind(folder, SHRUNK)
    stays(dataset, words)
    equal(DDLPLoader(dataset, 4), DataLoader(dataset, 4))


def test_a_data_set_wrapped_for_v2_is_user_code(folder):
    stays(datasets.wrap_dataset_for_transforms_v2(datasets.ImageFolder(folder, SHRUNK)), "from a CocoDetection alone")
