"""Image files that the host sends with each lease, for an engine that sees no copy of the data set.

A *parcel* has the files of one lease or probe:

    count   int64
    rows    int64 (count, 3): the sample's source index; its bytes, -1 where the host can't read it; 1 if the image is turned by
            its EXIF orientation, else 0
    files   one after another, in the order of the rows

All numbers are little-endian.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, Iterable, List, Optional, Tuple

import numpy as np

from csd_engine.data.base import Access, Dataset, Places, Reader, Source
from csd_engine.data.checks import bad, check_countable, checked_fields, checked_fingerprint, is_count
from csd_engine.data.image_files import MAX_FILE_BYTES, content, part_of
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import DatasetError, SampleError
from csd_engine.kernels.files import Parts

__all__ = ["CarriedReader", "CarriedSet", "pack_parcel"]

_NUMBER_BYTES = 8
_ROW = 3  # numbers
_MOST_FILES = 1 << 17  # as many as a lease may have samples


@dataclass(frozen=True)
class CarriedSet(Dataset):
    """`count` image files whose bytes come with the leases. `files`: the fingerprint of the data set that they are of."""

    type: ClassVar[str] = "carried"

    files: str
    count: int

    def __len__(self) -> int:
        return self.count

    def to_data(self) -> Dict[str, Any]:
        """See `Dataset.to_data`."""
        return {"type": self.type, "files": self.files, "count": self.count}

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> CarriedSet:
        """See `Dataset.parse`."""
        files, count = checked_fields(data, ("files", "count"))
        if not is_count(count):
            raise bad("expected a number of files", count)
        check_countable(count, f"{count} files are too many to count")
        return CarriedSet(checked_fingerprint(files), count)

    def content(self) -> str:
        """See `Dataset.content`."""
        return f"carried {self.files} {self.count}"

    @property
    def carried(self) -> bool:
        """See `Dataset.carried`."""
        return True

    def open(self, access: Access) -> Reader:
        """See `Dataset.open`. The reader has no sample: `CarriedReader` has those of a parcel."""
        return _NothingHere(self.count)


class _NothingHere(Reader):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def open(self, index: int) -> Source:
        raise SampleError(self.where(index), "its bytes did not come with the lease")

    def where(self, index: int) -> str:
        return f"{index} of the host's data set"

    def close(self) -> None:
        pass


def pack_parcel(reader: Reader, indices: Iterable[int], most_bytes: int) -> bytes:
    """Read the files of these samples, each once, and return the parcel. Samples that are no files are left out.

    Args:
        reader: of the data set, on the host.
        indices: source indices.
        most_bytes: of the parcel.

    Raises:
        DatasetError: it would be longer.
    """
    rows: List[Tuple[int, int, int]] = []
    files: List[bytes] = []
    total = _NUMBER_BYTES
    for index in dict.fromkeys(indices):
        data, upright = None, False
        try:
            source = reader.open(index)
            if not isinstance(source, OpenFile):
                continue
            if source.size > MAX_FILE_BYTES:
                os.close(source.descriptor)
            else:
                upright, data = source.upright, content(source)
        except SampleError:
            pass  # the engine marks it, and the host finds out why
        rows.append((index, -1 if data is None else len(data), int(upright)))
        files.append(data or b"")
        total += _ROW * _NUMBER_BYTES + len(files[-1])
        if total > most_bytes:
            raise DatasetError(
                f"the files of a batch have more than {most_bytes} bytes, and no more may be sent with it. Give the engine a "
                "larger --quota-bytes, or use smaller batches."
            )
    head = np.array([len(rows)], dtype="<i8"), np.array(rows, dtype="<i8")
    return b"".join((*(numbers.tobytes() for numbers in head), *files))


class CarriedReader(Reader):
    """Opens the samples of the parcel at hand, and all others by another reader. It is for one thread.

    Args:
        reader: of the data set's description; closed with this one.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader, self.beneath = reader, reader.beneath
        self._descriptor, self._path, self._size = -1, "", 0
        self._rows: Dict[int, Tuple[int, int, bool]] = {}  # by source index: offset, size, upright

    def __len__(self) -> int:
        return len(self._reader)

    def take(self, descriptor: int, path: str) -> None:
        """Use a parcel in an open file from now on, which `drop` closes. Drops the one before.

        Raises:
            DatasetError: it is no parcel.
        """
        self.drop()
        self._descriptor, self._path = descriptor, path
        self._size = os.fstat(descriptor).st_size
        head = os.pread(descriptor, _NUMBER_BYTES, 0)
        count = int(np.frombuffer(head, "<i8")[0]) if len(head) == _NUMBER_BYTES else -1
        start = _NUMBER_BYTES * (1 + _ROW * count)
        if not 0 <= count <= _MOST_FILES or start > self._size:
            raise self._damaged(f"it has {self._size} bytes and names {count} files")
        table = np.frombuffer(os.pread(descriptor, start - _NUMBER_BYTES, _NUMBER_BYTES), "<i8").reshape(count, _ROW)
        sizes = np.maximum(table[:, 1], 0)
        if count and (table[:, 1].min() < -1 or table[:, 1].max() > self._size):
            raise self._damaged("a file in it has a wrong size")
        offsets = start + np.cumsum(sizes) - sizes
        if sum(sizes.tolist()) != self._size - start:
            raise self._damaged(f"its files have {sum(sizes.tolist())} bytes, and {self._size - start} came")
        each = zip(table[:, 0].tolist(), offsets.tolist(), table[:, 1].tolist(), table[:, 2].tolist())
        self._rows = {index: (offset, size, bool(upright)) for index, offset, size, upright in each}

    def _damaged(self, why: str) -> DatasetError:
        return DatasetError(f"the samples' bytes that came with the lease are damaged: {why}.")

    def drop(self) -> None:
        """Close the parcel. Its samples can't be opened any more."""
        self._rows = {}
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open(self, index: int) -> Source:
        if index not in self._rows:
            return self._reader.open(index)
        offset, size, upright = self._rows[index]
        if size < 0:
            raise SampleError(self.where(index), "the host could not read it, or it is too large to be sent")
        opened = OpenFile(self.where(index), os.dup(self._descriptor), self._size)
        try:
            return part_of(opened, MAX_FILE_BYTES, offset, size)._replace(upright=upright)
        except BaseException:
            os.close(opened.descriptor)
            raise

    def places(self, indices: List[int]) -> Optional[Places]:
        rows = [self._rows.get(index, (0, -1, False)) for index in indices]
        if any(size < 0 for _, size, _ in rows):
            return None  # one by one: the sample that fails reports it at its turn
        offsets, sizes, upright = (np.array(column, dtype=np.int64) for column in zip(*rows))
        shared = np.full(len(rows), self._descriptor, dtype=np.int32)
        return Places([self._path] * len(rows), Parts(offsets, sizes, shared, upright.astype(np.int32)))

    def where(self, index: int) -> str:
        return self._reader.where(index)

    def close(self) -> None:
        self.drop()
        self._reader.close()
