from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from ddlp.sampledata import CLASSES, SampleDataError, cifar10_checksums, make_cifar10


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cifar")
    make_cifar10(directory, 300, 60, seed=1)
    return directory


def test_torchvision_reads_the_files(root: Path) -> None:
    with cifar10_checksums(root):
        train, test = CIFAR10(root, train=True), CIFAR10(root, train=False)
    assert train.data.shape == (300, 32, 32, 3) and test.data.shape == (60, 32, 32, 3)
    assert train.data.dtype == np.uint8
    assert train.classes == list(CLASSES)
    assert set(train.targets) == set(test.targets) == set(range(10))
    assert len({image.tobytes() for image in np.concatenate([train.data, test.data])}) == 360


def test_batches_have_the_fields_of_the_original(root: Path) -> None:
    for number in range(1, 6):
        batch = pickle.loads((root / f"cifar-10-batches-py/data_batch_{number}").read_bytes(), encoding="latin1")
        assert set(batch) == {"batch_label", "labels", "data", "filenames"}
        assert batch["batch_label"] == f"training batch {number} of 5"
        assert batch["data"].shape == (60, 3072) and len(batch["labels"]) == len(batch["filenames"]) == 60


def test_same_arguments_give_the_same_files(root: Path, tmp_path: Path) -> None:
    make_cifar10(tmp_path, 300, 60, seed=1)
    names = sorted(path.name for path in (root / "cifar-10-batches-py").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "cifar-10-batches-py").iterdir())
    for name in names:
        inside = f"cifar-10-batches-py/{name}"
        assert (root / inside).read_bytes() == (tmp_path / inside).read_bytes()


def test_nearest_class_mean_beats_chance(root: Path) -> None:
    with cifar10_checksums(root):
        train, test = CIFAR10(root, train=True), CIFAR10(root, train=False)
    labels = np.array(train.targets)
    features, queries = (set_.data.reshape(len(set_.data), -1).astype(float) for set_ in (train, test))
    means = np.stack([features[labels == label].mean(axis=0) for label in range(10)])
    nearest = ((queries[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == np.array(test.targets)).mean() > 0.3


def test_checksums_are_put_back_after_an_error(root: Path) -> None:
    before = CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta
    with pytest.raises(ZeroDivisionError), cifar10_checksums(root):
        assert CIFAR10.train_list != before[0]
        raise ZeroDivisionError
    assert (CIFAR10.train_list, CIFAR10.test_list, CIFAR10.meta) == before
    with pytest.raises(RuntimeError, match="corrupted"):
        CIFAR10(root)


@pytest.mark.parametrize(("train", "test"), [(0, 1), (7, 1), (10, 0)])
def test_numbers_that_do_not_fit_the_format_are_refused(tmp_path: Path, train: int, test: int) -> None:
    with pytest.raises(SampleDataError, match=f"{train} train and {test} test images"):
        make_cifar10(tmp_path, train, test)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SampleDataError, match="data_batch_1 is missing"), cifar10_checksums(tmp_path):
        pass
