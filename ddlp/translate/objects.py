"""`ddlp.ImageObjects` and `ddlp.TarObjects` as leaves: their bytes come by requests, and go to an engine with the leases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from csd_engine.data.base import Dataset, Fetch, Reader, Source, Versions
from csd_engine.data.carried import CarriedSet
from ddlp.objects.stored_images import StoredImages
from ddlp.translate.leaf import Leaf, Upload

__all__ = ["ObjectLeaf", "stored_images"]


@dataclass(frozen=True, eq=False)
class ObjectLeaf(Leaf):
    """Objects of a storage, or parts of them, opened as RGB.

    Args:
        reader: reads them.
        fingerprint: see `StoredImages.fingerprint`.
    """

    reader: Reader
    fingerprint: str

    def __len__(self) -> int:
        return len(self.reader)

    def open(self, index: int) -> Source:
        """See `Leaf.open`."""
        return self.reader.open(index)

    def where(self, index: int) -> str:
        """See `Leaf.where`."""
        return self.reader.where(index)

    @property
    def slow(self) -> bool:
        """See `Leaf.slow`."""
        return True

    def versions(self, indices: list[int]) -> Versions | None:
        """See `Leaf.versions`."""
        return self.reader.versions(indices)

    def fetch(self, indices: list[int], ahead: bool) -> Fetch | None:
        """See `Leaf.fetch`."""
        return self.reader.fetch(indices, ahead)

    def describe(self, upload: Upload) -> Dataset:
        """See `Leaf.describe`. No URL: an engine gets the bytes from this host, which alone has the credentials."""
        return CarriedSet(self.fingerprint, len(self))


def stored_images(name: str) -> Callable[[StoredImages], ObjectLeaf]:
    """Return what makes the leaf of data sets of this name."""
    return functools.partial(_leaf, name)


def _leaf(name: str, dataset: StoredImages) -> ObjectLeaf:
    targets = dataset.targets
    return ObjectLeaf(
        name, dataset.transform, lambda those: [targets[k] for k in those], dataset.target_transform,
        dataset.reader, dataset.fingerprint,
    )  # fmt: skip
