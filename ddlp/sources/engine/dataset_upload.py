"""The files of a data set that a device needs: a manifest of its files, or its arrays as .npy.

They are put on the SSD or sent. They are made in the background when a device joins. The next epoch uses them again if the data
set is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from csd_engine.data.arrays import ARRAY_SUFFIX, ArraySet
from csd_engine.data.base import Dataset
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.data.objects.urls import below
from csd_engine.machine.directory import Directory
from csd_engine.machine.file_locks import fcntl
from csd_engine.protocol.codec import MAX_PART_BYTES
from csd_engine.service.spool import host_directory, host_mark, look_at
from ddlp.errors import DDLPError
from ddlp.process.system import boot, own_prefix
from ddlp.sources.engine.link import ARRAYS
from ddlp.sources.engine.meeting import sweep
from ddlp.translate.datasets import PortableSet
from ddlp.translate.leaf import Upload

_AT_ONCE = 1024  # names
_PAUSE_S = 0.0005
FILES = "files"  # the directory below the spool for files that hosts put there


def _absolute(path: str, directory: str) -> str:
    """Do the same as os.path.abspath in a directory, which takes seconds for a million paths. Most are plain already."""
    plain = path.startswith("/") and "//" not in path and "/." not in path
    return path if plain else os.path.abspath(os.path.join(directory, path))


class _ArrayFile:
    """The bytes of a .npy file for an array, without the file. The fingerprint is the hash of these bytes."""

    def __init__(self, array: np.ndarray) -> None:
        rows = np.ascontiguousarray(array)
        self.shape = rows.shape
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": rows.shape})
        self.content = (memoryview(header.getvalue()), rows.reshape(-1).view(np.uint8).data)
        digest = hashlib.blake2b(digest_size=16)
        for content in self.content:
            digest.update(content)
        self.fingerprint = digest.hexdigest()
        self.size = sum(map(len, self.content))

    def part(self, offset: int) -> memoryview:
        """Return at most MAX_PART_BYTES bytes from an offset on."""
        header, rows = self.content
        if offset < len(header):
            return memoryview(bytes(header[offset:]) + bytes(rows[: MAX_PART_BYTES - (len(header) - offset)]))
        start = offset - len(header)
        return rows[start : start + MAX_PART_BYTES]


class DatasetUpload:
    """Portable descriptions of a loader's data sets, with their files.

    ``directory`` holds the manifests, which are always sent. If the device can map files in ``directory``, the arrays are put
    there as well, and ``there`` is the path of ``directory`` on the device. Otherwise the arrays are sent, and ``there`` is the
    directory in which the engine keeps them.
    """

    def __init__(self, directory: Path, there: Path, sent: bool = False) -> None:
        self._directory = directory
        self._there = there
        self._sent = sent
        self._known: dict[int, FileSet] = {}
        self._arrays: dict[str, _ArrayFile] = {}  # those that are sent
        self._lock = -1
        self._shared: tuple[Directory, Directory] | None = None  # the spool's directory of files, and this host's there

    @classmethod
    def shared(cls, spool: Path, there: str) -> DatasetUpload:
        """Make a directory for this process below the spool of an engine that runs by itself; `close` removes it.

        The engine may read SPOOL/files without a --root.

        Raises:
            DDLPError: it can't be made.
        """
        base, name = spool / FILES, host_directory(boot())
        try:
            with contextlib.ExitStack() as undo:
                files = Directory(os.path.realpath(base))
                undo.callback(files.close)
                own = files.make(name, 0o700)
                undo.callback(own.close)
                undo.callback(files.remove, own)
                upload = cls(base / name, Path(there) / FILES / name)
                lock = own.open("lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                undo.callback(os.close, lock)
                upload._own(lock)
                os.write(upload._lock, host_mark(name).encode("ascii"))
                os.fchmod(own.descriptor, 0o755)  # the engine may run as another user
                upload._shared = files, own
                undo.pop_all()
        except OSError as error:
            raise DDLPError(
                f"{base} can't be written ({error.strerror}): what the device needs of the data set is put there. Give this "
                "user write access to it, or say in Device(spool=...) where this host sees the engine's spool."
            ) from None
        return upload

    @classmethod
    def sent_to(cls, there: str) -> DatasetUpload:
        """Make one for an engine whose spool ``there`` is not visible here: all is sent. `close` removes the directory."""
        sweep(tempfile.gettempdir())
        directory = Path(tempfile.mkdtemp(prefix=own_prefix()))
        upload = cls(directory, Path(there) / ARRAYS, sent=True)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, lock)
            upload._own(lock)
            undo.pop_all()
        return upload

    def _own(self, lock: int) -> None:
        self._lock = lock
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def show(self) -> tuple[str, str]:
        """Write a file of random content for the engine to look at; return its name below the spool and its digest."""
        assert self._shared is not None
        own = self._shared[1]
        own.write("look", secrets.token_hex(16))
        os.chmod("look", 0o644, dir_fd=own.descriptor)
        return f"{FILES}/{own.name}/look", look_at(own, "look")

    @property
    def owner(self) -> int:
        """The user id that this process's directory has: a network file system may give it another one than the process."""
        assert self._shared is not None
        return self._shared[1].status().st_uid

    def close(self) -> None:
        """Remove the directory, if this object has made it."""
        if self._lock < 0:
            return
        if self._shared is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            files, own = self._shared
            files.remove(own)
            files.close()
            own.close()
        os.close(self._lock)
        self._lock = -1

    def describe(self, portable: PortableSet, urls: Sequence[str] = ()) -> Dataset:
        """Return the description of the data set for the engine, which may read object storages below these URLs itself.

        Raises DDLPError if the directory can't be written.
        """
        arrays: dict[str, _ArrayFile] = {}
        upload = Upload(self._files, partial(self._array, arrays), lambda url: below(url, urls))
        try:
            parts = tuple(part.describe(upload) for part in portable.parts)
        except OSError as error:
            raise DDLPError(
                f"what the device needs of the data set can't be written to {self._directory}: {error.strerror or error}. "
                "Free space there, or make it writable."
            ) from None
        self._arrays = arrays
        return parts[0] if len(parts) == 1 else ConcatSet(parts)

    def manifest(self, fingerprint: str) -> Path:
        """The file of a manifest that `describe` has written."""
        return self._directory / f"{fingerprint}.manifest"

    def array_part(self, fingerprint: str, offset: int) -> tuple[memoryview, int]:
        """Return a part of an array's .npy bytes, and their size. KeyError unless the last `describe` used the array."""
        array = self._arrays[fingerprint]
        return array.part(offset), array.size

    def _array(self, arrays: dict[str, _ArrayFile], images: np.ndarray) -> ArraySet:
        array = _ArrayFile(images)
        name = array.fingerprint + ARRAY_SUFFIX
        if self._sent:
            arrays[array.fingerprint] = array
        elif not (self._directory / name).exists():
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as stream:
                for content in array.content:
                    stream.write(content)
            os.chmod(stream.name, 0o644)
            os.replace(stream.name, self._directory / name)
        return ArraySet(str(self._there / name), array.fingerprint, array.shape)

    def _files(self, files: Sequence[str | os.PathLike[str]], directory: str) -> FileSet:
        content, directory = 0, directory or os.getcwd()
        for some in _some_at_a_time(files):
            content = hash((content, *some))  # users edit these lists in place; strings keep their hashes, so this is cheap
        content = hash((content, directory))
        if content not in self._known:
            paths: list[str] = []
            ends: list[str] = []  # the first and the last in order: their common prefix is common to all
            for some in _some_at_a_time(files):
                plain = [_absolute(path, directory) for path in some]
                paths += plain
                ends = [min(ends[:1] + plain), max(ends[1:] + plain)]
            root = os.path.dirname(os.path.commonprefix(ends)) if paths else "/"
            skip = len(root.rstrip("/")) + 1
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as stream:
                pass
            fingerprint = write_manifest(stream.name, (p[skip:] for p in paths), _pause)
            os.replace(stream.name, self.manifest(fingerprint))
            self._known[content] = FileSet(root, fingerprint, len(paths))
        return self._known[content]


def _pause() -> None:
    """Give the host's workers the interpreter: a million names take a second or two, while the workers prepare batches."""
    time.sleep(_PAUSE_S)


def _some_at_a_time(paths: Sequence[Any]) -> Iterator[list[str]]:
    """Yield all paths as strings, in parts of less than a millisecond's work, with a pause after each part."""
    source = map(os.fspath, paths)
    while some := list(itertools.islice(source, _AT_ONCE)):
        yield some
        _pause()
