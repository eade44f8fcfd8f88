"""Small data sets in the layout that torchvision's, timm's and Hugging Face's classes read. Nothing is downloaded.

Each function writes below an empty folder; its docstring names the files. JPEG files are hard links to the photographs if the
file system has such links.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import io
import json
import os
import pickle
import shutil
import tarfile
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

CLASSES = ("beagle", "cat", "crane", "tulip")
_ROWS = 32  # samples of a set of small arrays, for each photograph


def place(photo: Path, path: Path) -> None:
    """Put the photograph's file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(photo, path)
    except OSError:  # another file system
        shutil.copyfile(photo, path)


def labelled(photos: Sequence[Path], classes: Sequence[str] = CLASSES) -> Iterator[tuple[int, Path, int, str]]:
    """Yield (number, photograph, label, class) of each photograph. The classes take turns."""
    for number, photo in enumerate(photos):
        yield number, photo, number % len(classes), classes[number % len(classes)]


@contextlib.contextmanager
def any_checksum(module: Any) -> Iterator[None]:
    """Make torchvision's data sets of this module accept files with another MD5 than the published one, as a fake has it."""
    before = module.check_integrity
    module.check_integrity = lambda path, md5=None: Path(path).is_file()
    try:
        yield
    finally:
        module.check_integrity = before


def nothing(root: Path, photos: Sequence[Path]) -> None:
    """Write nothing: the data set has no files."""


# -- folders of images -----------------------------------------------------------------------------------------------


def imagefolder(root: Path, photos: Sequence[Path]) -> None:
    """train/CLASS/*.jpg."""
    for number, photo, _, name in labelled(photos):
        place(photo, root / "train" / name / f"{number:05d}.jpg")


