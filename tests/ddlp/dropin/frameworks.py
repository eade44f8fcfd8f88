"""Shared by the tests of frameworks: a model, a data set, a user's sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Sampler
from torchvision import transforms

from ddlp import ImageFiles
from tests.ddlp.dropin.small_sets import SAMPLES

SMALL = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])


def need(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed; pip install {package}")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 3)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.layer(pixel_values.flatten(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def classes(paths: list[str]) -> ImageFiles:
    return ImageFiles(paths, [k % 3 for k in range(len(paths))], SMALL)


class EveryOther(Sampler):
    """A user's sampler."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, SAMPLES, 2))

    def __len__(self) -> int:
        return len(range(0, SAMPLES, 2))
