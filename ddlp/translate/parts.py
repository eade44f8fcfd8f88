"""Data sets whose images are parts of large files: `ddlp.TarImages`, Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from csd_engine.data.base import Places, Source
from csd_engine.data.parts import PartFiles, PartSet, pack_parts
from csd_engine.errors import SampleError
from ddlp.data.tars import TarImages
from ddlp.translate.leaf import DictSample, Leaf, Upload

__all__ = ["PartLeaf", "tar_images"]


@dataclass(frozen=True, eq=False)
class PartLeaf(Leaf):
    """Image files that are parts of larger files, opened as RGB.

    Args:
        files: the larger files.
        which, offsets, sizes: int64 (n,): the place of each image's file in ``files``, and the image's bytes in that file.
        place: gives where a sample lies, for messages.
        upright: images are turned by their EXIF orientation.
        dict_sample: see `Leaf.keys`.
    """

    files: Sequence[str]
    which: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    place: Callable[[int], str]
    upright: bool = False
    dict_sample: DictSample | None = None
    _open: PartFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_open", PartFiles(lambda file: self.files[file], upright=self.upright))

    def __len__(self) -> int:
        return len(self.which)

    @property
    def keys(self) -> DictSample | None:
        """See `Leaf.keys`."""
        return self.dict_sample

    def open(self, index: int) -> Source:
        """See `Reader.open`."""
        try:
            return self._open.open(int(self.which[index]), int(self.offsets[index]), int(self.sizes[index]), None)
        except SampleError as error:
            raise SampleError(self.where(index), error.why) from error.__cause__

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        return self.place(index)

    def places(self, indices: list[int]) -> Places | None:
        """See `Reader.places`."""
        return self._open.places(self.which[indices].tolist(), self.offsets[indices], self.sizes[indices])

    def describe(self, upload: Upload) -> PartSet:
        """See `Leaf.describe`."""
        table = upload.array(pack_parts(self.which, self.offsets, self.sizes))
        return PartSet(upload.files(self.files, ""), table, self.upright)


def tar_images(dataset: TarImages) -> PartLeaf:
    """The leaf of a TarImages."""
    index, targets = dataset.index, dataset.targets
    return PartLeaf(
        "TarImages", dataset.transform, lambda those: [targets[k] for k in those], dataset.target_transform,
        dataset.paths, index.shards, index.offsets, index.sizes, dataset.where,
    )  # fmt: skip
