"""What hosts send of their data sets: manifests and arrays, received in parts, verified, kept by their content's hash."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Collection, Dict, Hashable, Iterator, List, Optional, Tuple, Union

from csd_engine.data.arrays import ARRAY_SUFFIX
from csd_engine.data.base import ARRAY, MANIFEST, Dataset
from csd_engine.data.manifest import Manifest
from csd_engine.errors import DatasetError, SpoolError
from csd_engine.protocol.codec import MAX_PART_BYTES
from csd_engine.service.spool import FINGERPRINT, PART

__all__ = ["FileCache", "needed_files", "pack", "read_part"]

MAX_MANIFEST_BYTES = 1 << 30
_COMPRESSION = 1  # paths shrink to a fifth already; more costs the host time at every first use

Key = Tuple[Hashable, str]


def pack(kind: str, content: Union[bytes, memoryview]) -> Union[bytes, memoryview]:
    """Return a part as it travels. Paths shrink well, pixels hardly and slowly. For the host."""
    return zlib.compress(content, _COMPRESSION) if kind == MANIFEST else content


def read_part(path: "os.PathLike[str]", offset: int) -> Tuple[bytes, int]:
    """Return the part of the file that begins at `offset`, and the file's size. For the host."""
    with open(path, "rb") as stream:
        total = os.fstat(stream.fileno()).st_size
        stream.seek(offset)
        return stream.read(MAX_PART_BYTES), total


def needed_files(dataset: Dataset, arrays: "os.PathLike[str]") -> List[Tuple[str, str]]:
    """Return (kind, fingerprint) of what a reader of this data set needs and a host sends: each once, manifests first.

    Args:
        dataset: the description.
        arrays: the directory of the arrays that hosts have sent.
    """
    return sorted(dict.fromkeys(dataset.uploads(arrays)), key=lambda file: file[0] != MANIFEST)


@dataclass
class _Incoming:
    path: Path
    stream: Any
    digest: Any
    total: int
    offset: int = 0


