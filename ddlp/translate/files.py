"""Data sets of image files: torchvision's folders and `ddlp.ImageFiles`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torchvision
from torchvision import datasets as tv

from csd_engine.data.base import Source
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import open_sample
from ddlp.datasets import ImageFiles
from ddlp.errors import Untranslatable
from ddlp.translate.leaf import Leaf, Upload, name_of

__all__ = ["FileLeaf", "folder", "image_files"]


@dataclass(frozen=True, eq=False)
class FileLeaf(Leaf):
    """Image files of any format that Pillow reads, opened as RGB."""

    files: Sequence[str | os.PathLike[str]]

    def __len__(self) -> int:
        return len(self.files)

    def open(self, index: int) -> Source:
        """See `Leaf.open`."""
        return open_sample(os.fspath(self.files[index]))

    def where(self, index: int) -> str:
        """See `Leaf.where`."""
        return os.fspath(self.files[index])

    def paths(self, indices: list[int]) -> list[str] | None:
        """See `Leaf.paths`."""
        files = self.files
        return [os.fspath(files[k]) for k in indices]

    def describe(self, upload: Upload) -> FileSet:
        """See `Leaf.describe`."""
        return upload.files(self.files)


class _SamplePaths(Sequence):
    """The paths of (path, target) pairs, without a copy of a million strings."""

    def __init__(self, samples: Sequence[tuple[str, Any]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index][0]

    def __iter__(self) -> Iterator[str]:
        return map(itemgetter(0), self._samples)


def folder(dataset: tv.DatasetFolder) -> FileLeaf:
    """An ImageFolder or DatasetFolder; Untranslatable where it opens its images in another way than torchvision's own."""
    if dataset.loader is not tv.folder.default_loader:
        raise Untranslatable(name_of(dataset), "it has a loader= of its own", ("leave loader= out",))
    if torchvision.get_image_backend() != "PIL":
        raise Untranslatable(
            name_of(dataset), f"torchvision's image backend is {torchvision.get_image_backend()}",
            ("torchvision.set_image_backend('PIL')",),
        )
    samples = dataset.samples
    return FileLeaf(
        name_of(dataset), dataset.transform, lambda those: [samples[k][1] for k in those], dataset.target_transform,
        _SamplePaths(samples),
    )  # fmt: skip


def image_files(dataset: ImageFiles) -> FileLeaf:
    """An ImageFiles."""
    targets = dataset.targets
    return FileLeaf(
        "ImageFiles", dataset.transform, lambda those: [targets[k] for k in those], dataset.target_transform, dataset.paths
    )
