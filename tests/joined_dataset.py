"""A new kind of data set, as docs/extending.md teaches it. The host's half: the user's Dataset, and its leaf."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from csd_engine.data.base import Source
from csd_engine.data.image_files import open_sample
from ddlp.translate.leaf import Leaf, Upload
from tests.joined_files import JoinedSet

__all__ = ["JoinedImages", "JoinedLeaf", "joined_images"]


class JoinedImages(Dataset):
    """Image files, one after another in one file. Samples are (image, target)."""

    def __init__(self, path: str, sizes: Sequence[int], targets: Sequence[Any], transform: Callable | None = None) -> None:
        self.path, self.sizes, self.targets, self.transform = path, tuple(sizes), targets, transform
        self.offsets = [0, *itertools.accumulate(sizes)]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        with open(self.path, "rb") as stream:
            stream.seek(self.offsets[index])
            image: Any = Image.open(io.BytesIO(stream.read(self.sizes[index]))).convert("RGB")
        return (image if self.transform is None else self.transform(image)), self.targets[index]


@dataclass(frozen=True, eq=False)
class JoinedLeaf(Leaf):
    """The same data set as ddlp sees it."""

    dataset: JoinedImages

    def __len__(self) -> int:
        return len(self.dataset)

    def open(self, index: int) -> Source:
        dataset = self.dataset
        return open_sample(dataset.path, offset=dataset.offsets[index], size=dataset.sizes[index])

    def where(self, index: int) -> str:
        return f"{self.dataset.path}, sample {index}"

    def describe(self, upload: Upload) -> JoinedSet:
        return JoinedSet(os.path.abspath(self.dataset.path), self.dataset.sizes)


def joined_images(dataset: JoinedImages) -> JoinedLeaf:
    targets = dataset.targets
    return JoinedLeaf("JoinedImages", dataset.transform, lambda those: [targets[k] for k in those], None, dataset)
