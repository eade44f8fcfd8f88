"""A data set that only its own code can make, for pools that run user code. The pool's processes import this module."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from tests.ddlp.faults.scene import transform

__all__ = ["OwnCode"]


class OwnCode(Dataset[Any]):
    """Images, with their numbers as targets."""

    def __init__(self, paths: list[str]) -> None:
        self.paths, self.transform = paths, transform()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), index
