"""Images in one array: a .npy file that the device can read, or that the host sends."""

from __future__ import annotations

import io
import math
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from csd_engine.data.base import ARRAY, Access, Dataset, PathLike, Reader, Source
from csd_engine.data.checks import bad, check_countable, checked_fields, checked_fingerprint, checked_path, is_count
from csd_engine.data.safe_open import open_file
from csd_engine.errors import DatasetError

__all__ = ["ARRAY_SUFFIX", "ArraySet", "array_path"]

ARRAY_SUFFIX = ".npy"
_MOST_HEADER_BYTES = 4096  # numpy writes 128; its parser takes much memory, or recurses too deep, for a long hostile one
_LENGTHS = {(1, 0): struct.Struct("<H"), (2, 0): struct.Struct("<I")}  # of the header, by the format's version


def array_path(arrays: PathLike, fingerprint: str) -> str:
    """Return the path of an array that was sent, in `arrays`, the directory of sent arrays."""
    return os.path.join(arrays, fingerprint + ARRAY_SUFFIX)


@dataclass(frozen=True)
class ArraySet(Dataset):
    """A uint8 .npy file at the absolute `path`. `shape` is (n, height, width) for mode L or (n, height, width, 3) for RGB.

    If the path is in the engine's directory of sent arrays, the host sends the file.
    """

    type: ClassVar[str] = "array"

    path: str
    fingerprint: str
    shape: Tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def to_data(self) -> Dict[str, Any]:
        """See `Dataset.to_data`."""
        return {"type": self.type, "path": self.path, "fingerprint": self.fingerprint, "shape": list(self.shape)}

    @classmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> ArraySet:
        """See `Dataset.parse`."""
        path, content, shape = checked_fields(data, ("path", "fingerprint", "shape"))
        if not isinstance(shape, list) or len(shape) not in (3, 4) or not all(map(is_count, shape)):
            raise bad("expected a shape of 3 or 4 sizes", shape)
        if (len(shape) == 4 and shape[3] != 3) or not 0 < shape[1] < 1 << 16 or not 0 < shape[2] < 1 << 16:
            raise bad("expected a shape (n, height, width) or (n, height, width, 3)", shape)
        check_countable(math.prod(shape), f"an array of {math.prod(shape)} bytes, {shape}, is too large to map")
        return ArraySet(checked_path(path), checked_fingerprint(content), tuple(shape))

    def content(self) -> str:
        """See `Dataset.content`."""
        return f"array {self.fingerprint} {self.shape}"

    def _is_sent(self, arrays: PathLike) -> bool:
        return self.path == array_path(arrays, self.fingerprint)

    def host_paths(self, arrays: PathLike) -> List[str]:
        """See `Dataset.host_paths`."""
        return [] if self._is_sent(arrays) else [self.path]

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """See `Dataset.uploads`."""
        return [(ARRAY, self.fingerprint)] if self._is_sent(arrays) else []

    def image_size(self) -> Optional[Tuple[int, int]]:
        """See `Dataset.image_size`."""
        return self.shape[2], self.shape[1]

    def open(self, access: Access) -> Reader:
        """See `Dataset.open`."""
        return _ArrayReader(self, access.resolve_root(self.path), access.beneath)


def _read_header(stream: BinaryIO) -> Tuple[Tuple[int, ...], bool, Any]:
    """Read a .npy file up to its data; return shape, whether it has Fortran's order, and dtype. Raises nearly anything."""
    version = np.lib.format.read_magic(stream)
    length = _LENGTHS.get(version)
    if length is None:
        raise ValueError(f"its format is {version}, known are 1.0 and 2.0")
    prefix = stream.read(length.size)
    (size,) = length.unpack(prefix)
    if size > _MOST_HEADER_BYTES:
        raise ValueError(f"its header has {size} bytes, at most {_MOST_HEADER_BYTES} are read")
    header = io.BytesIO(prefix + stream.read(size))
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(header)
    return shape, fortran, dtype


class _ArrayReader(Reader):
    def __init__(self, dataset: ArraySet, path: str, beneath: Optional[Sequence[str]]) -> None:
        self._path = path
        try:
            with open(open_file(path, beneath).descriptor, "rb") as stream:
                shape, fortran, dtype = _read_header(stream)
                if dtype != np.uint8 or shape != dataset.shape or fortran:
                    raise ValueError(f"it holds {dtype} {shape}, expected was C-ordered uint8 {dataset.shape}")
                rows = np.memmap(stream, dtype=np.uint8, mode="r", offset=stream.tell(), shape=shape)
                self._rows = np.asarray(rows)  # a plain array, whose rows are views made in a tenth of the time
        except Exception as error:  # numpy's parser raises nearly anything on a hostile header: TokenError, MemoryError
            why = str(error) or type(error).__name__
            raise DatasetError(f"array {path} cannot be used: {why:.500}. Write it again or check its path.") from None

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def open(self, index: int) -> Source:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of an array of {len(self)}")
        return self._rows[index]

    def where(self, index: int) -> str:
        return f"{self._path}[{index}]"

    def rows(self) -> Optional[np.ndarray]:
        return self._rows

    def close(self) -> None:
        self._rows = np.zeros((0, 1, 1), dtype=np.uint8)  # the file is unmapped when its last array is freed
