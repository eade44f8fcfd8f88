"""Image files that are parts of larger files: the members of tar shards, the values of an Arrow file's column."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Access, Dataset, PathLike, Places, Reader, Source, fingerprint
from csd_engine.data.checks import bad, checked_fields
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import MAX_FILE_BYTES, not_read, part_of
from csd_engine.data.safe_open import OpenFile, open_file
from csd_engine.errors import DatasetError
from csd_engine.kernels.files import Parts

__all__ = ["PART_BYTES", "PartFiles", "PartSet", "pack_parts"]

PART_BYTES = 24  # a row of the table: three little-endian int64

MOST_OPEN = 64  # files that stay open; any further file is opened anew for each sample


def pack_parts(files: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the table of a `PartSet` as an array to send, uint8 (n, 1, PART_BYTES): each part's file, offset, size."""
    rows = np.stack([np.asarray(column, dtype="<i8") for column in (files, offsets, sizes)], axis=1)
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), 1, PART_BYTES)


class PartFiles:
    """Large files whose parts are samples. The first `MOST_OPEN` in use stay open until `close`. Any thread may use it.

    Args:
        path: gives the path of a file by its number.
        beneath: as for `open_sample`.
        upright: images are turned by their EXIF orientation.
    """

    def __init__(self, path: Callable[[int], str], beneath: Optional[Sequence[str]] = None, upright: bool = False) -> None:
        self.path, self._upright = path, upright
        self._beneath = beneath
        self._open: Dict[int, OpenFile] = {}
        self._lock = threading.Lock()

    def open(self, file: int, offset: int, size: int, most_bytes: Optional[int]) -> OpenFile:
        """Open a part, as `open_sample` does; size -1: up to the file's end. The caller closes it."""
        shared = self._shared(file)
        path = self.path(file)
        try:
            opened = open_file(path, self._beneath) if shared is None else shared._replace(descriptor=os.dup(shared.descriptor))
        except Exception as error:
            raise not_read(path, error) from error
        try:
            part = part_of(opened, most_bytes, offset, None if size == -1 else size)
            return part._replace(upright=self._upright)
        except BaseException:
            os.close(opened.descriptor)
            raise

    def places(self, files: List[int], offsets: np.ndarray, sizes: np.ndarray) -> Places:
        """Return the places of parts. Files that stay open are given with their descriptors."""
        opened = {file: self._shared(file) for file in set(files)}
        descriptors = {file: -1 if shared is None else shared.descriptor for file, shared in opened.items()}
        paths = {file: self.path(file) for file in opened}
        shared = np.array([descriptors[file] for file in files], dtype=np.int32)
        upright = np.full(len(files), self._upright, np.int32)
        return Places([paths[file] for file in files], Parts(offsets, sizes, shared, upright))

    def _shared(self, file: int) -> Optional[OpenFile]:
        """The open file. None if each part must open it: there are too many files, or opening failed and will fail again."""
        opened = self._open.get(file)
        if opened is None and len(self._open) < MOST_OPEN:
            with self._lock:
                if file not in self._open and len(self._open) < MOST_OPEN:
                    try:
                        self._open[file] = open_file(self.path(file), self._beneath)
                    except Exception:
                        return None
                opened = self._open.get(file)
        return opened

    def close(self) -> None:
        """Close all files. May be called again."""
        while self._open:
            os.close(self._open.popitem()[1].descriptor)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class PartSet(Dataset):
    """Parts of `files`, one for each sample. `table` is an array made by `pack_parts`.

    With `upright` images are turned by their EXIF orientation, as in Hugging Face's datasets.
    """

    type: ClassVar[str] = "parts"

    files: FileSet
    table: ArraySet
    upright: bool = False

    def __len__(self) -> int:
        return len(self.table)

    def to_data(self) -> Dict[str, Any]:
        """See `Dataset.to_data`."""
        return {"type": self.type, "files": self.files.to_data(), "table": self.table.to_data(), "upright": self.upright}

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> PartSet:
        """See `Dataset.parse`."""
        *inner, upright = checked_fields(data, ("files", "table", "upright"))
        if not isinstance(upright, bool):
            raise bad("expected true or false for upright", upright)
        for nested, kind in zip(inner, (FileSet.type, ArraySet.type)):  # not parsed before: it may be nested without end
            if not isinstance(nested, dict) or nested.get("type") != kind:
                raise bad(f"expected {kind} in {cls.type}", nested)
        files, table = FileSet.parse(inner[0], parse_part), ArraySet.parse(inner[1], parse_part)
        if table.shape[1:] != (1, PART_BYTES):
            raise bad(f"expected a table of shape (n, 1, {PART_BYTES})", list(table.shape))
        return PartSet(files, table, upright)

    def content(self) -> str:
        """See `Dataset.content`."""
        return f"parts {fingerprint(self.files)} {fingerprint(self.table)}{' upright' * self.upright}"

    def host_paths(self, arrays: PathLike) -> List[str]:
        """See `Dataset.host_paths`."""
        return self.files.host_paths(arrays) + self.table.host_paths(arrays)

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """See `Dataset.uploads`."""
        return self.files.uploads(arrays) + self.table.uploads(arrays)

    def open(self, access: Access) -> Reader:
        """See `Dataset.open`."""
        files = self.files.open(access)
        try:
            return _PartReader(files, self.table.open(access), access.beneath, self.upright)
        except BaseException:
            files.close()
            raise


class _PartReader(Reader):
    def __init__(self, files: Reader, table: Reader, beneath: Optional[Sequence[str]], upright: bool) -> None:
        self._files, self._table, self.beneath = files, table, beneath
        self._count = len(table)
        self._parts = PartFiles(self._path, beneath, upright)

    def __len__(self) -> int:
        return self._count

    def _path(self, file: int) -> str:
        places = self._files.places([file])
        assert places is not None  # each is a whole file
        return places.paths[0]

    def _rows(self, indices: Sequence[int]) -> np.ndarray:
        """Rows of the table, int64 (n, 3). It may come from another computer; only the file's number is checked here."""
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"part {index} of {len(self)}")
        table = self._table.rows()
        assert table is not None
        rows: np.ndarray = np.ascontiguousarray(table[list(indices)]).reshape(-1, PART_BYTES).view("<i8").astype(np.int64)
        if len(rows) and not 0 <= rows[:, 0].min() <= rows[:, 0].max() < len(self._files):
            names = f"a table of parts names file {rows[:, 0].max()} of {len(self._files)}"
            raise DatasetError(f"{names}. Describe the data set again.")
        return rows

    def open(self, index: int) -> Source:
        file, offset, size = self._rows([index])[0].tolist()
        return self._parts.open(file, offset, size, MAX_FILE_BYTES)

    def places(self, indices: List[int]) -> Optional[Places]:
        rows = self._rows(indices)
        return self._parts.places(rows[:, 0].tolist(), rows[:, 1], rows[:, 2])

    def where(self, index: int) -> str:
        try:
            file, offset, size = self._rows([index])[0].tolist()
            return f"{self._path(file)}, {size} bytes from {offset} on"
        except (DatasetError, IndexError) as error:
            return f"part {index} ({error})"

    def close(self) -> None:
        self._parts.close()
        self._files.close()
        self._table.close()
