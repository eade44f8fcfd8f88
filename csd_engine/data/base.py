"""Data sets as plain data, and the readers that open one sample of them.

A description travels; a `Reader` is made of it on either side. Readers open files below allowed roots only.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import os
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from PIL import Image

from csd_engine.errors import DatasetError, RootNotAllowed
from csd_engine.data.image_files import MAX_FILE_BYTES, content, open_image, open_sample
from csd_engine.data.manifest import Manifest, write_manifest
from csd_engine.data.safe_open import OpenFile, open_regular

__all__ = [
    "ArraySet",
    "ConcatSet",
    "Dataset",
    "FileSet",
    "Manifest",
    "Reader",
    "Source",
    "fingerprint",
    "fingerprints",
    "open_reader",
    "parse_dataset",
    "write_manifest",
]

MAX_PARTS = 1024
MAX_PATH_CHARACTERS = 4096
_SHAPE_LIMIT = 1 << 48
_MOST = sys.maxsize  # what len() tells and mmap takes: on a 32-bit computer 2 GiB, less one byte


@dataclass(frozen=True)
class FileSet:
    """Image files below `root` (absolute, on the host), named by a manifest with that fingerprint, `count` of them."""

    root: str
    manifest: str
    count: int

    def to_data(self) -> Dict[str, Any]:
        """Return the description as plain data for JSON."""
        return {"type": "files", "root": self.root, "manifest": self.manifest, "count": self.count}

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class ArraySet:
    """A uint8 .npy file at the absolute `path`: `shape` is (n, height, width) for mode L or (n, height, width, 3) for
    RGB.
    """

    path: str
    fingerprint: str
    shape: Tuple[int, ...]

    def to_data(self) -> Dict[str, Any]:
        """Return the description as plain data for JSON."""
        return {"type": "array", "path": self.path, "fingerprint": self.fingerprint, "shape": list(self.shape)}

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True)
class ConcatSet:
    """Several data sets one after another; source indices run through them."""

    parts: Tuple[Union[FileSet, ArraySet], ...]

    def to_data(self) -> Dict[str, Any]:
        """Return the description as plain data for JSON."""
        return {"type": "concat", "parts": [part.to_data() for part in self.parts]}

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


Dataset = Union[FileSet, ArraySet, ConcatSet]


def _bad(what: str, value: Any) -> DatasetError:
    return DatasetError(f"data set description: {what}, got {value!r:.200}. Describe it with ddlp's own classes.")


def _fields(data: Any, names: Sequence[str]) -> List[Any]:
    if not isinstance(data, dict) or set(data) != {"type", *names}:
        raise _bad(f"expected exactly the fields type, {', '.join(names)}", data)
    return [data[name] for name in names]


def _path(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_PATH_CHARACTERS or "\0" in value or not value.startswith("/"):
        raise _bad("expected an absolute path", value)
    if ".." in value.split("/"):
        raise _bad("expected a path without '..'", value)
    return value


def _hex(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise _bad("expected a fingerprint of 32 hex digits", value)
    return value


def _too_large(what: str) -> DatasetError:
    bits = 64 if _MOST >= 1 << 32 else 32
    return DatasetError(f"{what} on this {bits}-bit computer. Train without this device.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _SHAPE_LIMIT


def parse_dataset(data: Any) -> Dataset:
    """Make a data set of `to_data`'s result, checking every field.

    Raises:
        DatasetError: quotes the field and the value; or it is too large for this computer.
    """
    kind = data.get("type") if isinstance(data, dict) else None
    if kind == "files":
        root, manifest, count = _fields(data, ("root", "manifest", "count"))
        if not _is_count(count):
            raise _bad("expected a number of files", count)
        if count > _MOST:
            raise _too_large(f"{count} files are too many to count")
        return FileSet(_path(root), _hex(manifest), count)
    if kind == "array":
        path, content, shape = _fields(data, ("path", "fingerprint", "shape"))
        if not isinstance(shape, list) or len(shape) not in (3, 4) or not all(map(_is_count, shape)):
            raise _bad("expected a shape of 3 or 4 sizes", shape)
        if (len(shape) == 4 and shape[3] != 3) or not 0 < shape[1] < 1 << 16 or not 0 < shape[2] < 1 << 16:
            raise _bad("expected a shape (n, height, width) or (n, height, width, 3)", shape)
        if math.prod(shape) > _MOST:
            raise _too_large(f"an array of {math.prod(shape)} bytes, {shape}, is too large to map")
        return ArraySet(_path(path), _hex(content), tuple(shape))
    if kind == "concat":
        (parts,) = _fields(data, ("parts",))
        if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_PARTS:
            raise _bad(f"expected 1 to {MAX_PARTS} parts", parts)
        parsed = []
        for part in parts:
            one = parse_dataset(part) if not isinstance(part, dict) or part.get("type") != "concat" else None
            if one is None or isinstance(one, ConcatSet):
                raise _bad("expected parts that are no concatenations themselves", part)
            parsed.append(one)
        if sum(map(len, parsed)) > _MOST:
            raise _too_large(f"{sum(map(len, parsed))} samples are too many to count")
        return ConcatSet(tuple(parsed))
    raise _bad("expected type files, array or concat", data)


def fingerprint(dataset: Dataset) -> str:
    """Return 32 hex digits that tell what the source indices mean; paths on this computer do not enter."""
    digest = hashlib.blake2b(digest_size=16, person=b"ddlp data set")
    if isinstance(dataset, FileSet):
        digest.update(f"files {dataset.manifest} {dataset.count}".encode("ascii"))
    elif isinstance(dataset, ArraySet):
        digest.update(f"array {dataset.fingerprint} {dataset.shape}".encode("ascii"))
    else:
        digest.update(("concat " + " ".join(fingerprint(part) for part in dataset.parts)).encode("ascii"))
    return digest.hexdigest()


def fingerprints(dataset: Dataset) -> List[str]:
    """Return the fingerprints of the manifests that a reader of this data set needs, each once, in order."""
    parts = dataset.parts if isinstance(dataset, ConcatSet) else (dataset,)
    return list(dict.fromkeys(part.manifest for part in parts if isinstance(part, FileSet)))


Source = Union[OpenFile, np.ndarray]
"""Where a sample's pixels come from: an opened file, or uint8 (height, width[, 3])."""


