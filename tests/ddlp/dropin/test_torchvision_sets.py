"""torchvision's data sets of image files, each in its layout and opened by its class: every sample equals the class's."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
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
from tests.ddlp.dropin.test_data_sets import compare

SHRUNK = transforms.Compose([transforms.Resize((24, 20)), transforms.ToTensor()])
GREY_TOO = v2.Compose([v2.Compose([v2.RGB()]), transforms.Resize((24, 20)), transforms.ToTensor()])
MAKERS: dict[str, Any] = {}


class Pictures:
    """Writes image files, each with other pixels, another size and another mode."""

    def __init__(self) -> None:
        self.drawn = np.random.default_rng(7)
        self.count = 0

    def write(self, path: Path, mode: str = "", size: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (size, size, 3) if size else (30 + self.count % 7, 40 - self.count % 5, 3)
        pixels = self.drawn.integers(0, 256, shape, dtype=np.uint8)
        mode = mode or ("L" if self.count % 3 == 2 and path.suffix != ".ppm" else "RGB")
        Image.fromarray(pixels).convert(mode).save(path)
        self.count += 1


def layout(make: Callable[[Path, Pictures], Iterator[Any]]) -> Callable[[Path, Pictures], Iterator[Any]]:
    """Register a function that writes a layout and yields data sets of it. Its name is that of torchvision's class."""
    MAKERS[make.__name__] = make
    return make


def plus(target: Any) -> Any:
    return target + 1000


@layout
def ImageNet(root, pictures):
    for split in ("train", "val"):
        for wnid in ("n01", "n02", "n03"):
            for k in range(2):
                pictures.write(root / split / wnid / f"{k}.JPEG")
    torch.save(({"n01": ("a", "b"), "n02": ("c",), "n03": ("d",)}, []), root / "meta.bin")
    yield datasets.ImageNet(str(root), transform=SHRUNK)
    yield datasets.ImageNet(str(root), "val", transform=SHRUNK, target_transform=plus)


@layout
def EuroSAT(root, pictures):
    for k in range(6):
        pictures.write(root / "eurosat" / "2750" / f"c{k % 2}" / f"{k}.jpg", size=64)
    yield datasets.EuroSAT(str(root), SHRUNK)
    yield datasets.EuroSAT(str(root), transforms.ToTensor())  # all images of EuroSAT have the same size


@layout
def FER2013(root, pictures):
    (root / "fer2013").mkdir()
    rows = [f"{k},{' '.join(map(str, pictures.drawn.integers(0, 256, 48 * 48)))}" for k in range(5)]
    (root / "fer2013" / "train.csv").write_text("\n".join(["emotion,pixels", *rows, ""]))
    yield datasets.FER2013(str(root), transform=transforms.ToTensor())
    yield datasets.FER2013(str(root), "train", SHRUNK, plus)


@layout
def Country211(root, pictures):
    for k in range(6):
        pictures.write(root / "country211" / "valid" / f"c{k % 2}" / f"{k}.jpg")
    yield datasets.Country211(str(root), "valid", SHRUNK, plus)


@layout
def Food101(root, pictures):
    base = root / "food-101"
    (base / "meta").mkdir(parents=True)
    names = {kind: [f"{kind}/{k}" for k in range(3)] for kind in ("pie", "apple")}
    for name in sum(names.values(), []):
        pictures.write(base / "images" / f"{name}.jpg")
    (base / "meta" / "train.json").write_text(json.dumps(names))
    yield datasets.Food101(str(root), "train", SHRUNK)
    yield datasets.Food101(root, transform=SHRUNK, target_transform=plus, loader=datasets.folder.pil_loader)


@layout
def OxfordIIITPet(root, pictures):
    base = root / "oxford-iiit-pet"
    lines = []
    for k, name in enumerate(("Abyssinian_1", "beagle_2", "beagle_3", "pug_1")):
        pictures.write(base / "images" / f"{name}.jpg")
        lines.append(f"{name} {k // 2 + 1} {k % 2 + 1} 1\n")
    (base / "annotations").mkdir()
    (base / "annotations" / "trainval.txt").write_text("".join(lines))
    for types in ("category", "binary-category", ["category", "binary-category"]):
        yield datasets.OxfordIIITPet(str(root), target_types=types, transform=SHRUNK)
    yield datasets.OxfordIIITPet(str(root), transforms=datasets.vision.StandardTransform(SHRUNK, plus))


