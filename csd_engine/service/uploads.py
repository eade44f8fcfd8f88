"""Manifests and arrays that hosts send. They come in parts, are verified, and are stored under the hash of their content."""

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
from csd_engine.machine.directory import Directory, Entry
from csd_engine.protocol.codec import MAX_PART_BYTES
from csd_engine.service.spool import FINGERPRINT, PART

__all__ = ["FileCache", "needed_files", "pack", "read_part"]

MAX_MANIFEST_BYTES = 2 << 30
_MAX_FILES = 4096  # a data set of many parts has a thousand
_COMPRESSION = 1  # zlib level: paths shrink to a fifth; a higher level costs the host time at every first use

Key = Tuple[Hashable, str]


def pack(kind: str, content: Union[bytes, memoryview]) -> Union[bytes, memoryview]:
    """Return a part's bytes as the host sends them. A manifest is compressed; pixels hardly shrink, so an array is not."""
    return zlib.compress(content, _COMPRESSION) if kind == MANIFEST else content


def read_part(path: "os.PathLike[str]", offset: int) -> Tuple[bytes, int]:
    """Return the part of the file that begins at byte `offset`, and the file's size in bytes. The host calls this."""
    with open(path, "rb") as stream:
        total = os.fstat(stream.fileno()).st_size
        stream.seek(offset)
        return stream.read(MAX_PART_BYTES), total


def needed_files(dataset: Dataset, arrays: "os.PathLike[str]") -> List[Tuple[str, str]]:
    """Return (kind, fingerprint) of each file that a host must send before the data set can be read.

    Each file is listed once. Manifests come first.

    Args:
        dataset: the data set's description.
        arrays: the directory of arrays that hosts have sent.
    """
    return sorted(dict.fromkeys(dataset.uploads(arrays)), key=lambda file: file[0] != MANIFEST)


@dataclass
class _Incoming:
    name: str
    stream: Any
    digest: Any
    host: Hashable
    total: int
    offset: int = 0


