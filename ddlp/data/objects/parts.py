"""Parts of objects, by number: samples in shards, or the pieces in which a shard is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from csd_engine.data.objects.stored import Part, Stored

__all__ = ["Parts"]


@dataclass(frozen=True)
class Parts:
    """Parts of objects. It is a `csd_engine.data.objects.stored.Listing`.

    Attributes:
        objects: the whole ones.
        which, offsets, sizes: int64 (n,): the number of each part's object, and its bytes there.
        where: gives a part's place below the data set's URL, for messages.
    """

    objects: list[Stored]
    which: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    where: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, index: int) -> Part:
        return Part(self.objects[int(self.which[index])], int(self.offsets[index]), int(self.sizes[index]))

    def fingerprint(self) -> str:
        """Return 32 hex digits that tell what the parts' numbers mean."""
        digest = hashlib.blake2b(digest_size=16, person=b"ddlp parts")
        for stored in self.objects:
            digest.update(f"{stored.size} {stored.tag}\0{stored.key}\0".encode("utf-8", "surrogatepass"))
        for column in (self.which, self.offsets, self.sizes):
            digest.update(column.astype("<i8").tobytes())
        return digest.hexdigest()