@layout
def Caltech101(root, pictures):
    base = root / "caltech101" / "101_ObjectCategories"
    (base / "BACKGROUND_Google").mkdir(parents=True)
    (root / "caltech101" / "Annotations").mkdir()
    for k in range(6):
        pictures.write(base / f"c{k % 2}" / f"image_{k // 2 + 1:04d}.jpg")
    yield datasets.Caltech101(str(root), transform=GREY_TOO)
    yield datasets.Caltech101(str(root), ["category", "category"], GREY_TOO)


@layout
def Caltech256(root, pictures):
    for k in range(6):
        name = f"{k % 2 + 1:03d}_{k // 2 + 1:04d}.jpg"
        pictures.write(root / "caltech256" / "256_ObjectCategories" / f"{name[:3]}.c" / name)
    yield datasets.Caltech256(str(root), GREY_TOO, plus)


@layout
def Flowers102(root, pictures):
    sio = pytest.importorskip("scipy.io")
    base = root / "flowers-102"
    for k in range(1, 7):
        pictures.write(base / "jpg" / f"image_{k:05d}.jpg")
    sio.savemat(base / "setid.mat", {"trnid": [[5, 2]], "valid": [[1, 3]], "tstid": [[4, 6]]})
    sio.savemat(base / "imagelabels.mat", {"labels": [[3, 1, 2, 9, 4, 8]]})
    yield datasets.Flowers102(str(root), "train", SHRUNK)
    yield datasets.Flowers102(str(root), "test", SHRUNK, plus)


@layout
def Places365(root, pictures):
    (root / "categories_places365.txt").write_text("".join(f"/a/c{k} {k}\n" for k in range(365)))
    names = [f"Places365_val_{k:08d}.jpg" for k in range(5)]
    for name in names:
        pictures.write(root / "val_256" / name)
    (root / "places365_val.txt").write_text("".join(f"{name} {k * 3}\n" for k, name in enumerate(names)))
    yield datasets.Places365(str(root), "val", True, transform=SHRUNK)
    yield datasets.Places365(str(root), "val", True, transform=SHRUNK, target_transform=plus)


@layout
def StanfordCars(root, pictures):
    sio = pytest.importorskip("scipy.io")
    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    rows = np.array([(f"{k:05d}.jpg", k + 1) for k in range(5)], dtype=[("fname", object), ("class", object)])
    for row in rows:
        pictures.write(base / "cars_train" / row["fname"])
    sio.savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    sio.savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(["a", "b"], dtype=object)})
    yield datasets.StanfordCars(str(root), "train", SHRUNK)


@layout
def FGVCAircraft(root, pictures):
    base = root / "fgvc-aircraft-2013b" / "data"
    (base / "images").mkdir(parents=True)
    for k in range(5):
        pictures.write(base / "images" / f"{k:07d}.jpg")
    (base / "families.txt").write_text("A 300\nB 7\n")
    (base / "images_family_test.txt").write_text("".join(f"{k:07d} {('B 7', 'A 300')[k % 2]}\n" for k in range(5)))
    yield datasets.FGVCAircraft(str(root), "test", "family", SHRUNK)


@layout
def DTD(root, pictures):
    base = root / "dtd" / "dtd"
    names = [f"{kind}/{kind}_{k}.jpg" for kind in ("dotted", "banded") for k in range(3)]
    for name in names:
        pictures.write(base / "images" / name)
    (base / "labels").mkdir()
    (base / "labels" / "val2.txt").write_text("\n".join(names) + "\n")
    yield datasets.DTD(str(root), "val", 2, SHRUNK)


@layout
def SUN397(root, pictures):
    for k in range(6):
        pictures.write(root / "SUN397" / "a" / ("abbey", "alley/indoor")[k % 2] / f"sun_{k}.jpg")
    (root / "SUN397" / "ClassName.txt").write_text("/a/abbey\n/a/alley/indoor\n")
    yield datasets.SUN397(str(root), SHRUNK)