class Reader:
    """Opens single samples of a data set. Not thread-safe while it closes; otherwise it is.

    Attributes:
        beneath: real directories; a file that really lies outside all of them must not be read. None: any.
    """

    beneath: Optional[Sequence[str]] = None

    def __len__(self) -> int:
        raise NotImplementedError

    def open(self, index: int) -> Source:
        """Return sample `index`, nothing of it read yet. A file is the caller's to close.

        Raises:
            SampleError: missing, no regular file, too large, or outside the allowed roots.
            IndexError: there is no such sample.
        """
        raise NotImplementedError

    def image(self, index: int) -> Image.Image:
        """Return sample `index` with its header read and its pixels not yet decoded.

        Raises:
            SampleError: as `open`, or not an image.
            IndexError: there is no such sample.
        """
        source = self.open(index)
        return open_image(source.path, content(source)) if isinstance(source, OpenFile) else Image.fromarray(source)

    def paths(self, indices: List[int]) -> Optional[List[str]]:
        """Return where these samples' files lie, to be opened there by whoever looks at `beneath`. None: not all are files.

        Of a batch at once: a few calls of Python's for each sample would be half a percent of the time that it takes.

        Raises as `open` does.
        """
        return None

    def where(self, index: int) -> str:
        """Return the sample's place for messages."""
        raise NotImplementedError

    def rows(self) -> Optional[np.ndarray]:
        """Return all samples where they are one array, uint8 (n, height, width) or (n, height, width, 3); else None."""
        return None

    def close(self) -> None:
        """Unmap what is mapped."""


