"""The base of data sets whose images come from a storage by requests."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from csd_engine.data.base import Reader, at_hand
from csd_engine.data.image_files import pillow_open
from ddlp.datasets import TargetedImages
from ddlp.objects.manifest import Listing
from ddlp.objects.requests import ObjectReader, sample_bytes
from ddlp.objects.storage import Storage

__all__ = ["StoredImages"]


class StoredImages(TargetedImages):
    """Images in a storage, a target for each.

    Args:
        storage: has the images.
        listing: says which.
        memory_bytes: of images that are in memory, or on their way, before a worker takes them up.
        targets, transform, target_transform: as for `ddlp.ImageFiles`.
    """

    def __init__(
        self,
        storage: Storage,
        listing: Listing,
        memory_bytes: int,
        targets: Sequence[Any],
        transform: Callable | None,
        target_transform: Callable | None,
    ) -> None:
        super().__init__(targets, transform, target_transform)
        self._storage, self._listing, self._memory_bytes = storage, listing, memory_bytes

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "reader"}

    @functools.cached_property
    def reader(self) -> ObjectReader:
        """Reads the images, for ddlp's loader."""
        return ObjectReader(self._storage, self._listing, self._memory_bytes)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hex digits over the objects' keys, sizes and ETags, and over the places of parts in them."""
        return self._listing.fingerprint()

    def image(self, index: int) -> Image.Image:
        """Return the sample's image, RGB."""
        return _image(self.reader, range(len(self))[index])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return samples whose images are requested all at once; torch's DataLoader asks so for a batch."""
        if any(getattr(type(self), name) is not getattr(StoredImages, name) for name in ("__getitem__", "image")):
            return [self[index] for index in indices]  # a subclass makes its samples itself
        places = [range(len(self))[index] for index in indices]
        with at_hand(self.reader, places) as reader:
            return [self._sample(_image(reader, place), place) for place in places]


def _image(reader: Reader, index: int) -> Image.Image:
    return pillow_open(io.BytesIO(sample_bytes(reader, index))).convert("RGB")
