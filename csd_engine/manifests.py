"""The engine's cache of manifests: received in parts, verified, kept by fingerprint, read by the workers."""

from __future__ import annotations

import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Dict, Hashable, Iterator, Optional, Tuple

from csd_engine.errors import DatasetError, SpoolError
from csd_engine.manifest import Manifest

__all__ = ["PART_BYTES", "ManifestCache", "read_part"]

PART_BYTES = 1 << 20  # uncompressed bytes of one part
MAX_MANIFEST_BYTES = 1 << 30
_COMPRESSION = 1  # paths shrink to a fifth already; more costs the host time at every first use


def read_part(path: "os.PathLike[str]", offset: int) -> Tuple[bytes, int]:
    """Return the compressed part of the manifest file that begins at `offset`, and the file's size. For the host."""
    with open(path, "rb") as stream:
        total = os.fstat(stream.fileno()).st_size
        stream.seek(offset)
        return zlib.compress(stream.read(PART_BYTES), _COMPRESSION), total


@dataclass
class _Incoming:
    path: Path
    stream: Any
    digest: Any
    total: int
    offset: int = 0


class ManifestCache:
    """Manifests below `directory`, at most `limit_bytes` of them; the least recently used go first, used ones never."""

    def __init__(self, directory: Path, limit_bytes: int = MAX_MANIFEST_BYTES) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._incoming: Dict[Tuple[Hashable, str], _Incoming] = {}
        self._count = 0
        try:
            directory.mkdir(exist_ok=True)
            for left in directory.glob("*.part"):
                left.unlink()
        except OSError as error:
            why = f"the manifest cache {directory} cannot be used: {error.strerror}. Check --spool."
            raise SpoolError(why) from None

    def path(self, fingerprint: str) -> Path:
        """Return where the manifest is, or would be."""
        return self.directory / fingerprint

    def has(self, fingerprint: str) -> bool:
        """Tell whether the manifest is here, and mark it as used now."""
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
        self, source: Hashable, fingerprint: str, offset: int, total: int, part: bytes, in_use: Collection[str]
    ) -> Optional[int]:
        """Take a part; return the next part's offset, or None when the manifest is complete and verified.

        Raises:
            DatasetError: the parts do not make a manifest of that fingerprint; what came so far is dropped.
            SpoolError: it cannot be written.
        """
        key = (source, fingerprint)
        if self.has(fingerprint):  # another host was faster
            self._drop(key)
            return None
        incoming = self._incoming.get(key)
        try:
            if incoming is None:
                incoming = self._begin(key, total)
            self._append(incoming, offset, total, part)
            if incoming.offset < total:
                return incoming.offset
            self._finish(incoming, fingerprint)
        except (DatasetError, OSError) as error:
            self._drop(key)
            if isinstance(error, OSError):
                raise SpoolError(f"a manifest cannot be kept: {error.strerror}, {self.directory}.") from None
            raise
        del self._incoming[key]
        self._evict({fingerprint, *in_use})
        return None

    def _begin(self, key: Tuple[Hashable, str], total: int) -> _Incoming:
        if not 0 < total <= min(self._limit_bytes, MAX_MANIFEST_BYTES):
            raise DatasetError(f"a manifest of {total} bytes is more than the engine keeps ({self._limit_bytes}).")
        self._count += 1
        path = self.directory / f"{key[1]}.{self._count}.part"
        incoming = _Incoming(path, open(path, "wb", buffering=0), hashlib.blake2b(digest_size=16), total)
        self._incoming[key] = incoming
        return incoming

    @staticmethod
    def _append(incoming: _Incoming, offset: int, total: int, part: bytes) -> None:
        expected = min(PART_BYTES, incoming.total - incoming.offset)
        if offset != incoming.offset or total != incoming.total:
            raise DatasetError(
                f"manifest part at {offset} of {total} came where {incoming.offset} of {incoming.total} was next. "
                "Did the manifest change while it was sent? Open the job again."
            )
        try:
            content = zlib.decompressobj().decompress(part, expected + 1)
        except zlib.error as error:
            raise DatasetError(f"manifest part at {offset} is damaged: {error}. Send it again.") from None
        if len(content) != expected:
            raise DatasetError(f"manifest part at {offset} has not the {expected} bytes expected. Send it again.")
        incoming.stream.write(content)
        os.fdatasync(incoming.stream.fileno())  # before it has its name: a power cut must not leave half of it there
        incoming.digest.update(content)
        incoming.offset += len(content)

    def _finish(self, incoming: _Incoming, fingerprint: str) -> None:
        incoming.stream.close()
        found = incoming.digest.hexdigest()
        if found != fingerprint:
            raise DatasetError(f"the manifest received is {found}, expected was {fingerprint}. Write it again.")
        Manifest.open(incoming.path).close()
        os.replace(incoming.path, self.path(fingerprint))  # of the same content, should one be there

    def _drop(self, key: Tuple[Hashable, str]) -> None:
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            incoming.stream.close()
            try:
                incoming.path.unlink()
            except OSError:
                pass

    def forget(self, source: Hashable) -> None:
        """Drop what `source` has begun to send."""
        for key in [key for key in self._incoming if key[0] == source]:
            self._drop(key)

    def _kept(self) -> Iterator[Tuple[float, int, Path]]:
        for path in self.directory.iterdir():
            try:
                status = path.stat()
            except OSError:
                continue
            if path.suffix != ".part":
                yield status.st_mtime, status.st_size, path

    def _evict(self, in_use: Collection[str]) -> None:
        kept = sorted(self._kept())
        total = sum(size for _, size, _ in kept)
        for _, size, path in kept:
            if total <= self._limit_bytes:
                break
            if path.name not in in_use:
                path.unlink()
                total -= size