@layout
def GTSRB(root, pictures):
    base = root / "gtsrb"
    rows = []
    for k in range(6):
        pictures.write(base / "GTSRB" / "Training" / f"{k % 2:05d}" / f"{k}.ppm")
        pictures.write(base / "GTSRB" / "Final_Test" / "Images" / f"{k}.ppm")
        rows.append({"Filename": f"{k}.ppm", "ClassId": k * 2})
    with open(base / "GT-final_test.csv", "w") as lines:
        writer = csv.DictWriter(lines, ["Filename", "ClassId"], delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    yield datasets.GTSRB(str(root), transform=SHRUNK)
    yield datasets.GTSRB(str(root), "test", SHRUNK, plus)


@layout
def RenderedSST2(root, pictures):
    for k in range(6):
        pictures.write(root / "rendered-sst2" / "valid" / ("negative", "positive")[k % 2] / f"{k}.png")
    yield datasets.RenderedSST2(str(root), "val", SHRUNK)


@layout
def Imagenette(root, pictures):
    for k in range(6):
        pictures.write(root / "imagenette2-160" / "train" / ("n01440764", "n02102040")[k % 2] / f"{k}.jpeg")
    yield datasets.Imagenette(str(root), "train", "160px", transform=SHRUNK)


@layout
def LFWPeople(root, pictures):
    base = root / "lfw-py"
    for name, count in (("Ann_A", 2), ("Bob_B", 3)):
        for k in range(1, count + 1):
            pictures.write(base / "lfw_funneled" / name / f"{name}_{k:04d}.jpg")
    (base / "peopleDevTrain.txt").write_text("2\nBob_B\t3\nAnn_A\t2\n")
    (base / "lfw-names.txt").write_text("Ann_A\t2\nBob_B\t3\n")
    yield datasets.LFWPeople(str(root), "train", transform=SHRUNK)


@layout
def CelebA(root, pictures):
    base = root / "celeba"
    names = [f"{k:06d}.jpg" for k in range(1, 7)]
    for name in names:
        pictures.write(base / "img_align_celeba" / name, "RGB")
    numbers = lambda name, columns: [name, *map(str, pictures.drawn.integers(0, 99, columns))]  # noqa: E731

    def table(file: str, rows: list[list[str]], head: str = "") -> None:
        (base / file).write_text(head + "".join(" ".join(row) + "\n" for row in rows))

    table("list_eval_partition.txt", [[name, str(k // 4)] for k, name in enumerate(names)])
    table("identity_CelebA.txt", [numbers(name, 1) for name in names])
    for file, columns in (("list_bbox_celeba.txt", 4), ("list_landmarks_align_celeba.txt", 10), ("list_attr_celeba.txt", 40)):
        table(file, [numbers(name, columns) for name in names], f"6\n{' '.join('c' * columns)}\n")
    for split, types in (("train", "attr"), ("all", "identity"), ("valid", ["bbox", "landmarks", "identity"])):
        yield datasets.CelebA(str(root), split, types, SHRUNK)
    yield datasets.CelebA(str(root), "train", "attr", SHRUNK, plus)


@layout
def INaturalist(root, pictures):
    for k in range(6):
        pictures.write(root / "2018" / f"super{k % 2}" / str(k % 3 * 2 + k % 2) / f"{k}.jpg")
    yield datasets.INaturalist(str(root), "2018", ["full", "super"], SHRUNK, loader=datasets.folder.default_loader)
    yield datasets.INaturalist(str(root), "2018", "super", GREY_TOO)


@layout
def Omniglot(root, pictures):
    for k in range(6):
        pictures.write(root / "omniglot-py" / "images_evaluation" / f"alphabet{k % 2}" / f"c{k % 3}" / f"{k}.png", "1")
    yield datasets.Omniglot(str(root), False, SHRUNK)
    yield datasets.Omniglot(str(root), False, SHRUNK, plus, loader=datasets.folder.default_loader)


@layout
def CLEVRClassification(root, pictures):
    base = root / "clevr" / "CLEVR_v1.0"
    scenes = []
    for k in range(5):
        pictures.write(base / "images" / "val" / f"CLEVR_val_{k}.png")
        scenes.append({"image_filename": f"CLEVR_val_{k}.png", "objects": [0] * k})
    (base / "scenes").mkdir()
    (base / "scenes" / "CLEVR_val_scenes.json").write_text(json.dumps({"scenes": scenes}))
    yield datasets.CLEVRClassification(str(root), "val", SHRUNK)


@layout
def SBU(root, pictures):
    for k in range(5):
        pictures.write(root / "dataset" / f"{k}.jpg")
    base = root / "dataset"
    (base / "SBU_captioned_photo_dataset_urls.txt").write_text("".join(f"http://x/{k}.jpg\n" for k in range(6)))
    (base / "SBU_captioned_photo_dataset_captions.txt").write_text("".join(f"caption {k}\n" for k in range(6)))
    yield datasets.SBU(str(root), SHRUNK, len, False)


@layout
def Flickr8k(root, pictures):
    for k in range(4):
        pictures.write(root / f"{k}_ab.jpg")
    row = "<tr><td><a href='x'>http://x/{k}/</a><ul><li>one {k}</li><li>two</li></ul></td></tr>"
    rows = "".join(row.format(k=k) for k in (2, 0, 3, 1))
    (root / "captions.html").write_text(f"<table>{rows}</table>")
    yield datasets.Flickr8k(str(root), str(root / "captions.html"), SHRUNK, lambda those: len(those[0]))


@layout
def Flickr30k(root, pictures):
    for k in range(4):
        pictures.write(root / f"{k}.jpg")
    (root / "captions").write_text("".join(f"{k}.jpg#{n}\tcaption {k * 10 ** n}\n" for k in (2, 0, 3, 1) for n in range(2)))
    yield datasets.Flickr30k(str(root), str(root / "captions"), SHRUNK, lambda those: sum(map(len, those)))


@pytest.fixture
def unchecked(monkeypatch):
    """The fake files have other checksums than the published ones."""
    for module in ("celeba", "fer2013", "imagenet", "lfw", "omniglot", "places365", "sbu"):
        monkeypatch.setattr(getattr(datasets, module), "check_integrity", lambda *_, **__: True)
    for kind in (datasets.Flowers102, datasets.CelebA, datasets.Caltech101, datasets.Caltech256):
        monkeypatch.setattr(kind, "_check_integrity", lambda _: True)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.some(5)
def test_every_sample_is_that_of_the_class(unchecked, tmp_path, name):
    for dataset in MAKERS[name](tmp_path, Pictures()):
        assert type(dataset).__name__ == name
        compare(dataset)
        for k, (image, target) in enumerate(DDLPLoader(dataset, None)):
            expected, expected_target = default_convert(dataset[k])
            assert torch.equal(image, expected) and repr(target) == repr(expected_target)


@pytest.mark.parametrize("name", ["ImageNet", "Food101", "Caltech101", "Omniglot", "EuroSAT", "FER2013"])
def test_an_engine_opens_them_as_well(unchecked, tmp_path, engine, name):
    compare(next(MAKERS[name](tmp_path, Pictures())), engine)


def test_an_image_of_another_size_in_eurosat_is_an_error_of_its_batch(tmp_path):
    dataset = list(EuroSAT(tmp_path, Pictures()))[1]
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


def test_what_of_them_stays_on_the_host(unchecked, tmp_path):
    def first(name: str) -> Any:
        (tmp_path / name).mkdir()
        return next(MAKERS[name](tmp_path / name, Pictures()))

    plain = transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()])
    for name in ("Caltech101", "Caltech256"):
        dataset = first(name)
        dataset.transform = plain
        stays(dataset, "grey files as grey images")
        assert {dataset[k][0].shape[0] for k in range(len(dataset))} == {1, 3}
    dataset = datasets.Caltech101(str(tmp_path / "Caltech101"), "annotation", GREY_TOO)
    stays(dataset, "'annotation' is read from a file")
    first("INaturalist")
    stays(datasets.INaturalist(str(tmp_path / "INaturalist"), "2018", transform=plain), "grey files as grey images")
    dataset = first("OxfordIIITPet")
    stays(datasets.OxfordIIITPet(dataset.root, target_types=["category", "segmentation"], transform=plain), "have images among")
    stays(datasets.OxfordIIITPet(dataset.root, transforms=lambda image, target: (plain(image), target)), "transforms= changes")
    for name in ("Food101", "LFWPeople", "Places365", "Flickr30k"):
        dataset = first(name)
        setattr(dataset, "_loader" if name == "LFWPeople" else "loader", lambda path: Image.open(path).rotate(90))
        stays(dataset, "loader= of its own")


def decoders() -> list[Any]:
    found = [torchvision.io.decode_image, functools.partial(torchvision.io.decode_image, mode="RGB")]
    with contextlib.suppress(ImportError, OSError, RuntimeError):  # it needs FFmpeg, and may be missing
        found.append(importlib.import_module("torchcodec.decoders").decode_image)
    return found


@pytest.mark.parametrize("decoder", decoders())
def test_a_loader_that_gives_tensors_is_user_code(folder, decoder):
    """Their bits are Pillow's, but the transforms after them run torch's kernels."""
    dataset = datasets.ImageFolder(folder, transforms.CenterCrop(16), loader=decoder)
    stays(dataset, "loader=decode_image gives tensors")
    for (path, _), (ours, _) in zip(dataset.samples, [dataset[k] for k in range(len(dataset))], strict=True):
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


class EmptyMNIST(datasets.FashionMNIST):
    pass


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
def folder(tmp_path):
    pictures = Pictures()
    for k in range(9):
        pictures.write(tmp_path / ("cats", "dogs", "left_out")[k % 3] / f"{k}.jpg")
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
    for ours, theirs in zip(DDLPLoader(dataset, 4), DataLoader(dataset, 4), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_data_set_wrapped_for_v2_is_user_code(folder):
    stays(datasets.wrap_dataset_for_transforms_v2(datasets.ImageFolder(folder, SHRUNK)), "from a CocoDetection alone")
