"""What a device needs of a data set: a manifest of its files, or its arrays as .npy on the SSD.

Made when a device joins, in the background, and kept for the next epoch as long as the data set is the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from operator import itemgetter
from pathlib import Path

import numpy as np

from csd_engine.datasets import ArraySet, ConcatSet, Dataset, FileSet
from csd_engine.manifest import write_manifest
from ddlp.errors import DDLPError
from ddlp.translate.datasets import Part, PortableSet, SamplePaths

FILES = "files"  # below the spool


def _sweep(base: Path) -> None:
    """Remove the directories of processes that are gone: whoever holds the lock is not."""
    for path in base.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < 5:
                continue  # being made at this moment
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _absolute(path: str) -> str:
    """As os.path.abspath, which takes seconds for a million paths; nearly all are plain already."""
    plain = path.startswith("/") and "//" not in path and "/." not in path
    return path if plain else os.path.abspath(path)


class Luggage:
    """Portable descriptions of a loader's data sets, with their files.

    ``directory`` (on the file system of the spool) holds the arrays, which host and device both map, and the manifests,
    which are sent. ``there`` is what the device calls it.
    """

    def __init__(self, directory: Path, there: Path) -> None:
        self._directory = directory
        self._there = there
        self._known: dict[int, FileSet] = {}
        self._lock = -1

    @classmethod
    def shared(cls, spool: Path, there: str) -> Luggage:
        """A directory of this process below the spool of an engine that runs by itself; `close` removes it.

        Left ones of processes that were killed are removed as well. The engine reads below SPOOL/files without a --root.

        Raises:
            DDLPError: it can't be made.
        """
        base = spool / FILES
        try:
            base.mkdir(exist_ok=True)
            _sweep(base)
            directory = Path(tempfile.mkdtemp(dir=base))
            luggage = cls(directory, Path(there) / FILES / directory.name)
            luggage._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(luggage._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            directory.chmod(0o755)  # the engine may run as another user
        except OSError as error:
            raise DDLPError(
                f"{base} can't be written ({error.strerror}): what the device needs of the data set is put there. Give this "
                "user write access to it, or say in Device(spool=...) where this host sees the engine's spool."
            ) from None
        return luggage

    def close(self) -> None:
        """Remove the directory of `shared`."""
        if self._lock >= 0:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def describe(self, portable: PortableSet) -> Dataset:
        """The data set as the engine is told of it. Raises OSError where the directory can't be written."""
        parts = tuple(self._part(part) for part in portable.parts)
        return parts[0] if len(parts) == 1 else ConcatSet(parts)

    def manifest(self, fingerprint: str) -> Path:
        """The file of a manifest that `describe` has written."""
        return self._directory / f"{fingerprint}.manifest"

    def _part(self, part: Part) -> FileSet | ArraySet:
        return self._array(part.array) if part.array is not None else self._files(part)

    def _files(self, part: Part) -> FileSet:
        assert part.paths is not None
        raw = list(map(itemgetter(0), part.paths.samples)) if isinstance(part.paths, SamplePaths) else part.paths
        # Strings keep their hashes, so that this is cheap; people edit these lists in place.
        content = hash((os.getcwd(), *raw))
        if content not in self._known:
            paths = [_absolute(os.fspath(p)) for p in raw]
            # What the first and the last in order have in common, all have.
            root = os.path.dirname(os.path.commonprefix([min(paths), max(paths)])) if paths else "/"
            skip = len(root.rstrip("/")) + 1
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as stream:
                pass
            fingerprint = write_manifest(stream.name, (p[skip:] for p in paths))
            os.replace(stream.name, self.manifest(fingerprint))
            self._known[content] = FileSet(root, fingerprint, len(paths))
        return self._known[content]

    def _array(self, array: np.ndarray) -> ArraySet:
        digest = hashlib.blake2b(str(array.shape).encode(), digest_size=16)
        rows = np.ascontiguousarray(array)
        digest.update(rows.reshape(-1).view(np.uint8))
        fingerprint = digest.hexdigest()
        path = self._directory / f"{fingerprint}.npy"
        if not path.exists():
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as stream:
                np.save(stream, rows)
            os.chmod(stream.name, 0o644)
            os.replace(stream.name, path)
        return ArraySet(str(self._there / path.name), fingerprint, rows.shape)
