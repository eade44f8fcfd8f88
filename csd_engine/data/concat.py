"""Several data sets one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, List, Optional, Tuple

from csd_engine.data.base import Access, Dataset, PathLike, Reader, fingerprint
from csd_engine.data.checks import bad, check_countable, checked_fields
from csd_engine.data.joined import JoinedReader

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

    def open(self, access: Access) -> Reader:
        """See `Dataset.open`."""
        readers: List[Reader] = []
        try:
            for part in self.parts:
                readers.append(part.open(access))
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        return JoinedReader(readers, access.beneath)
