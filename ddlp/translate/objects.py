"""`ddlp.ImageObjects` and `ddlp.TarObjects` as leaves: their bytes come by requests, of this host or of an engine that may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from csd_engine.data.base import Dataset, Fetch, Origins, Reader, Source
from csd_engine.data.carried import CarriedSet
from csd_engine.data.objects.dataset import ObjectSet
from ddlp.data.objects.stored_images import StoredImages
from ddlp.translate.leaf import Leaf, Upload, name_of

__all__ = ["ObjectLeaf", "stored_images"]


@dataclass(frozen=True, eq=False)
class ObjectLeaf(Leaf):
    """Objects of a storage, or parts of them, opened as RGB.

    Args:
        dataset: has them.
    """

    dataset: StoredImages
    slow = True

    @property
    def reader(self) -> Reader:
        """Reads them."""
        return self.dataset.reader

    def __len__(self) -> int:
        return len(self.reader)

    def open(self, index: int) -> Source:
        """See `Reader.open`."""
        return self.reader.open(index)

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        return self.reader.where(index)

    def versions(self, indices: list[int]) -> Origins | None:
        """See `Reader.versions`."""
        return self.reader.versions(indices)

    def fetch(self, indices: Sequence[int], ahead: bool = False) -> Fetch | None:
        """See `Reader.fetch`."""
        return self.reader.fetch(indices, ahead)

    def describe(self, upload: Upload) -> Dataset:
        """See `Leaf.describe`. An engine that may not read the URL itself gets the bytes from this host with the leases."""
        dataset = self.dataset
        tables = dataset.tables if upload.reads(dataset.directory) else None
        if tables is None:
            return CarriedSet(dataset.fingerprint, len(self))
        parts = None if tables.parts is None else upload.array(tables.parts)
        return ObjectSet(dataset.directory, upload.files(dataset.names, ""), upload.array(tables.objects), parts)


def stored_images(dataset: StoredImages) -> ObjectLeaf:
    """The leaf of an ImageObjects or a TarObjects."""
    targets = dataset.targets
    return ObjectLeaf(
        name_of(dataset), dataset.transform, lambda those: [targets[k] for k in those], dataset.target_transform, dataset
    )