class FileCache:
    """Files of one kind below `directory`. What else lies there is neither removed, counted nor served.

    Args:
        directory: made if missing.
        kind: MANIFEST or ARRAY.
        limit_bytes: of all together. The least recently used go first, used ones never.
        room_bytes: tells what may still be written there.
    """

    def __init__(self, directory: Path, kind: str, limit_bytes: int, room_bytes: Callable[[], int]) -> None:
        self.directory = directory
        self._kind = kind
        self._suffix = ARRAY_SUFFIX if kind == ARRAY else ""
        self._own = re.compile(FINGERPRINT + re.escape(self._suffix))
        self._limit_bytes = limit_bytes
        self._room_bytes = room_bytes
        self._incoming: Dict[Key, _Incoming] = {}
        self._count = 0
        try:
            directory.mkdir(exist_ok=True)
            for left in directory.iterdir():
                if re.fullmatch(PART, left.name):
                    left.unlink()
        except OSError as error:
            why = f"the directory {directory} cannot be used: {error.strerror}. Check --spool."
            raise SpoolError(why) from None

    def path(self, fingerprint: str) -> Path:
        """Return where the file is, or would be."""
        return self.directory / (fingerprint + self._suffix)

    def has(self, fingerprint: str) -> bool:
        """Tell whether the file is here, and mark it as used now."""
        try:
            os.utime(self.path(fingerprint))
        except OSError:
            return False
        return True

    def wanted(self, source: Hashable, fingerprint: str) -> int:
        """Return the offset of the part that `source` should send next."""
        incoming = self._incoming.get((source, fingerprint))
        return incoming.offset if incoming else 0

    def add(
        self,
        source: Hashable,
        fingerprint: str,
        offset: int,
        total: int,
        part: Union[bytes, memoryview],
        in_use: Collection[str],
    ) -> Optional[int]:
        """Take a part; return the next part's offset, or None when the file is complete and verified.

        Raises:
            DatasetError: the parts do not make a file of that fingerprint; what came so far is dropped.
            SpoolError: it cannot be written, or there is no room for it.
        """
        key = (source, fingerprint)
        if self.has(fingerprint):  # another host was faster
            self._drop(key)
            return None
        incoming = self._incoming.get(key)
        try:
            if incoming is None:
                incoming = self._begin(key, total, in_use)
            self._append(incoming, offset, total, part)
            if incoming.offset < total:
                return incoming.offset
            self._finish(incoming, fingerprint)
        except (DatasetError, SpoolError, OSError) as error:
            self._drop(key)
            if isinstance(error, OSError):
                why = f"the data set's {self._kind} cannot be kept: {error.strerror}, {self.directory}."
                raise SpoolError(why) from None
            raise
        del self._incoming[key]
        return None

    def _begin(self, key: Key, total: int, in_use: Collection[str]) -> _Incoming:
        if total <= 0:
            raise DatasetError(f"{self._kind} {key[1]} of {total} bytes: nothing of that size can be sent.")
        self._make_room(total, in_use)
        self._count += 1
        path = self.directory / f"{key[1]}.{self._count}.part"
        incoming = _Incoming(path, open(path, "wb", buffering=0), hashlib.blake2b(digest_size=16), total)
        self._incoming[key] = incoming
        return incoming

    def _append(self, incoming: _Incoming, offset: int, total: int, part: Union[bytes, memoryview]) -> None:
        expected = min(MAX_PART_BYTES, incoming.total - incoming.offset)
        if offset != incoming.offset or total != incoming.total:
            raise DatasetError(
                f"{self._kind} part at {offset} of {total} came where {incoming.offset} of {incoming.total} was next. "
                "Did the data set change while it was sent? Open the job again."
            )
        content = part
        if self._kind == MANIFEST:
            try:
                content = zlib.decompressobj().decompress(part, expected + 1)
            except zlib.error as error:
                raise DatasetError(f"{self._kind} part at {offset} is damaged: {error}. Send it again.") from None
        if len(content) != expected:
            raise DatasetError(f"{self._kind} part at {offset} has not the {expected} bytes expected. Send it again.")
        incoming.stream.write(content)
        os.fdatasync(incoming.stream.fileno())  # before it has its name: a power cut must not leave half of it there
        incoming.digest.update(content)
        incoming.offset += len(content)

    def _finish(self, incoming: _Incoming, fingerprint: str) -> None:
        incoming.stream.close()
        found = incoming.digest.hexdigest()
        if found != fingerprint:
            raise DatasetError(
                f"the {self._kind} received is {found}, expected was {fingerprint}. Did the data set change while it was "
                "sent? Begin a new epoch."
            )
        if self._kind == MANIFEST:
            Manifest.open(incoming.path).close()  # an array's header is checked by its reader
        os.replace(incoming.path, self.path(fingerprint))  # of the same content, should one be there

    def _drop(self, key: Key) -> None:
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            incoming.stream.close()
            _unlink(incoming.path)

    def forget(self, source: Hashable) -> None:
        """Drop what `source` has begun to send."""
        for key in [key for key in self._incoming if key[0] == source]:
            self._drop(key)

    def _kept(self) -> Iterator[Tuple[float, int, Path]]:
        for path in self.directory.iterdir():
            if not self._own.fullmatch(path.name):
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            yield status.st_mtime, status.st_size, path

    def _make_room(self, total: int, in_use: Collection[str]) -> None:
        """Remove what was not used for longest until `total` bytes more fit; raises SpoolError if they never do."""
        kept = sorted(self._kept())
        limit = self._limit_bytes - sum(one.total for one in self._incoming.values())
        held = sum(size for _, size, _ in kept)
        missing = total - self._room_bytes() + sum(one.total - one.offset for one in self._incoming.values())
        for _, size, path in kept:
            if held + total <= limit and missing <= 0:
                break
            if path.name[: len(path.name) - len(self._suffix)] not in in_use:
                _unlink(path)
                held -= size
                missing -= size
        if held + total > limit or missing > 0:
            why = (
                f"{missing} bytes are missing on its disk, less what stays reserved"
                if missing > 0
                else f"it keeps {self._limit_bytes} bytes, {held} of them are in use"
            )
            option = "start the engine with a larger --upload-bytes, " if self._kind == ARRAY else ""
            raise SpoolError(
                f"the engine has no room for a data set's {self._kind} of {total} bytes: {why}. Free space in "
                f"{self.directory}, {option}or let both sides see one spool."
            )


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
