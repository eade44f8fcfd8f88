"""The base of data sets whose images come from a storage by requests."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from csd_engine.data.base import Reader, at_hand
from csd_engine.data.objects.dataset import pack_objects
from csd_engine.data.objects.requests import ObjectReader, Requests, sample_bytes
from csd_engine.data.parts import pack_parts
from ddlp.data.images import TargetedImages, image_in_memory
from ddlp.data.objects.manifest import Manifest
from ddlp.data.objects.parts import Parts
from ddlp.data.objects.storage import Storage

__all__ = ["StoredImages"]


class Tables(NamedTuple):
    """What an engine must be told of the images to read them itself, as `csd_engine.data.objects.dataset.ObjectSet` has it.

    Attributes:
        objects: made by `pack_objects`.
        parts: made by `pack_parts`; None: each sample is an object.
    """

    objects: np.ndarray
    parts: np.ndarray | None


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
        listing: Manifest | Parts,
        memory_bytes: int,
        targets: Sequence[Any],
        transform: Callable | None,
        target_transform: Callable | None,
    ) -> None:
        super().__init__(targets, transform, target_transform)
        self._storage, self._listing, self._memory_bytes = storage, listing, memory_bytes

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("reader", "tables")}

    @functools.cached_property
    def reader(self) -> ObjectReader:
        """Reads the images, for ddlp's loader."""
        return ObjectReader(Requests(self._storage, self._memory_bytes), self._listing)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hex digits over the objects' keys, sizes and ETags, and over the places of parts in them."""
        return self._listing.fingerprint()

    @property
    def directory(self) -> str:
        """The URL below which all images lie."""
        return self._storage.url

    @property
    def names(self) -> list[str]:
        """The objects' keys below `directory`, behind a slash."""
        return [f"/{stored.key}" for stored in self._listing.objects]

    @functools.cached_property
    def tables(self) -> Tables | None:
        """The objects in numbers, for an engine; None: a key is no path below `directory`, so that no engine can be told it."""
        if any(posixpath.normpath(name) != name for name in self.names):
            return None
        parts, objects = self._listing, pack_objects(self._listing.objects)
        return Tables(objects, pack_parts(parts.which, parts.offsets, parts.sizes) if isinstance(parts, Parts) else None)

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
    return image_in_memory(sample_bytes(reader, index), reader.where(index))
