"""Several data sets one after another."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from csd_engine.data.base import Dataset, Fetch, PathLike, Places, Reader, Source, Versions, fingerprint
from csd_engine.data.checks import bad, check_countable, checked_fields
from csd_engine.data.joined import fetch_parts
from csd_engine.kernels.pixels import Pixels

__all__ = ["ConcatSet"]

MAX_PARTS = 1024


@dataclass(frozen=True)
class ConcatSet(Dataset):
    """Several data sets one after another, none of them a concatenation. Source indices count through all of them."""

    type: ClassVar[str] = "concat"

    parts: Tuple[Dataset, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def to_data(self) -> Dict[str, Any]:
        """See `Dataset.to_data`."""
        return {"type": self.type, "parts": [part.to_data() for part in self.parts]}

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> ConcatSet:
        """See `Dataset.parse`."""
        (parts,) = checked_fields(data, ("parts",))
        if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_PARTS:
            raise bad(f"expected 1 to {MAX_PARTS} parts", parts)
        parsed = []
        for part in parts:
            if isinstance(part, dict) and part.get("type") == cls.type:  # not parsed: it may be nested without end
                raise bad("expected parts that are no concatenations themselves", part)
            parsed.append(parse_part(part))
        samples = sum(map(len, parsed))
        check_countable(samples, f"{samples} samples are too many to count")
        return ConcatSet(tuple(parsed))

    def content(self) -> str:
        """See `Dataset.content`."""
        return "concat " + " ".join(fingerprint(part) for part in self.parts)

    def host_paths(self, arrays: PathLike) -> List[str]:
        """See `Dataset.host_paths`."""
        return [path for part in self.parts for path in part.host_paths(arrays)]

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """See `Dataset.uploads`."""
        return [upload for part in self.parts for upload in part.uploads(arrays)]

    def urls(self) -> List[str]:
        """See `Dataset.urls`."""
        return [url for part in self.parts for url in part.urls()]

    @property
    def carried(self) -> bool:
        """See `Dataset.carried`."""
        return any(part.carried for part in self.parts)

    def image_size(self) -> Optional[Tuple[int, int]]:
        """See `Dataset.image_size`."""
        sizes = {part.image_size() for part in self.parts}
        return sizes.pop() if len(sizes) == 1 else None

    def open(
        self,
        resolve_root: Callable[[str], str],
        manifest_path: Callable[[str], PathLike],
        beneath: Optional[Sequence[str]],
    ) -> Reader:
        """See `Dataset.open`."""
        readers: List[Reader] = []
        try:
            for part in self.parts:
                readers.append(part.open(resolve_root, manifest_path, beneath))
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        return _ConcatReader(readers, beneath)


class _ConcatReader(Reader):
    def __init__(self, readers: List[Reader], beneath: Optional[Sequence[str]]) -> None:
        self._readers = readers
        self.beneath = beneath
        self._slow = [reader.slow for reader in readers]
        self.slow = any(self._slow)
        self._starts = [0]
        for reader in readers:
            self._starts.append(self._starts[-1] + len(reader))

    def __len__(self) -> int:
        return self._starts[-1]

    def _place(self, index: int) -> Tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        part = bisect.bisect_right(self._starts, index) - 1
        return part, index - self._starts[part]

    def _part(self, index: int) -> Tuple[Reader, int]:
        part, own = self._place(index)
        return self._readers[part], own

    def fetch(self, indices: Sequence[int], ahead: bool = False) -> Optional[Fetch]:
        if not self.slow:
            return None

        def of_part(number: int, some: Any) -> Any:
            return self._readers[number].fetch(some, ahead)

        return fetch_parts(self, self._place, of_part, self._slow, indices)

    def open(self, index: int) -> Source:
        reader, own = self._part(index)
        return reader.open(own)

    def paths(self, indices: List[int]) -> Optional[List[str]]:
        paths: List[str] = []
        for reader, own in map(self._part, indices):
            part_paths = reader.paths([own])
            if part_paths is None:
                return None
            paths += part_paths
        return paths

    def places(self, indices: List[int]) -> Optional[Places]:
        return Places.join([reader.places([own]) for reader, own in map(self._part, indices)])

    def versions(self, indices: List[int]) -> Optional[Versions]:
        return Versions.join(reader.versions([own]) for reader, own in map(self._part, indices))

    def pixels(self, indices: np.ndarray) -> Optional[Pixels]:
        return Pixels.of_parts(self._starts, lambda part, own: self._readers[part].pixels(own), indices)

    def where(self, index: int) -> str:
        reader, own = self._part(index)
        return reader.where(own)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
