"""The manifest: the file names of a data set in one compact file. A name is read when it is needed, so it costs no memory.

The file is not mapped into memory: the pages of a million look-ups would count as resident memory of every worker.

    magic        8 bytes, b"DDLPMAN1"
    counts       4 little-endian uint64: files, directories, bytes of directory names, bytes of file names
    offsets      uint64 [files + 1] into the file names, uint64 [directories + 1] into the directory names
    directory    uint32 [files], padded to 8 bytes: which directory each file is in
    names        directory names, then file names, without separators between them

A manifest may come from another computer: every name is checked when it is looked up.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Tuple, Union

import numpy as np

from csd_engine.errors import DatasetError

__all__ = ["Manifest", "check_relative", "write_manifest"]

MAGIC = b"DDLPMAN1"
MAX_NAME_BYTES = 4096  # Linux' PATH_MAX
_AT_ONCE = 1024  # names; they take less than a millisecond

_HEADER = struct.Struct("<8s4Q")
_TWO_OFFSETS = struct.Struct("<2Q")

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


def _sections(files: int, directories: int, directory_bytes: int, name_bytes: int) -> Tuple[int, int, int, int, int]:
    """Return where sections end: file offsets, directory offsets, directory indices, directory names, file names."""
    files_end = _HEADER.size + 8 * (files + 1)
    directories_end = files_end + 8 * (directories + 1)
    names = directories_end + (4 * files + 7) // 8 * 8
    return files_end, directories_end, names, names + directory_bytes, names + directory_bytes + name_bytes


def _offsets(lengths: np.ndarray) -> bytes:
    offsets = np.zeros(len(lengths) + 1, dtype="<u8")
    np.cumsum(lengths, out=offsets[1:].view("<i8"))
    return offsets.tobytes()


class _Names:
    """The names added so far, without an object for each."""

    def __init__(self) -> None:
        self.directories: Dict[bytes, int] = {}
        self.places: List[np.ndarray] = []  # of each file's directory, uint32
        self.lengths: List[np.ndarray] = []  # of each file's name, int64
        self.blobs: List[bytes] = []

    def add(self, paths: List[str]) -> None:
        """Add further paths; raises DatasetError."""
        encoded = os.fsencode("\0".join(paths)).split(b"\0")
        if len(encoded) != len(paths) or max(map(len, encoded)) > MAX_NAME_BYTES:
            for path in paths:
                check_relative(os.fsencode(path))
        parts = [path.rpartition(b"/") for path in encoded]
        names = [name for _, _, name in parts]
        if not {b"", b".", b".."}.isdisjoint(names):
            for path_bytes in encoded:
                check_relative(path_bytes)
        directories = self.directories
        for directory, slash, name in parts:
            if directory not in directories or (slash and not directory):
                check_relative(directory + slash + name)
                directories.setdefault(directory, len(directories))
        self.places.append(np.array([directories[directory] for directory, _, _ in parts], dtype="<u4"))
        self.lengths.append(np.fromiter(map(len, names), dtype=np.int64, count=len(names)))
        self.blobs.append(b"".join(names))

    def sections(self) -> Iterator[bytes]:
        """The file's content, in its order."""
        none = [np.zeros(0, dtype=np.int64)]
        lengths = np.concatenate(none + self.lengths)
        folders = list(self.directories)
        names = b"".join(folders)
        yield _HEADER.pack(MAGIC, len(lengths), len(folders), len(names), int(lengths.sum()))
        yield _offsets(lengths)
        yield _offsets(np.array([len(folder) for folder in folders], dtype=np.int64))
        for places in self.places:
            yield places.tobytes()
        yield bytes(-4 * len(lengths) % 8)
        yield names
        yield from self.blobs


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
    names = _Names()
    paths = iter(relative_paths)
    while True:
        some = list(itertools.islice(paths, _AT_ONCE))
        if not some:
            break
        names.add(some)
        pause()
    digest = hashlib.blake2b(digest_size=16)
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(part, "wb") as stream:
            for piece in names.sections():
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
        magic, files, directories, directory_bytes, name_bytes = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
        ends = _sections(files, directories, directory_bytes, name_bytes)
        if magic != MAGIC or ends[-1] != size:
            raise DatasetError(f"{path} is not a manifest: its size is {size}. Write it with write_manifest.")
        self._count, self._directories = files, directories
        self._directory_bytes, self._name_bytes = directory_bytes, name_bytes
        self._files_end, self._directories_end, self._folders_at, self._names_at, _ = ends

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

    def _slice(self, offsets_at: int, index: int, names_at: int, limit: int) -> bytes:
        start, end = _TWO_OFFSETS.unpack(self._read(_TWO_OFFSETS.size, offsets_at + 8 * index))
        if not start <= end <= limit or end - start > MAX_NAME_BYTES:
            raise DatasetError(f"manifest {self.path} is damaged at entry {index}. Write it again.")
        return self._read(end - start, names_at + start)

    def __getitem__(self, index: int) -> str:
        """Return file `index`'s path, relative to the root.

        Raises:
            IndexError: there is no such file.
            DatasetError: the entry is damaged or hostile.
        """
        if not 0 <= index < self._count:
            raise IndexError(f"file {index} of a manifest of {self._count}")
        place = int.from_bytes(self._read(4, self._directories_end + 4 * index), "little")
        if place >= self._directories:
            raise DatasetError(f"manifest {self.path} is damaged at entry {index}. Write it again.")
        name = self._slice(_HEADER.size, index, self._names_at, self._name_bytes)
        folder = self._slice(self._files_end, place, self._folders_at, self._directory_bytes)
        relative = folder + b"/" + name if folder else name
        check_relative(relative)
        return os.fsdecode(relative)

    def close(self) -> None:
        """Close its file. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "Manifest":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
