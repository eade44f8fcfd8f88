"""What a device needs of a data set: a manifest of its files, or its arrays as .npy on the SSD.

Made when a device joins, in the background, and kept for the next epoch as long as the data set is the same.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from operator import itemgetter
from pathlib import Path

import numpy as np

from csd_engine.datasets import ArraySet, ConcatSet, Dataset, FileSet
from csd_engine.manifest import write_manifest
from ddlp.translate.datasets import Part, PortableSet, SamplePaths


class Luggage:
    """Portable descriptions of a loader's data sets, with their files.

    ``directory`` (private, on the file system of the spool) holds the arrays, which host and device both map, and the
    manifests, which are sent.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, FileSet] = {}

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
        paths = [os.path.abspath(os.fspath(p)) for p in raw]
        content = hash(tuple(paths))  # strings keep their hashes: cheap, and people edit these lists in place
        if content not in self._known:
            root = os.path.commonpath([os.path.dirname(p) for p in paths]) if paths else "/"
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
            os.replace(stream.name, path)
        return ArraySet(str(path), fingerprint, rows.shape)