class FileCache:
    """The received files of one kind, in one directory. Other files in the directory are not removed, counted or served.

    Args:
        open_directory: opens the files' directory, and makes it if it is missing. Called again if somebody removes it.
        kind: MANIFEST or ARRAY.
        limit_bytes: the most bytes of all files together, as they come, and twice the most of one host's. The least recently
            used file is removed first; a file in use is never removed. The number of files is limited in the same way.
        room_bytes: returns the bytes that may still be written to the directory. A quarter of the room, and of what the files
            take, stays free: batches need it.
    """

    def __init__(
        self, open_directory: Callable[[], Directory], kind: str, limit_bytes: int, room_bytes: Callable[[], int]
    ) -> None:
        self._open_directory = open_directory
        self.directory = open_directory()
        self._kind = kind
        self._suffix = ARRAY_SUFFIX if kind == ARRAY else ""
        self._name_pattern = re.compile(FINGERPRINT + re.escape(self._suffix))
        self._limit_bytes = limit_bytes
        self._room_bytes = room_bytes
        self._incoming: Dict[Key, _Incoming] = {}
        self._sizes: Dict[str, int] = {}  # of the complete files, bytes, by fingerprint
        self._hosts: Dict[str, Hashable] = {}  # by fingerprint: who has sent the file, or used it first since the start
        self._count = 0
        try:
            for left in self.directory.names():
                if re.fullmatch(PART, left):
                    self.directory.unlink(left)
            self._sizes = {self._fingerprint(name): size for _, size, name in self._stored()}
        except OSError as error:
            why = f"the directory {self.directory.path} cannot be used: {error.strerror}. Check --spool."
            raise SpoolError(why) from None

    def path(self, fingerprint: str) -> Path:
        """Return the file's path, whether or not the file exists."""
        return Path(self.directory.path, fingerprint + self._suffix)

    def _fingerprint(self, name: str) -> str:
        return name[: len(name) - len(self._suffix)]

    def has(self, fingerprint: str, host: Hashable) -> bool:
        """Return whether the file exists, and mark it as used now, by this host."""
        try:
            os.utime(fingerprint + self._suffix, dir_fd=self.directory.descriptor, follow_symlinks=False)
        except OSError:
            return False
        self._hosts.setdefault(fingerprint, host)
        return True

    def wanted(self, source: Hashable, fingerprint: str) -> int:
        """Return the byte offset of the part that `source` should send next."""
        incoming = self._incoming.get((source, fingerprint))
        return incoming.offset if incoming else 0

    def add(
        self,
        source: Hashable,
        fingerprint: str,
        offset: int,
        total: int,
        part: Union[bytes, memoryview],
        in_use: Callable[[], Collection[str]],
        host: Hashable,
    ) -> Optional[int]:
        """Store a part. Return the next part's byte offset, or None when the file is complete and verified.

        Args:
            source: the connection that it comes from.
            fingerprint, offset, total, part: of the file, as the message says.
            in_use: returns the fingerprints of files that must not be removed.
            host: the computer behind the connection, for its share.

        Raises:
            DatasetError: the parts do not make a file of that fingerprint. All parts of the file are dropped.
            SpoolError: the file cannot be written, or there is no room for it.
        """
        key = (source, fingerprint)
        if self.has(fingerprint, host):  # another host has sent it already
            self._drop(key)
            return None
        incoming = self._incoming.get(key)
        try:
            if incoming is None:
                incoming = self._begin(key, total, in_use, host)
            self._append(incoming, offset, total, part, in_use)
            if incoming.offset < total:
                return incoming.offset
            self._finish(incoming, fingerprint)
        except (DatasetError, SpoolError, OSError) as error:
            self._drop(key)
            if isinstance(error, OSError):
                why = f"the data set's {self._kind} cannot be kept: {error.strerror}, {self.directory.path}."
                raise SpoolError(why) from None
            raise
        del self._incoming[key]
        return None

    def _begin(self, key: Key, total: int, in_use: Callable[[], Collection[str]], host: Hashable) -> _Incoming:
        if total <= 0:
            raise DatasetError(f"{self._kind} {key[1]} has {total} bytes. A file that is sent must have at least one.")
        if total > self._limit_bytes // 2:  # else it would be refused at a later part
            raise self._no_room(f"one host may keep {self._limit_bytes // 2} bytes here, this one has {total}")
        self._make_room(0, 1, host, in_use)
        self._count += 1
        name = f"{key[1]}.{self._count}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = self.directory.open(name, flags)
        except FileNotFoundError:  # the directory was removed, with its files
            self.directory, self._sizes = self._open_directory(), {}
            descriptor = self.directory.open(name, flags)
        incoming = _Incoming(name, open(descriptor, "wb", buffering=0), hashlib.blake2b(digest_size=16), host, total)
        self._incoming[key] = incoming
        return incoming

    def _append(
        self,
        incoming: _Incoming,
        offset: int,
        total: int,
        part: Union[bytes, memoryview],
        in_use: Callable[[], Collection[str]],
    ) -> None:
        expected = min(MAX_PART_BYTES, incoming.total - incoming.offset)
        if offset != incoming.offset or total != incoming.total:
            raise DatasetError(
                f"{self._kind} part at {offset} of {total} came, but {incoming.offset} of {incoming.total} was expected. "
                "Did the data set change while it was sent? Open the job again."
            )
        content = part
        if self._kind == MANIFEST:
            try:
                content = zlib.decompressobj().decompress(part, expected + 1)
            except zlib.error as error:
                raise DatasetError(f"{self._kind} part at {offset} is damaged: {error}. Send it again.") from None
        if len(content) != expected:
            raise DatasetError(f"{self._kind} part at {offset} does not have the expected {expected} bytes. Send it again.")
        self._make_room(expected, 0, incoming.host, in_use)
        incoming.stream.write(content)
        os.fdatasync(incoming.stream.fileno())  # before the rename: after a power cut, no half file may have the final name
        incoming.digest.update(content)
        incoming.offset += len(content)

    def _finish(self, incoming: _Incoming, fingerprint: str) -> None:
        incoming.stream.close()
        digest = incoming.digest.hexdigest()
        if digest != fingerprint:
            raise DatasetError(
                f"the {self._kind} received is {digest}, but {fingerprint} was expected. Did the data set change "
                "while it was sent? Begin a new epoch."
            )
        if self._kind == MANIFEST:
            # An array's header is checked by its reader.
            Manifest.open(os.path.join(self.directory.path, incoming.name)).close()
        # A file that is replaced has the same content.
        self.directory.rename(incoming.name, Entry(self.directory, fingerprint + self._suffix))
        self._sizes[fingerprint], self._hosts[fingerprint] = incoming.total, incoming.host

    def _drop(self, key: Key) -> None:
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            incoming.stream.close()
            self.directory.unlink(incoming.name)

    def forget(self, source: Hashable, wanted: Collection[str] = ()) -> None:
        """Drop the incomplete files of `source`, but not those that are still wanted."""
        for key in [key for key in self._incoming if key[0] == source and key[1] not in wanted]:
            self._drop(key)

    def _stored(self) -> Iterator[Tuple[float, int, str]]:
        """Yield (time of last use, bytes, name) of each complete file."""
        for name in self.directory.names():
            if not self._name_pattern.fullmatch(name):
                continue
            try:
                status = self.directory.status(name)
            except OSError:
                continue
            yield status.st_mtime, status.st_size, name

    def _make_room(self, size: int, files: int, host: Hashable, in_use: Callable[[], Collection[str]]) -> None:
        """Remove files that are not in use until this host may keep so many bytes and files more. Raises SpoolError.

        A host that has its share loses files of its own, the others none. What counts is what has come, not what a host has
        announced.
        """
        if not self._share_used(size, files, host) and not self._shortage(size, files):
            return
        kept, used = sorted(self._stored()), in_use()
        self._sizes = {self._fingerprint(name): size for _, size, name in kept}
        unused = [name for _, _, name in kept if self._fingerprint(name) not in used]  # the least recently used first
        for name in [name for name in unused if self._hosts.get(self._fingerprint(name)) == host]:
            if self._share_used(size, files, host):
                self._remove(name)
        why = self._share_used(size, files, host)
        for name in unused:
            if not why and self._shortage(size, files):
                self._remove(name)
        why = why or self._shortage(size, files)
        if why:
            raise self._no_room(why)

    def _share_used(self, size: int, files: int, host: Hashable) -> str:
        """Return why the host may not keep so much more: it has its share, half of all. Empty: it may."""
        own = [file_size for name, file_size in self._sizes.items() if self._hosts.get(name) == host]
        own += [incoming.offset for incoming in self._incoming.values() if incoming.host == host]
        if sum(own) + size <= self._limit_bytes // 2 and len(own) + files <= _MAX_FILES // 2:
            return ""
        return (
            f"this host's files in use take {sum(own)} bytes, and one host may keep {self._limit_bytes // 2} bytes and "
            f"{_MAX_FILES // 2} files here"
        )

    def _shortage(self, size: int, files: int) -> str:
        """Return why so much more has no room, or an empty text if it has."""
        held = sum(self._sizes.values()) + sum(incoming.offset for incoming in self._incoming.values())
        missing = size - (3 * self._room_bytes() - held) // 4
        if missing > 0:
            return f"{missing} bytes are missing on its disk, apart from the reserve and a quarter for batches"
        if held + size > self._limit_bytes or len(self._sizes) + len(self._incoming) + files > _MAX_FILES:
            return f"its limit is {self._limit_bytes} bytes and {_MAX_FILES} files, and files in use take {held} bytes"
        return ""

    def _no_room(self, why: str) -> SpoolError:
        option = "start the engine with a larger --upload-bytes, " if self._kind == ARRAY else ""
        return SpoolError(
            f"the engine has no room for a data set's {self._kind}: {why}. Free space in {self.directory.path}, {option}or "
            "use a spool that both host and engine see."
        )

    def _remove(self, name: str) -> None:
        self.directory.unlink(name)
        self._sizes.pop(self._fingerprint(name), None)
        self._hosts.pop(self._fingerprint(name), None)
