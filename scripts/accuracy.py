"""Does training reach the same accuracy with DDLPLoader as with DataLoader?

Trains the same small network with torch.utils.data.DataLoader and with DDLPLoader(strategy="wrr"); nothing else differs. The
data sets are an ImageFolder of JPEG files and files in CIFAR-10's format, each under several seeds. The accuracies are
compared by Welch's t-test at the 1 % level (two-sided, degrees of freedom by Welch and Satterthwaite): in one of a
hundred comparisons it calls two equally good loaders different.

    python scripts/accuracy.py
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder
from tqdm import tqdm

from ddlp import DDLPLoader
from ddlp.sampledata import cifar10_checksums, make_cifar10, make_imagefolder

# Two-sided 1 % points of Student's t for 1, 2, ... degrees of freedom.
_T_99 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921)
_TO_TENSOR = (transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))

LoaderType = Callable[..., DataLoader]
Batches = Sequence[tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Accuracies (0 to 1) on one data set, one for each seed."""

    dataset: str
    dataloader: tuple[float, ...]
    ddlp: tuple[float, ...]
    val_images: int

    @property
    def difference(self) -> float:
        """Mean accuracy with DDLPLoader minus that with DataLoader."""
        return statistics.mean(self.ddlp) - statistics.mean(self.dataloader)

    @property
    def allowed(self) -> float:
        """The largest difference that counts as noise (see `noise_limit`)."""
        return noise_limit(self.dataloader, self.ddlp, self.val_images)

    @property
    def agree(self) -> bool:
        """Whether the difference of means is within noise."""
        return abs(self.difference) <= self.allowed

    def __str__(self) -> str:
        """One line for people."""
        sides = ", ".join(
            f"{name} {statistics.mean(values):.1%} +- {statistics.stdev(values):.1%}"
            for name, values in (("DataLoader", self.dataloader), ("DDLPLoader wrr", self.ddlp))
        )
        verdict = "same within noise" if self.agree else "DIFFERENT"
        return f"{self.dataset}: {sides}; difference {self.difference:+.1%}, noise up to {self.allowed:.1%}: {verdict}"


def noise_limit(first: Sequence[float], second: Sequence[float], val_images: int) -> float:
    """Return the largest difference of mean accuracies at which two sets of runs agree: t times its standard error.

    An accuracy over `val_images` images has a standard error of its own, sqrt(p (1 - p) / val_images). Each side's variance
    is at least the square of that. Else the limit would be 0 if all runs had the same accuracy by chance.
    """
    variances = []
    for values in (first, second):
        mean = statistics.mean(values)
        floor = max(mean * (1 - mean), 1 / val_images) / val_images
        variances.append(max(statistics.variance(values), floor) / len(values))
    total = sum(variances)
    freedom = total**2 / sum(
        variance**2 / (len(values) - 1) for variance, values in zip(variances, (first, second), strict=True)
    )
    return _T_99[min(max(int(freedom), 1), len(_T_99)) - 1] * math.sqrt(total)


def network(classes: int) -> nn.Module:
    """A small convolutional network for images of any size."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def accuracy(loader_type: LoaderType, train: Dataset, val: Batches, seed: int, epochs: int, **arguments: Any) -> float:
    """Train a network from `seed` with loaders of `loader_type` and return its accuracy on the batches of `val`."""
    torch.manual_seed(seed)
    model = network(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = loader_type(train, batch_size=25, shuffle=True, num_workers=1, **arguments)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    right = seen = 0
    with torch.inference_mode():
        for images, labels in val:
            right += int((model(images).argmax(1) == labels).sum())
            seen += len(labels)
    return right / seen


def datasets(directory: Path, images: int, val_images: int) -> dict[str, tuple[Dataset, Dataset]]:
    """Make both data sets below `directory`; returns (train, val) of each by name."""
    random_crop = transforms.RandomResizedCrop(64, scale=(0.3, 1.0))
    train_jpeg = transforms.Compose([random_crop, transforms.RandomHorizontalFlip(), *_TO_TENSOR])
    val_jpeg = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), *_TO_TENSOR])
    train_cifar = transforms.Compose([transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), *_TO_TENSOR])
    make_imagefolder(directory / "jpeg", images, 50, val_images=val_images, progress=False)
    make_cifar10(directory / "cifar", 5 * images // 5 * 5, val_images)
    with cifar10_checksums(directory / "cifar"):
        cifar = (
            CIFAR10(directory / "cifar", train=True, transform=train_cifar),
            CIFAR10(directory / "cifar", train=False, transform=transforms.Compose(_TO_TENSOR)),
        )
    jpeg = (ImageFolder(directory / "jpeg/train", train_jpeg), ImageFolder(directory / "jpeg/val", val_jpeg))
    return {"ImageFolder": jpeg, "CIFAR-10 files": cifar}


def compare(directory: Path, *, images: int, val_images: int, seeds: int, epochs: int) -> list[Comparison]:
    """Make the data sets and train on each with both loaders under each seed."""
    comparisons = []
    sets = datasets(directory, images, val_images)
    progress = tqdm(total=len(sets) * 2 * seeds, desc="training runs", unit="run")
    for name, (train, val_set) in sets.items():
        # By a plain loader, and only once: what is compared is the training, not the evaluation.
        val = [(images, labels) for images, labels in DataLoader(val_set, batch_size=100)]
        plain, ours = [], []
        for seed in range(seeds):
            plain.append(accuracy(DataLoader, train, val, seed, epochs))
            progress.update()
            ours.append(accuracy(DDLPLoader, train, val, seed, epochs, strategy="wrr"))
            progress.update()
        comparisons.append(Comparison(name, tuple(plain), tuple(ours), val_images))
    progress.close()
    return comparisons


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison; exit status 1 if a data set shows a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", type=int, default=400, help="JPEG train images; CIFAR-10 files hold five times that"
    )
    parser.add_argument("--val-images", type=int, default=400, help="images to evaluate on (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs with each loader, at least 2 (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs a run (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: a standard deviation needs at least 2 runs")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ddlp-accuracy-") as directory:
        comparisons = compare(
            Path(directory),
            images=options.images,
            val_images=options.val_images,
            seeds=options.seeds,
            epochs=options.epochs,
        )
    print(*comparisons, sep="\n")
    return 0 if all(comparison.agree for comparison in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