class _FileReader(Reader):
    def __init__(self, dataset: FileSet, root: str, manifest: Manifest, beneath: Optional[Sequence[str]]) -> None:
        self._root = root
        self._manifest = manifest
        self.beneath = beneath
        if len(manifest) != dataset.count:
            manifest.close()
            raise DatasetError(f"manifest {manifest.path} names {len(manifest)} files, expected were {dataset.count}.")

    def __len__(self) -> int:
        return len(self._manifest)

    def open(self, index: int) -> Source:
        return open_sample(os.path.join(self._root, self._manifest[index]), self.beneath, MAX_FILE_BYTES)

    def paths(self, indices: List[int]) -> Optional[List[str]]:
        return [os.path.join(self._root, self._manifest[index]) for index in indices]

    def where(self, index: int) -> str:
        try:
            return os.path.join(self._root, self._manifest[index])
        except (DatasetError, IndexError) as error:
            return f"{self._root} entry {index} ({error})"

    def close(self) -> None:
        self._manifest.close()


class _ArrayReader(Reader):
    def __init__(self, dataset: ArraySet, path: str, beneath: Optional[Sequence[str]]) -> None:
        self._path = path
        try:
            with open(open_regular(path, beneath), "rb") as stream:
                version = np.lib.format.read_magic(stream)
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, fortran, dtype = read[version](stream)
                if dtype != np.uint8 or shape != dataset.shape or fortran:
                    raise ValueError(f"it holds {dtype} {shape}, expected was C-ordered uint8 {dataset.shape}")
                rows = np.memmap(stream, dtype=np.uint8, mode="r", offset=stream.tell(), shape=shape)
                self._rows: np.ndarray = rows
        except (OSError, ValueError, KeyError, OverflowError, RootNotAllowed) as error:
            raise DatasetError(f"array {path} cannot be used: {error}. Write it again or check its path.") from None

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def open(self, index: int) -> Source:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of an array of {len(self)}")
        return np.array(self._rows[index])

    def where(self, index: int) -> str:
        return f"{self._path}[{index}]"

    def rows(self) -> Optional[np.ndarray]:
        return self._rows

    def close(self) -> None:
        self._rows = np.zeros((0, 1, 1), dtype=np.uint8)  # the map goes with its last array


class _ConcatReader(Reader):
    def __init__(self, readers: List[Reader], beneath: Optional[Sequence[str]]) -> None:
        self._readers = readers
        self.beneath = beneath
        self._starts = [0]
        for reader in readers:
            self._starts.append(self._starts[-1] + len(reader))

    def __len__(self) -> int:
        return self._starts[-1]

    def _part(self, index: int) -> Tuple[Reader, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        return self._readers[part], index - self._starts[part]

    def open(self, index: int) -> Source:
        reader, own = self._part(index)
        return reader.open(own)

    def paths(self, indices: List[int]) -> Optional[List[str]]:
        found: List[str] = []
        for reader, own in map(self._part, indices):
            one = reader.paths([own])
            if one is None:
                return None
            found += one
        return found

    def where(self, index: int) -> str:
        reader, own = self._part(index)
        return reader.where(own)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


def open_reader(
    dataset: Dataset,
    resolve_root: Callable[[str], str],
    manifest_path: Callable[[str], Union[str, "os.PathLike[str]"]],
    beneath: Optional[Sequence[str]] = None,
) -> Reader:
    """Open a reader of the data set.

    Args:
        dataset: the description.
        resolve_root: maps a path on the host to this computer's; raises RootNotAllowed where it may not be read.
        manifest_path: maps a manifest's fingerprint to its file.
        beneath: real directories; a file that lies outside all of them, links followed, is not read. None: any.

    Raises:
        DatasetError: a manifest or array is missing, damaged or not as described. RootNotAllowed is one.
    """
    if isinstance(dataset, FileSet):
        root = resolve_root(dataset.root)
        return _FileReader(dataset, root, Manifest.open(manifest_path(dataset.manifest)), beneath)
    if isinstance(dataset, ArraySet):
        return _ArrayReader(dataset, resolve_root(dataset.path), beneath)
    readers: List[Reader] = []
    try:
        for part in dataset.parts:
            readers.append(open_reader(part, resolve_root, manifest_path, beneath))
    except BaseException:
        for reader in readers:
            reader.close()
        raise
    return _ConcatReader(readers, beneath)
