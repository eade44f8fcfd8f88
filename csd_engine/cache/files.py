"""Files of a slow storage, kept with the very bytes that they have there: they need not be requested again."""

from __future__ import annotations

import os
from typing import Iterator, List, Optional

import numpy as np

from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import Shelf
from csd_engine.data.base import Origins, Places, Reader, Source
from csd_engine.data.safe_open import OpenFile
from csd_engine.kernels.files import Parts

__all__ = ["FILES", "REQUEST_S", "KeptFiles"]

FILES = "files as they are stored"

REQUEST_S = 0.0025  # that a request takes, where nobody has measured it: 20 ms of latency, 8 requests at a time
_AT_ONCE_BYTES = 2 << 20  # of files that are in memory beside the storage's own


class KeptFiles(Reader):
    """Some samples' files: from a shelf, or from another reader where the shelf has them not. For one thread.

    Args:
        shelf: of the data set, with one channel.
        reader: of the others, which it has brought into memory.
        sources: the samples, int64 (n,).
        origins: what they are.
    """

    def __init__(self, shelf: Shelf, reader: Reader, sources: np.ndarray, origins: Origins) -> None:
        self._shelf, self._reader, self._sources, self._origins = shelf, reader, sources, origins
        self.beneath = reader.beneath
        self._shelved = shelf.find(sources, origins)
        self._positions = {source: position for position, source in enumerate(sources.tolist())}

    def __len__(self) -> int:
        return len(self._reader)

    def keep_missing(self) -> int:
        """Keep what the shelf lacks and the other reader has brought, and return how many files that are."""
        hit = self._shelved.hit
        missing = np.array(sorted(position for position in self._positions.values() if not hit[position]), np.int64)
        if not len(missing) or not self._shelf.keeps:
            return 0
        try:
            places = self._reader.places(self._sources[missing].tolist())
        except Exception:  # the sample that fails reports it at its turn
            return 0
        if places is None or places.parts is None:
            return 0
        came, waiting, size = 0, [], 0
        for sample in self._brought(missing, places.parts):
            came, size = came + 1, size + sample.pixels.nbytes
            waiting.append(sample)
            if size > _AT_ONCE_BYTES:
                self._shelf.keep(waiting, REQUEST_S * len(waiting))
                waiting, size = [], 0
        self._shelf.keep(waiting, REQUEST_S * len(waiting))
        return came

    def _brought(self, positions: np.ndarray, parts: Parts) -> Iterator[Sample]:
        """Yield the files that are in memory. One that failed has no descriptor; an empty one is no image."""
        columns = positions, parts.descriptors, parts.offsets, parts.sizes
        for position, descriptor, offset, size in zip(*(column.tolist() for column in columns)):
            if descriptor >= 0 and size > 0:
                row = np.empty((1, size, 1), np.uint8)
                if os.preadv(descriptor, [row], offset) == size:
                    yield Sample(int(self._sources[position]), self._origins.one(position), row)

    def open(self, index: int) -> Source:
        """See `Reader.open`."""
        position = self._positions.get(index)
        if position is None or not self._shelved.hit[position]:
            return self._reader.open(index)
        shelved = self._shelved
        where = int(shelved.descriptor[position]), int(shelved.width[position]), int(shelved.offset[position])
        return OpenFile(self.where(index), os.dup(where[0]), *where[1:])

    def places(self, indices: List[int]) -> Optional[Places]:
        """See `Reader.places`."""
        shelved = self._shelved
        at = np.array([self._positions[index] for index in indices], np.int64)
        hits, missing = np.flatnonzero(shelved.hit[at]), np.flatnonzero(~shelved.hit[at])
        kept = at[hits]
        sizes, upright = shelved.width[kept].astype(np.int64), np.zeros(len(hits), np.int32)
        parts = Parts(shelved.offset[kept], sizes, shelved.descriptor[kept], upright)
        others = self._reader.places([indices[position] for position in missing.tolist()]) if len(missing) else Places([])
        both = Places.join([Places([""] * len(hits), parts), others])
        if both is None or both.parts is None:
            return None
        order = np.argsort(np.concatenate((hits, missing)))
        return Places([both.paths[k] for k in order.tolist()], Parts(*(column[order] for column in both.parts)))

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        return self._reader.where(index)
