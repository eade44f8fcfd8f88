"""Training reaches the same accuracy with DDLPLoader as with DataLoader: a draw that repeats, or none at all, would cost some.

The same small network is trained under several seeds; nothing but the loader differs. Accuracies are compared by Welch's t-test
at the 1 % level: in one of a hundred comparisons it calls two equally good loaders different, so the seeds are fixed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder

from ddlp import DDLPLoader
from ddlp.sampledata import cifar10_checksums, make_cifar10, make_imagefolder

SEEDS, EPOCHS, IMAGES = 3, 2, 200
# Two-sided 1 % points of Student's t for 1, 2, ... degrees of freedom.
T_99 = (63.66, 9.925, 5.841, 4.604)
TO_TENSOR = (transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))

Batches = Sequence[tuple[torch.Tensor, torch.Tensor]]


def noise_limit(first: Sequence[float], second: Sequence[float], images: int) -> float:
    """The largest difference of mean accuracies at which two sets of runs agree: t times its standard error.

    An accuracy over `images` images has a standard error of its own, sqrt(p (1 - p) / images). Each side's variance is at least
    the square of that. Else the limit would be 0 if all runs had the same accuracy by chance.
    """
    variances = []
    for values in (first, second):
        mean = statistics.mean(values)
        floor = max(mean * (1 - mean), 1 / images) / images
        variances.append(max(statistics.variance(values), floor) / len(values))
    total = sum(variances)
    freedom = total**2 / (variances[0] ** 2 / (len(first) - 1) + variances[1] ** 2 / (len(second) - 1))
    return T_99[min(max(int(freedom), 1), len(T_99)) - 1] * math.sqrt(total)


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def accuracy(kind: Callable[..., Any], train: Dataset, val: Batches, seed: int, **arguments: Any) -> float:
    """Train a network from a seed with loaders of this kind; return its accuracy on the batches of `val`."""
    torch.manual_seed(seed)
    model = network(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = kind(train, batch_size=25, shuffle=True, num_workers=1, **arguments)
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    with torch.inference_mode():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in val)
    return right / sum(len(labels) for _, labels in val)


def jpegs(directory: Path) -> tuple[Dataset, Dataset]:
    crop = transforms.RandomResizedCrop(64, scale=(0.3, 1.0))
    train = transforms.Compose([crop, transforms.RandomHorizontalFlip(), *TO_TENSOR])
    val = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), *TO_TENSOR])
    make_imagefolder(directory, IMAGES, 50, val_images=IMAGES, progress=False)
    return ImageFolder(directory / "train", train), ImageFolder(directory / "val", val)


def cifar10(directory: Path) -> tuple[Dataset, Dataset]:
    train = transforms.Compose([transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), *TO_TENSOR])
    make_cifar10(directory, 5 * IMAGES, IMAGES)
    with cifar10_checksums(directory):
        val = CIFAR10(directory, train=False, transform=transforms.Compose(TO_TENSOR))
        return CIFAR10(directory, train=True, transform=train), val


def test_limit_is_t_times_the_standard_error() -> None:
    first, second = (0.80, 0.90, 1.00), (0.70, 0.80, 0.90)
    # Equal variances of 0.01, three runs each: 4 degrees of freedom, t = 4.604. With so many images the lower limit is small.
    assert noise_limit(first, second, 10**6) == pytest.approx(4.604 * math.sqrt(2 * 0.01 / 3))
    # Runs that fall on one value leave room for the size of the validation set.
    assert noise_limit((0.9,) * 3, (0.9,) * 3, 100) == pytest.approx(4.604 * math.sqrt(2 * 0.9 * 0.1 / 100 / 3))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On two busy cores torch's threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("make", (jpegs, cifar10))
def test_training_reaches_the_same_accuracy(make: Any, one_thread: None, tmp_path: Path) -> None:
    train, val_set = make(tmp_path)
    val = list(DataLoader(val_set, batch_size=100))  # once: what is compared is the training, not the evaluation
    plain = [accuracy(DataLoader, train, val, seed) for seed in range(SEEDS)]
    ours = [accuracy(DDLPLoader, train, val, seed, strategy="wrr") for seed in range(SEEDS)]
    assert min(plain) > 0.3, "the plain loader did not learn"
    assert abs(statistics.mean(ours) - statistics.mean(plain)) <= noise_limit(plain, ours, IMAGES), (plain, ours)
