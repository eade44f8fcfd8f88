"""`ObjectSet`: objects of a storage, or parts of them, that the engine requests itself.

The host tells the URL, and sends the objects' names, sizes and ETags' digests. Where the storage is, and with which credentials
it is read, the engine's own environment says (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID ...): a host can't have it ask elsewhere.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Access, Dataset, Origins, PathLike, Reader, fingerprint
from csd_engine.data.checks import bad, checked_fields
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import MAX_FILE_BYTES
from csd_engine.data.manifest import Manifest
from csd_engine.data.objects.requests import ObjectReader, Requests
from csd_engine.data.objects.store import ObjectStore
from csd_engine.data.objects.stored import Part, Stored, mark_of, versions_of
from csd_engine.data.objects.urls import check_url, climbs
from csd_engine.data.parts import PART_BYTES
from csd_engine.errors import DatasetError

__all__ = ["OBJECT_BYTES", "ObjectSet", "pack_objects"]

OBJECT_BYTES = 16  # a row of the table: two little-endian int64
_STORAGES = 16  # that stay open
_MEMORY_BYTES = 64 << 20  # of samples that nobody has asked for yet
_STACK_BYTES = 1 << 20  # of each thread that makes requests: they count as the worker's memory, and there are up to 256


def pack_objects(objects: Sequence[Stored]) -> np.ndarray:
    """Return the table of an `ObjectSet`, as an array to send: uint8 (n, 1, OBJECT_BYTES), each one's size and ETag's mark."""
    rows = np.array([(stored.size, mark_of(stored.tag) if stored.tag else 0) for stored in objects], dtype="<i8").reshape(-1, 2)
    return rows.view(np.uint8).reshape(len(rows), 1, OBJECT_BYTES)


@dataclass(frozen=True)
class ObjectSet(Dataset):
    """Objects below ``url``.

    Attributes:
        url: of a bucket and prefix, or of a web server's directory.
        names: their keys, as if they were files below "/".
        table: made by `pack_objects`.
        parts: made by `csd_engine.data.parts.pack_parts`, if samples are parts of objects; None: each is a whole one.
    """

    type: ClassVar[str] = "objects"

    url: str
    names: FileSet
    table: ArraySet
    parts: Optional[ArraySet] = None

    def __len__(self) -> int:
        return len(self.names) if self.parts is None else len(self.parts)

    def to_data(self) -> Dict[str, Any]:
        """See `Dataset.to_data`."""
        parts = None if self.parts is None else self.parts.to_data()
        return {
            "type": self.type, "url": self.url, "names": self.names.to_data(), "table": self.table.to_data(), "parts": parts,
        }  # fmt: skip

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> ObjectSet:
        """See `Dataset.parse`."""
        url, names, table, parts = checked_fields(data, ("url", "names", "table", "parts"))
        if not isinstance(url, str) or len(url) > 4096 or not url.isprintable():
            raise bad("expected a URL", url)
        check_url(url)
        arrays = [table] if parts is None else [table, parts]
        # They are not parsed before: each may be nested.
        for nested, kind in ((names, FileSet.type), *((array, ArraySet.type) for array in arrays)):
            if not isinstance(nested, dict) or nested.get("type") != kind:
                raise bad(f"expected {kind} in {cls.type}", nested)
        dataset = ObjectSet(url, FileSet.parse(names, parse_part), *(ArraySet.parse(array, parse_part) for array in arrays))
        if dataset.table.shape != (len(dataset.names), 1, OBJECT_BYTES):
            raise bad(f"expected a table of shape ({len(dataset.names)}, 1, {OBJECT_BYTES})", list(dataset.table.shape))
        if dataset.parts is not None and dataset.parts.shape[1:] != (1, PART_BYTES):
            raise bad(f"expected parts of shape (n, 1, {PART_BYTES})", list(dataset.parts.shape))
        return dataset

    def content(self) -> str:
        """See `Dataset.content`."""
        parts = "" if self.parts is None else fingerprint(self.parts)
        return f"objects {fingerprint(self.names)} {fingerprint(self.table)} {parts}"

    def host_paths(self, arrays: PathLike) -> List[str]:
        """See `Dataset.host_paths`."""
        return self.table.host_paths(arrays) + ([] if self.parts is None else self.parts.host_paths(arrays))

    def urls(self) -> List[str]:
        """See `Dataset.urls`."""
        return [self.url]

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """See `Dataset.uploads`."""
        uploads = self.names.uploads(arrays) + self.table.uploads(arrays)
        return uploads if self.parts is None else uploads + self.parts.uploads(arrays)

    def open(self, access: Access) -> Reader:
        """See `Dataset.open`."""
        requests = _requests(access.resolve_root(self.url))
        requests.storage.get_ready()
        return _OwnReader(requests, _Listed(self, access))


class _Listed:
    """The objects that a host has described. It is a `csd_engine.data.objects.stored.Listing`."""

    def __init__(self, dataset: ObjectSet, access: Access) -> None:
        self._dataset = dataset
        self._directory = dataset.names.root.strip("/")
        self._opened: List[Reader] = []
        self._names = Manifest.open(access.manifest_path(dataset.names.manifest))
        try:
            if len(self._names) != len(dataset.names):
                raise DatasetError(f"a manifest names {len(self._names)} objects, expected were {len(dataset.names)}.")
            self._table: Optional[np.ndarray] = self._rows(dataset.table.open(access))
            parts = None if dataset.parts is None else dataset.parts.open(access)
            self._parts: Optional[np.ndarray] = None if parts is None else self._rows(parts)
        except BaseException:
            self.close()
            raise

    def _rows(self, reader: Reader) -> np.ndarray:
        self._opened.append(reader)
        rows = reader.rows()
        assert rows is not None
        return rows

    def __len__(self) -> int:
        return len(self._dataset)

    def _part(self, index: int) -> Tuple[int, int, int]:
        """Return a sample's object, and its offset and size there; size -1: all of it. Nothing is checked but the object."""
        if not 0 <= index < len(self):
            raise IndexError(f"object {index} of {len(self)}")
        if self._dataset.parts is None:
            return index, 0, -1
        assert self._parts is not None  # it is not closed
        number, offset, size = _numbers(self._parts[index])
        if not 0 <= number < len(self._names):
            raise DatasetError(f"a table of parts names object {number} of {len(self._names)}. Describe the data set again.")
        return number, offset, size

    def _key(self, number: int) -> str:
        return f"{self._directory}/{self._names[number]}".strip("/")

    def __getitem__(self, index: int) -> Union[Stored, Part]:
        """See `Listing`. Raises DatasetError: what the host has told of it can't be."""
        number, offset, size = self._part(index)
        assert self._table is not None  # it is not closed
        whole, mark = _numbers(self._table[number])
        stored = Stored(self._key(number), whole, "", mark)
        if not stored.key or climbs(stored.key):
            raise DatasetError(f"{stored.key!r} is no key below {self._dataset.url}: a server could read it as another path.")
        sample = stored if self._dataset.parts is None else Part(stored, offset, size)
        if not (0 <= sample.size <= MAX_FILE_BYTES and 0 <= offset <= whole - sample.size):
            why = f"{sample.size} bytes of {whole} can't be read"
            raise DatasetError(f"{self.where(index)}: {why}. Describe the data set again.")
        return sample

    def where(self, index: int) -> str:
        """See `Listing.where`."""
        try:
            number, offset, size = self._part(index)
            return self._key(number) + ("" if self._dataset.parts is None else f", {size} bytes from {offset} on")
        except (DatasetError, IndexError) as error:
            return f"object {index} ({error})"

    def close(self) -> None:
        """Close the manifest and the tables, which stay mapped while somebody has a row of them."""
        self._names.close()
        self._table = self._parts = None
        for reader in self._opened:
            reader.close()


def _numbers(row: np.ndarray) -> List[int]:
    numbers: List[int] = np.ascontiguousarray(row).view("<i8").ravel().tolist()
    return numbers


@functools.lru_cache(maxsize=_STORAGES)
def _requests(url: str) -> Requests:
    """Return the connections to a storage. They stay, and know how many requests pay, from one epoch's job to the next."""
    threading.stack_size(_STACK_BYTES)
    return Requests(ObjectStore(url), _MEMORY_BYTES)


class _OwnReader(ObjectReader):
    """Has the versions of the samples that are asked for alone, and closes the listing with itself."""

    def __init__(self, requests: Requests, listed: _Listed) -> None:
        super().__init__(requests, listed)
        self._listed = listed

    def versions(self, indices: List[int]) -> Optional[Origins]:
        """See `Reader.versions`. A table of all of a large data set would take a worker's memory."""
        return versions_of(self._storage.url, (self._listed[index] for index in indices))

    def close(self) -> None:
        self._listed.close()
