"""The data and the pipeline of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

IMAGES = 2000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet1_transform() -> T.Compose:
    """The paper's ImageNet1 pipeline (Table IV)."""
    return T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])


def imagenet1(data: Path, batch: int, **options: Any) -> DataLoader:
    """A plain DataLoader over the train part with that pipeline."""
    return DataLoader(ImageFolder(str(data / "train"), imagenet1_transform()), batch, **options)


def ensure_data(data: Path, mean_kb: float) -> None:
    """Make the data set where it is not there yet. Raises SampleDataError."""
    from ddlp.sampledata import make_imagefolder

    if not (data / "train").is_dir() or not (data / "dataset.json").exists():
        make_imagefolder(data, IMAGES, mean_kb)
