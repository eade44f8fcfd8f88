"""A new kind of data set, as docs/extending.md teaches it. The engine's half: image files joined in one large file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from csd_engine.data.base import Access, Dataset, PathLike, Reader, Source
from csd_engine.data.checks import bad, checked_fields, checked_path, is_count
from csd_engine.data.image_files import MAX_FILE_BYTES, open_sample

__all__ = ["JoinedSet"]

MAX_SAMPLES = 1 << 20


@dataclass(frozen=True)
class JoinedSet(Dataset):
    """Image files, one after another in the file `path`. `sizes` are their sizes in bytes."""

    type: ClassVar[str] = "joined"

    path: str
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def to_data(self) -> dict[str, Any]:
        return {"type": self.type, "path": self.path, "sizes": list(self.sizes)}

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> JoinedSet:
        path, sizes = checked_fields(data, ("path", "sizes"))
        if not isinstance(sizes, list) or len(sizes) > MAX_SAMPLES or not all(map(is_count, sizes)):
            raise bad(f"expected at most {MAX_SAMPLES} sizes", sizes)
        return JoinedSet(checked_path(path), tuple(sizes))

    def content(self) -> str:
        return f"joined {self.sizes}"

    def host_paths(self, arrays: PathLike) -> list[str]:
        return [self.path]

    def open(self, access: Access) -> Reader:
        return _JoinedReader(access.resolve_root(self.path), self.sizes, access.beneath)


class _JoinedReader(Reader):
    def __init__(self, path: str, sizes: Sequence[int], beneath: Sequence[str] | None) -> None:
        self._path, self._sizes, self.beneath = path, sizes, beneath
        self._offsets = [0, *itertools.accumulate(sizes)]

    def __len__(self) -> int:
        return len(self._sizes)

    def open(self, index: int) -> Source:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a file of {len(self)}")
        return open_sample(self._path, self.beneath, MAX_FILE_BYTES, self._offsets[index], self._sizes[index])

    def where(self, index: int) -> str:
        return f"{self._path}, sample {index}"
