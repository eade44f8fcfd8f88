"""Image files below a directory, named by a manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple

from csd_engine.data.base import MANIFEST, Access, Dataset, PathLike, Places, Reader, Source
from csd_engine.data.checks import bad, check_countable, checked_fields, checked_fingerprint, checked_path, is_count
from csd_engine.data.image_files import MAX_FILE_BYTES, open_sample
from csd_engine.data.manifest import Manifest
from csd_engine.errors import DatasetError

__all__ = ["FileSet"]


@dataclass(frozen=True)
class FileSet(Dataset):
    """`count` image files below `root` (an absolute path on the host). The manifest with this fingerprint names them."""

    type: ClassVar[str] = "files"

    root: str
    manifest: str
    count: int

    def __len__(self) -> int:
        return self.count

    def to_data(self) -> Dict[str, Any]:
        """See `Dataset.to_data`."""
        return {"type": self.type, "root": self.root, "manifest": self.manifest, "count": self.count}

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> FileSet:
        """See `Dataset.parse`."""
        root, manifest, count = checked_fields(data, ("root", "manifest", "count"))
        if not is_count(count):
            raise bad("expected a number of files", count)
        check_countable(count, f"{count} files are too many to count")
        return FileSet(checked_path(root), checked_fingerprint(manifest), count)

    def content(self) -> str:
        """See `Dataset.content`."""
        return f"files {self.manifest} {self.count}"

    def host_paths(self, arrays: PathLike) -> List[str]:
        """See `Dataset.host_paths`."""
        return [self.root]

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """See `Dataset.uploads`."""
        return [(MANIFEST, self.manifest)]

    def open(self, access: Access) -> Reader:
        """See `Dataset.open`."""
        root = access.resolve_root(self.root)
        return _FileReader(self, root, Manifest.open(access.manifest_path(self.manifest)), access.beneath)


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

    def places(self, indices: List[int]) -> Optional[Places]:
        return Places([os.path.join(self._root, self._manifest[index]) for index in indices])

    def where(self, index: int) -> str:
        try:
            return os.path.join(self._root, self._manifest[index])
        except (DatasetError, IndexError) as error:
            return f"{self._root} entry {index} ({error})"

    def close(self) -> None:
        self._manifest.close()
