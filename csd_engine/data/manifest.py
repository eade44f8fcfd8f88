"""The manifest: the file names of a data set in one compact file. A name is read when it is needed, so it costs no memory.

The file is not mapped into memory: the pages of a million look-ups would count as resident memory of every worker.

    magic        8 bytes, b"DDLPMAN2"
    counts       2 little-endian uint64: files, bytes of their names
    offsets      uint64 [files + 1] into the names
    names        without separators between them

A manifest may come from another computer: every name is checked when it is looked up.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import struct
from pathlib import Path
from typing import Callable, Iterable, List, Union

import numpy as np

from csd_engine.errors import DatasetError

__all__ = ["Manifest", "check_relative", "write_manifest"]

MAGIC = b"DDLPMAN2"
MAX_NAME_BYTES = 4096  # Linux' PATH_MAX
_AT_ONCE = 1024  # names; they take less than a millisecond

_HEADER = struct.Struct("<8s2Q")
_TWO_OFFSETS = struct.Struct("<2Q")
_NO_PART = re.compile(rb"[\0/]\.{0,2}[\0/]")  # in names between NULs: an empty part, '.' or '..'

PathLike = Union[str, "os.PathLike[str]"]


def check_relative(name: bytes) -> None:
    """Raise DatasetError unless `name` is a plain path below its root.

    It may have no leading slash, no empty, '.' or '..' part, no NUL, and at most MAX_NAME_BYTES bytes.
    """
    parts = name.split(b"/")
    if b"\0" in name or len(name) > MAX_NAME_BYTES or b"" in parts or b"." in parts or b".." in parts:
        raise DatasetError(
            f"the name {os.fsdecode(name[:200])!r} in a manifest is not a plain path below the data set's root. "
            "Give paths relative to the root, without '.', '..', empty parts or NUL."
        )


def _encoded(paths: List[str]) -> List[bytes]:
    """Return the paths as bytes; raises DatasetError as `check_relative`."""
    joined = os.fsencode("\0".join(paths))
    encoded = joined.split(b"\0")
    if len(encoded) != len(paths) or max(map(len, encoded)) > MAX_NAME_BYTES or _NO_PART.search(b"\0%b\0" % joined):
        for path in paths:
            check_relative(os.fsencode(path))
    return encoded


def write_manifest(path: PathLike, relative_paths: Iterable[str], pause: Callable[[], None] = lambda: None) -> str:
    """Write a manifest of the given files, in their order, and return its fingerprint (32 hex digits).

    Args:
        path: the manifest file. It appears in one piece, and replaces an older one of the same name.
        relative_paths: '/'-separated paths relative to the data set's root.
        pause: called about twice a millisecond, to let other threads run.

    Raises:
        DatasetError: a path is absolute, or has an empty, '.' or '..' part, or a NUL.
        OSError: the file cannot be written.

    Notes:
        1.28 million paths take about a second.
    """
    ends: List[np.ndarray] = [np.zeros(1, dtype="<u8")]  # of names, without an object for each
    blobs: List[bytes] = []
    paths = iter(relative_paths)
    while some := list(itertools.islice(paths, _AT_ONCE)):
        names = _encoded(some)
        ends.append(ends[-1][-1] + np.cumsum(np.fromiter(map(len, names), dtype="<u8", count=len(names)), dtype="<u8"))
        blobs.append(b"".join(names))
        pause()
    offsets = np.concatenate(ends)
    header = _HEADER.pack(MAGIC, len(offsets) - 1, int(offsets[-1]))
    digest = hashlib.blake2b(digest_size=16)
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(part, "wb") as stream:
            for piece in (header, offsets.tobytes(), *blobs):
                digest.update(piece)
                stream.write(piece)
        os.replace(part, path)
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise
    return digest.hexdigest()


class Manifest:
    """An open manifest: `len(manifest)`, `manifest[index] -> str`. Close it, or use it in a `with`."""

    def __init__(self, path: PathLike, descriptor: int) -> None:
        self.path = Path(path)
        self._descriptor = descriptor
        size = os.fstat(descriptor).st_size
        magic, self._count, self._name_bytes = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
        self._names_at = _HEADER.size + 8 * (self._count + 1)
        if magic != MAGIC or self._names_at + self._name_bytes != size:
            raise DatasetError(f"{path} is not a manifest: its size is {size}. Write it with write_manifest.")

    @classmethod
    def open(cls, path: PathLike) -> "Manifest":
        """Open the manifest at `path`.

        Raises:
            DatasetError: it is missing, cannot be read, or is not a manifest.
        """
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return cls(path, descriptor)
        except (OSError, struct.error, DatasetError) as error:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(f"manifest {path} cannot be opened: {error}. Write it again.") from None

    def __len__(self) -> int:
        return int(self._count)

    def _read(self, count: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, count, offset)
        except OSError as error:
            raise DatasetError(f"manifest {self.path} cannot be read: {error.strerror}. Check the spool's disk.") from None
        if len(data) != count:
            raise DatasetError(f"manifest {self.path} ends at byte {offset + len(data)}. Write it again.")
        return data

    def __getitem__(self, index: int) -> str:
        """Return file `index`'s path, relative to the root.

        Raises:
            IndexError: there is no such file.
            DatasetError: the entry is damaged or hostile.
        """
        if not 0 <= index < self._count:
            raise IndexError(f"file {index} of a manifest of {self._count}")
        start, end = _TWO_OFFSETS.unpack(self._read(_TWO_OFFSETS.size, _HEADER.size + 8 * index))
        if not start <= end <= self._name_bytes or end - start > MAX_NAME_BYTES:
            raise DatasetError(f"manifest {self.path} is damaged at entry {index}. Write it again.")
        name = self._read(end - start, self._names_at + start)
        check_relative(name)
        return os.fsdecode(name)

    def close(self) -> None:
        """Close its file. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "Manifest":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
