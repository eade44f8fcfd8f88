"""Files in the format of CIFAR-10's Python version, with crops of the sample photographs in place of its images."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ddlp.sampledata.photos import CLASSES, SampleDataError, draw_box, draws_for, photograph

_FOLDER = "cifar-10-batches-py"
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = "test_batch"
_META = "batches.meta"


def make_cifar10(
    directory: str | os.PathLike[str], train_images: int = 5000, test_images: int = 1000, *, seed: int = 0
) -> Path:
    """Write cifar-10-batches-py/ below `directory`: data_batch_1 to 5, test_batch and batches.meta.

    As in the original, a batch is a pickled dict of `data` (uint8 (images, 3072): red, green and blue planes of 32x32,
    rows first), `labels`, `filenames` and `batch_label`. Classes are the ten photographs; train and test are different
    crops of them. The same arguments give the same files.

    Args:
        directory: what torchvision.datasets.CIFAR10 takes as `root`. Files of the format that are there are replaced.
        train_images: over all five batches; a multiple of 5.
        test_images: in test_batch.
        seed: everything is drawn from it.

    Returns:
        The folder cifar-10-batches-py.

    Raises:
        SampleDataError: the numbers don't fit the format, or the packages with the photographs are missing.
    """
    if train_images < 5 or train_images % 5 or test_images < 1:
        raise SampleDataError(
            f"{train_images} train and {test_images} test images asked for {directory}. "
            "CIFAR-10 has five batches of one length: give a multiple of 5, and at least 1 test image"
        )
    folder = Path(directory) / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    count = train_images // 5
    for number, name in enumerate(_TRAIN):
        label = f"training batch {number + 1} of 5"
        _dump(folder / name, _batch(label, seed, True, range(number * count, (number + 1) * count)))
    _dump(folder / _TEST, _batch("testing batch 1 of 1", seed, False, range(test_images)))
    _dump(folder / _META, {"num_cases_per_batch": count, "label_names": list(CLASSES), "num_vis": 3072})
    return folder


@contextlib.contextmanager
def cifar10_checksums(directory: str | os.PathLike[str]) -> Iterator[None]:
    """While in this context, torchvision.datasets.CIFAR10 accepts the files below `directory`.

    torchvision compares each file with the original's MD5. This sets the checksums on the class to those of the files
    that are there, and puts the original ones back. Data sets constructed inside go on working after it.

    Raises:
        SampleDataError: a file is missing.
    """
    from torchvision.datasets import CIFAR10

    folder = Path(directory) / _FOLDER
    before = CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta
    train = [[name, _md5(folder / name)] for name in _TRAIN]
    test, meta = [[_TEST, _md5(folder / _TEST)]], {**CIFAR10.meta, "md5": _md5(folder / _META)}
    CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta = train, test, meta
    try:
        yield
    finally:
        CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta = before


def _batch(batch_label: str, seed: int, train: bool, positions: range) -> dict[str, object]:
    data = np.empty((len(positions), 3072), np.uint8)
    labels, filenames = [], []
    for row, position in enumerate(positions):
        draws = draws_for(seed, "cifar", train, position)
        label = int(draws.random() * len(CLASSES))
        photo = photograph(CLASSES[label])
        box = draw_box(photo.size, 1.0, draws)
        image = photo.resize((32, 32), Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
        if draws.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        data[row] = np.asarray(image).transpose(2, 0, 1).reshape(-1)
        labels.append(label)
        filenames.append(f"{CLASSES[label]}_s_{position:06d}.png")
    return {"batch_label": batch_label, "labels": labels, "data": data, "filenames": filenames}


def _dump(path: Path, content: dict[str, object]) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        pickle.dump(content, file, protocol=2)  # the original's protocol
    part.replace(path)


def _md5(path: Path) -> str:
    try:
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    except FileNotFoundError as error:
        raise SampleDataError(f"{path} is missing. Make it first: make_cifar10({str(path.parent.parent)!r})") from error