def converted(photo: Path, path: Path, size: tuple[int, int] | None = None, mode: str = "", **options: Any) -> None:
    """Write the photograph in the format of the path's ending, of another size and mode if they are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(photo) as image:
        image.resize(size or image.size).convert(mode or image.mode).save(path, **options)


def pngs(root: Path, photos: Sequence[Path]) -> None:
    """An image folder of PNG files."""
    for number, photo, _, name in labelled(photos):
        converted(photo, root / "train" / name / f"{number:05d}.png", compress_level=6)


def webps(root: Path, photos: Sequence[Path]) -> None:
    """An image folder of WebP files."""
    for number, photo, _, name in labelled(photos):
        converted(photo, root / "train" / name / f"{number:05d}.webp", quality=90)


def imagenet(root: Path, photos: Sequence[Path]) -> None:
    """meta.bin, and train/WNID/WNID_*.JPEG."""
    wnids = {"n02088364": ("beagle",), "n02123045": ("tabby", "tabby cat"), "n02012849": ("crane",), "n04039381": ("racket",)}
    torch.save((wnids, [list(wnids)[0]]), root / "meta.bin")
    for number, photo, _, wnid in labelled(photos, list(wnids)):
        place(photo, root / "train" / wnid / f"{wnid}_{number}.JPEG")


def imagenette(root: Path, photos: Sequence[Path]) -> None:
    """imagenette2/train/WNID/*.JPEG."""
    for number, photo, _, wnid in labelled(photos, ("n01440764", "n02102040", "n02979186", "n03000684")):
        place(photo, root / "imagenette2" / "train" / wnid / f"{wnid}_{number}.JPEG")


def country211(root: Path, photos: Sequence[Path]) -> None:
    """country211/train/CC/*.jpg."""
    for number, photo, _, country in labelled(photos, ("AD", "BE", "CH", "DK")):
        place(photo, root / "country211" / "train" / country / f"{number}.jpg")


def eurosat(root: Path, photos: Sequence[Path]) -> None:
    """eurosat/2750/CLASS/CLASS_*.jpg of 64 x 64 pixels."""
    for number, photo, _, name in labelled([*photos] * 4, ("AnnualCrop", "Forest", "Highway", "River")):
        converted(photo, root / "eurosat" / "2750" / name / f"{name}_{number}.jpg", (64, 64), quality=90)


def food101(root: Path, photos: Sequence[Path]) -> None:
    """food-101/images/CLASS/*.jpg and meta/train.json."""
    listed: dict[str, list[str]] = {}
    for number, photo, _, name in labelled(photos, ("apple_pie", "pizza", "ramen", "waffles")):
        place(photo, root / "food-101" / "images" / name / f"{number}.jpg")
        listed.setdefault(name, []).append(f"{name}/{number}")
    (root / "food-101" / "meta").mkdir()
    (root / "food-101" / "meta" / "train.json").write_text(json.dumps(listed))


def pets(root: Path, photos: Sequence[Path]) -> None:
    """oxford-iiit-pet: images, annotations/trainval.txt and annotations/trimaps."""
    base = root / "oxford-iiit-pet"
    (base / "annotations" / "trimaps").mkdir(parents=True)
    lines = []
    for number, photo, label, name in labelled(photos, ("Abyssinian", "beagle", "Bengal", "pug")):
        place(photo, base / "images" / f"{name}_{number}.jpg")
        trimap(photo, number).save(base / "annotations" / "trimaps" / f"{name}_{number}.png")
        lines.append(f"{name}_{number} {label + 1} {1 + label % 2} 1\n")
    (base / "annotations" / "trainval.txt").write_text("".join(lines))


def trimap(photo: Path, number: int) -> Image.Image:
    """An ellipse of class 1 with a border of class 3, on class 2; of the photograph's size, mode L."""
    with Image.open(photo) as image:
        width, height = image.size
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    far = x**2 / (0.3 + 0.02 * (number % 9)) + y**2 / 0.5
    return Image.fromarray(np.where(far < 0.9, 1, np.where(far < 1.1, 3, 2)).astype(np.uint8))


def caltech101(root: Path, photos: Sequence[Path]) -> None:
    """caltech101/101_ObjectCategories/CLASS/image_0001.jpg ..."""
    base = root / "caltech101" / "101_ObjectCategories"
    (base / "BACKGROUND_Google").mkdir(parents=True)
    for number, photo, _, name in labelled(photos, ("Faces", "accordion", "anchor", "ant")):
        place(photo, base / name / f"image_{number // 4 + 1:04d}.jpg")


def caltech256(root: Path, photos: Sequence[Path]) -> None:
    """caltech256/256_ObjectCategories/001.ak47/001_0001.jpg ..."""
    base = root / "caltech256" / "256_ObjectCategories"
    for number, photo, label, name in labelled(photos, ("001.ak47", "002.american-flag", "003.backpack", "004.baseball-bat")):
        place(photo, base / name / f"{label + 1:03d}_{number // 4 + 1:04d}.jpg")


def flowers102(root: Path, photos: Sequence[Path]) -> None:
    """flowers-102/jpg/image_00001.jpg ..., imagelabels.mat and setid.mat."""
    import scipy.io

    base = root / "flowers-102"
    for number, photo in enumerate(photos, 1):
        place(photo, base / "jpg" / f"image_{number:05d}.jpg")
    numbers = np.arange(1, len(photos) + 1)
    scipy.io.savemat(base / "imagelabels.mat", {"labels": numbers % 102 + 1})
    scipy.io.savemat(base / "setid.mat", {"trnid": numbers[::-1], "valid": numbers[:2], "tstid": numbers[:2]})


def places365(root: Path, photos: Sequence[Path]) -> None:
    """categories_places365.txt, places365_train_standard.txt and data_large_standard/a/airfield/*.jpg."""
    classes = ("/a/airfield", "/b/beach", "/c/cliff", "/d/desert/sand")
    (root / "categories_places365.txt").write_text("".join(f"{name} {label}\n" for label, name in enumerate(classes)))
    lines = []
    for number, photo, label, name in labelled(photos, classes):
        place(photo, root / "data_large_standard" / name.lstrip("/") / f"{number:08d}.jpg")
        lines.append(f"{name}/{number:08d}.jpg {label}\n")
    (root / "places365_train_standard.txt").write_text("".join(lines))


def stanford_cars(root: Path, photos: Sequence[Path]) -> None:
    """stanford_cars/cars_train/*.jpg, devkit/cars_meta.mat and devkit/cars_train_annos.mat."""
    import scipy.io

    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    kind = np.dtype([("bbox_x1", object), ("class", object), ("fname", object)])
    notes = np.zeros((1, len(photos)), kind)
    for number, photo, label, _ in labelled(photos):
        place(photo, base / "cars_train" / f"{number + 1:05d}.jpg")
        notes[0, number] = (1, label + 1, f"{number + 1:05d}.jpg")
    names = np.array([["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "BMW X3 SUV 2012", "Fiat 500 Abarth 2012"]], object)
    scipy.io.savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": notes})
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})


def fgvc_aircraft(root: Path, photos: Sequence[Path]) -> None:
    """fgvc-aircraft-2013b/data: images, variants.txt and images_variant_trainval.txt."""
    base, classes = root / "fgvc-aircraft-2013b" / "data", ("707-320", "727-200", "A300B4", "Boeing 717")
    lines = []
    for number, photo, _, name in labelled(photos, classes):
        place(photo, base / "images" / f"{number:07d}.jpg")
        lines.append(f"{number:07d} {name}\n")
    (base / "variants.txt").write_text("".join(f"{name}\n" for name in classes))
    (base / "images_variant_trainval.txt").write_text("".join(lines))


def dtd(root: Path, photos: Sequence[Path]) -> None:
    """dtd/dtd/images/CLASS/CLASS_*.jpg and labels/train1.txt."""
    base = root / "dtd" / "dtd"
    lines = []
    for number, photo, _, name in labelled(photos, ("banded", "dotted", "striped", "woven")):
        place(photo, base / "images" / name / f"{name}_{number:04d}.jpg")
        lines.append(f"{name}/{name}_{number:04d}.jpg\n")
    (base / "labels").mkdir()
    (base / "labels" / "train1.txt").write_text("".join(lines))


def sun397(root: Path, photos: Sequence[Path]) -> None:
    """SUN397/ClassName.txt and SUN397/a/abbey/sun_*.jpg."""
    classes = ("abbey", "beach", "canyon", "desert/sand")
    for number, photo, _, name in labelled(photos, classes):
        place(photo, root / "SUN397" / name[0] / name / f"sun_{number:05d}.jpg")
    (root / "SUN397" / "ClassName.txt").write_text("".join(f"/{name[0]}/{name}\n" for name in classes))


def inaturalist(root: Path, photos: Sequence[Path]) -> None:
    """2021_train/00000_Animalia_..._species/*.jpg."""
    kinds = ("Annelida_Clitellata_Haplotaxida_Lumbricidae_Lumbricus", "Chordata_Aves_Gruiformes_Gruidae_Grus")
    classes = [f"{label:05d}_Animalia_{kind}_species" for label, kind in enumerate(kinds)]
    for number, photo, _, name in labelled(photos, classes):
        place(photo, root / "2021_train" / name / f"{number:08x}.jpg")


def lfw(root: Path, photos: Sequence[Path]) -> None:
    """lfw-py: peopleDevTrain.txt, lfw-names.txt, lfw-funneled.tgz and lfw_funneled/NAME/NAME_0001.jpg ..."""
    base, people = root / "lfw-py", ("Aaron_Eckhart", "Aaron_Guiel", "Zhang_Yimou", "Zoran_Djindjic")
    for number, photo, _, name in labelled(photos, people):
        place(photo, base / "lfw_funneled" / name / f"{name}_{number // 4 + 1:04d}.jpg")
    counts = [len(range(first, len(photos), 4)) for first in range(4)]
    lines = "".join(f"{name}\t{count}\n" for name, count in zip(people, counts, strict=True))
    (base / "lfw-names.txt").write_text(lines)
    (base / "peopleDevTrain.txt").write_text(f"{len(people)}\n{lines}")
    (base / "lfw-funneled.tgz").touch()


def celeba(root: Path, photos: Sequence[Path]) -> None:
    """celeba: img_align_celeba/*.jpg and its five lists."""
    base, names = root / "celeba", [f"{number + 1:06d}.jpg" for number in range(len(photos))]
    for photo, name in zip(photos, names, strict=True):
        place(photo, base / "img_align_celeba" / name)
    lists = {  # the head, and the values of each image, of which {k} is the number
        "list_eval_partition.txt": ([], "0"),
        "identity_CelebA.txt": ([], "{k}"),
        "list_bbox_celeba.txt": (["image_id x_1 y_1 width height"], "{k} 71 226 313"),
        "list_landmarks_align_celeba.txt": (["lefteye_x lefteye_y"], "69 {k}"),
        "list_attr_celeba.txt": (["Bald Smiling Young"], "-1 1 {k}"),
    }
    for file, (head, values) in lists.items():
        first = [str(len(names)), *head] if head else []
        rows = [f"{name} {values.format(k=number)}" for number, name in enumerate(names)]
        (base / file).write_text("".join(f"{line}\n" for line in [*first, *rows]))


def gtsrb(root: Path, photos: Sequence[Path]) -> None:
    """gtsrb/GTSRB/Training/00000/00000_00000.ppm ..."""
    for number, photo, _, name in labelled([*photos] * 4, ("00000", "00001", "00002", "00003")):
        path = root / "gtsrb" / "GTSRB" / "Training" / name / f"{number:05d}_00000.ppm"
        converted(photo, path, (40 + number % 20, 44))


# -- small images in arrays ------------------------------------------------------------------------------------------


def thumbnails(photos: Sequence[Path], side: int, mode: str = "RGB") -> tuple[np.ndarray, np.ndarray]:
    """uint8 (n, side, side) or (n, side, side, 3), and labels 0 to 9: parts of the photographs, shifted."""
    found = []
    for photo in photos:
        with Image.open(photo) as image:
            small = np.asarray(image.convert(mode).resize((2 * side, 2 * side)))
        found += [small[k % side : k % side + side, k * 3 % side : k * 3 % side + side] for k in range(_ROWS)]
    return np.stack(found), np.arange(len(found)) % 10


def cifar10(root: Path, photos: Sequence[Path]) -> None:
    """cifar-10-batches-py: data_batch_1 to 5, test_batch and batches.meta."""
    _cifar(root / "cifar-10-batches-py", photos, [f"data_batch_{k}" for k in range(1, 6)], "test_batch", "batches.meta", "")


def cifar100(root: Path, photos: Sequence[Path]) -> None:
    """cifar-100-python: train, test and meta."""
    _cifar(root / "cifar-100-python", photos, ["train"], "test", "meta", "fine_")


def _cifar(base: Path, photos: Sequence[Path], train: list[str], test: str, meta: str, fine: str) -> None:
    base.mkdir()
    images, labels = thumbnails(photos, 32)
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    parts = np.array_split(np.arange(len(flat)), len(train))
    for name, rows in [*zip(train, parts, strict=True), (test, np.arange(10))]:
        content = {"data": flat[rows], f"{fine}labels": labels[rows].tolist()}
        (base / name).write_bytes(pickle.dumps(content))
    (base / meta).write_bytes(pickle.dumps({f"{fine}label_names": [f"class {k}" for k in range(10)]}))


def _idx(array: np.ndarray) -> bytes:
    """An array of uint8 in MNIST's format."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def _mnist(base: Path, photos: Sequence[Path], prefixes: Sequence[str]) -> None:
    base.mkdir(parents=True)
    images, labels = thumbnails(photos, 28, "L")
    for prefix in prefixes:
        (base / f"{prefix}-images-idx3-ubyte").write_bytes(_idx(images))
        (base / f"{prefix}-labels-idx1-ubyte").write_bytes(_idx(labels))


def mnist(root: Path, photos: Sequence[Path]) -> None:
    """MNIST/raw/train-images-idx3-ubyte ..."""
    _mnist(root / "MNIST" / "raw", photos, ("train", "t10k"))


def fashion_mnist(root: Path, photos: Sequence[Path]) -> None:
    """FashionMNIST/raw/train-images-idx3-ubyte ..."""
    _mnist(root / "FashionMNIST" / "raw", photos, ("train", "t10k"))


def kmnist(root: Path, photos: Sequence[Path]) -> None:
    """KMNIST/raw/train-images-idx3-ubyte ..."""
    _mnist(root / "KMNIST" / "raw", photos, ("train", "t10k"))


def emnist(root: Path, photos: Sequence[Path]) -> None:
    """EMNIST/raw/emnist-letters-train-images-idx3-ubyte ..."""
    _mnist(root / "EMNIST" / "raw", photos, ("emnist-letters-train", "emnist-letters-test"))


def usps(root: Path, photos: Sequence[Path]) -> None:
    """usps.bz2: lines of LIBSVM."""
    images, labels = thumbnails(photos[:16], 16, "L")
    lines = []
    for image, label in zip(images.reshape(len(images), -1).tolist(), labels.tolist(), strict=True):
        lines.append(" ".join([str(label + 1), *(f"{k}:{value / 127.5 - 1:.6f}" for k, value in enumerate(image, 1))]))
    (root / "usps.bz2").write_bytes(bz2.compress("\n".join(lines).encode(), 1))


def svhn(root: Path, photos: Sequence[Path]) -> None:
    """train_32x32.mat."""
    import scipy.io

    images, labels = thumbnails(photos, 32)
    scipy.io.savemat(root / "train_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": (labels + 1)[:, None]})


def stl10(root: Path, photos: Sequence[Path]) -> None:
    """stl10_binary: train_X.bin, train_y.bin and the other files of the archive."""
    base = root / "stl10_binary"
    base.mkdir()
    images, labels = thumbnails(photos[:16], 96)
    for name in ("train", "test", "unlabeled"):
        (base / f"{name}_X.bin").write_bytes(images.transpose(0, 3, 2, 1).tobytes())
        (base / f"{name}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    (base / "class_names.txt").write_text("".join(f"class {k}\n" for k in range(10)))


def fer2013(root: Path, photos: Sequence[Path]) -> None:
    """fer2013/train.csv."""
    (root / "fer2013").mkdir()
    images, labels = thumbnails(photos[:16], 48, "L")
    with (root / "fer2013" / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["emotion", "pixels"])
        for image, label in zip(images, labels.tolist(), strict=True):
            writer.writerow([label % 7, " ".join(map(str, image.ravel().tolist()))])


# -- containers of encoded images ------------------------------------------------------------------------------------


def table(root: Path, photos: Sequence[Path]) -> None:
    """images/*.jpg and train.csv with file and label."""
    lines = ["file,label"]
    for number, photo, label, _ in labelled(photos):
        place(photo, root / "images" / f"{number:05d}.jpg")
        lines.append(f"{number:05d}.jpg,{label}")
    (root / "train.csv").write_text("\n".join([*lines, ""]))


def shards(root: Path, photos: Sequence[Path]) -> None:
    """train-000000.tar and train-000001.tar in WebDataset's naming: 00000.jpg, 00000.cls, ..."""
    half = -(-len(photos) // 2)
    for shard in range(2):
        with tarfile.open(root / f"train-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, photo, label, _ in labelled(photos):
                if number // half == shard:
                    for ending, content in (("jpg", photo.read_bytes()), ("cls", str(label).encode())):
                        member = tarfile.TarInfo(f"{number:05d}.{ending}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))


def lmdb_file(root: Path, photos: Sequence[Path]) -> None:
    """train.lmdb: pickled (JPEG bytes, label) by number, and the number of samples."""
    import lmdb

    with lmdb.open(str(root / "train.lmdb"), map_size=2**31, subdir=False) as environment, environment.begin(write=True) as txn:
        for number, photo, label, _ in labelled(photos):
            txn.put(f"{number:08d}".encode(), pickle.dumps((photo.read_bytes(), label)))
        txn.put(b"length", str(len(photos)).encode())
    (root / "train.lmdb-lock").unlink(missing_ok=True)


def parquet(root: Path, photos: Sequence[Path]) -> None:
    """train.parquet with Hugging Face's columns: image {bytes, path} and label."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"bytes": photo.read_bytes(), "path": photo.name} for photo in photos]
    labels = [label for _, _, label, _ in labelled(photos)]
    pyarrow.parquet.write_table(pyarrow.table({"image": rows, "label": labels}), root / "train.parquet", row_group_size=16)


def features_table(root: Path, photos: Sequence[Path]) -> None:
    """rows.parquet: 16 numbers and a label, and text of unlike lengths."""
    import pyarrow
    import pyarrow.parquet

    rows = 100 * len(photos)
    values = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
    columns = {f"x{k}": values[:, k] for k in range(16)}
    tokens = [list(range(1, 2 + row * 7 % 60)) for row in range(rows)]
    everything = pyarrow.table({**columns, "label": np.arange(rows) % 3, "tokens": tokens})
    pyarrow.parquet.write_table(everything, root / "rows.parquet")


# -- detection, segmentation, audio ----------------------------------------------------------------------------------


def voc(root: Path, photos: Sequence[Path]) -> None:
    """VOCdevkit/VOC2012: JPEGImages, Annotations, SegmentationClass and ImageSets."""
    base = root / "VOCdevkit" / "VOC2012"
    for part in ("Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (base / part).mkdir(parents=True)
    names = [f"2012_{number:06d}" for number in range(len(photos))]
    for number, (photo, name) in enumerate(zip(photos, names, strict=True)):
        place(photo, base / "JPEGImages" / f"{name}.jpg")
        mask = trimap(photo, number)
        width, height = mask.size
        palette = Image.fromarray((np.asarray(mask) == 1).astype(np.uint8))
        palette = palette.convert("P")
        palette.save(base / "SegmentationClass" / f"{name}.png")
        box = f"<xmin>{width // 4}</xmin><ymin>{height // 4}</ymin><xmax>{width // 2}</xmax><ymax>{height // 2}</ymax>"
        thing = f"<object><name>dog</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (base / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><folder>VOC2012</folder><filename>{name}.jpg</filename>{size}{thing * (1 + number % 3)}</annotation>"
        )
    for part in ("Main", "Segmentation"):
        (base / "ImageSets" / part / "train.txt").write_text("".join(f"{name}\n" for name in names))


def coco(root: Path, photos: Sequence[Path]) -> None:
    """train2017/*.jpg and annotations/instances_train2017.json."""
    images: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for number, photo in enumerate(photos, 1):
        place(photo, root / "train2017" / f"{number:012d}.jpg")
        with Image.open(photo) as image:
            width, height = image.size
        images.append({"id": number, "file_name": f"{number:012d}.jpg", "width": width, "height": height})
        for k in range(1 + number % 3):
            x, y, w, h = width // 8 * (k + 1), height // 8, width // 4, height // 2
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            notes.append({
                "id": len(notes) + 1, "image_id": number, "category_id": 18, "bbox": [x, y, w, h], "area": w * h,
                "iscrowd": 0, "segmentation": [corners],
            })  # fmt: skip
    content = {"images": images, "annotations": notes, "categories": [{"id": 18, "name": "dog", "supercategory": "animal"}]}
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(content))


def penn_fudan(root: Path, photos: Sequence[Path]) -> None:
    """PennFudanPed: PNGImages/*.png and PedMasks/*_mask.png, where each person has a number."""
    base = root / "PennFudanPed"
    (base / "PedMasks").mkdir(parents=True)
    for number, photo in enumerate(photos[:16]):
        converted(photo, base / "PNGImages" / f"FudanPed{number:05d}.png", compress_level=1)
        mask = np.asarray(trimap(photo, number))
        people = np.where(mask == 1, 1 + (np.arange(mask.shape[1]) > mask.shape[1] // 2), 0).astype(np.uint8)
        Image.fromarray(people).save(base / "PedMasks" / f"FudanPed{number:05d}_mask.png")


def waves(root: Path, photos: Sequence[Path]) -> None:
    """CLASS/*.wav: a second of a tone with noise, 16 kHz, mono, 16 bits."""
    random = np.random.default_rng(0)
    for number in range(2 * len(photos)):
        tone = np.sin(np.arange(16_000) * (2 * np.pi * (200 + number) / 16_000)) + 0.1 * random.normal(size=16_000)
        path = root / CLASSES[number % 4] / f"{number:05d}.wav"
        path.parent.mkdir(exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes((np.clip(tone, -1.2, 1.2) * 25_000).astype("<i2").tobytes())
