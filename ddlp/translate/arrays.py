"""Data sets whose images are one array: torchvision's small ones and `ddlp.ImageArrays`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Source
from ddlp.errors import Untranslatable
from ddlp.translate.leaf import WAYS, Leaf, Upload, name_of

__all__ = ["ArrayLeaf", "fer2013", "image_arrays", "qmnist"]


@dataclass(frozen=True, eq=False)
class ArrayLeaf(Leaf):
    """Images in one array, uint8 (n, h, w) or (n, h, w, 3)."""

    array: np.ndarray

    def __len__(self) -> int:
        return len(self.array)

    @property
    def mode(self) -> str:
        """See `Leaf.mode`."""
        return "L" if self.array.ndim == 3 else "RGB"

    @property
    def size(self) -> tuple[int, int]:
        """See `Leaf.size`."""
        return self.array.shape[2], self.array.shape[1]

    def open(self, index: int) -> Source:
        """See `Reader.open`."""
        return self.array[index]

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        return f"row {index} of {self.name}"

    def rows(self) -> np.ndarray:
        """See `Reader.rows`."""
        return self.array

    def describe(self, upload: Upload) -> ArraySet:
        """See `Leaf.describe`."""
        return upload.array(self.array)


def image_arrays(
    images: str, targets: str, *, channels_first: bool = False, integers: bool = False
) -> Callable[[Any], ArrayLeaf]:
    """Return the function that makes a leaf of a data set with its images and targets in attributes of these names.

    Args:
        images, targets: the names.
        channels_first: the images are (n, 3, h, w).
        integers: the data set gives int of each target.

    That function raises Untranslatable if the images are of another type or shape.
    """

    def leaf(dataset: Any) -> ArrayLeaf:
        array = getattr(dataset, images)
        array = array.numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
        if channels_first:
            array = array.transpose(0, 2, 3, 1)
        if array.dtype != np.uint8 or not (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3)):
            raise Untranslatable(name_of(dataset), f"its {images} are {array.dtype} {array.shape}", (WAYS,))
        values = getattr(dataset, targets)
        if integers and isinstance(values, torch.Tensor):
            values = values.numpy()  # a look-up in a tensor takes longer than the pixels of a small image

        def of(those: list[int]) -> list[Any]:
            if values is None:
                return [None] * len(those)
            chosen = [values[k] for k in those]
            return list(map(int, chosen)) if integers else chosen

        return ArrayLeaf(name_of(dataset), dataset.transform, of, dataset.target_transform, array)

    return leaf


def qmnist(dataset: Any) -> ArrayLeaf:
    """torchvision's QMNIST: a target has eight numbers; the data set gives the first one alone if its ``compat`` is set."""
    leaf = image_arrays("data", "targets")(dataset)
    if not dataset.compat:
        return leaf
    digits = dataset.targets[:, 0].numpy()
    return replace(leaf, targets=lambda those: [int(digits[k]) for k in those])


def fer2013(dataset: Any) -> ArrayLeaf:
    """torchvision's FER2013: (image, label) pairs, each image a uint8 tensor (48, 48)."""
    samples = dataset._samples
    images = np.stack([image.numpy() for image, _ in samples]) if samples else np.zeros((0, 48, 48), np.uint8)
    return ArrayLeaf(
        name_of(dataset), dataset.transform, lambda those: [samples[k][1] for k in those], dataset.target_transform, images
    )
