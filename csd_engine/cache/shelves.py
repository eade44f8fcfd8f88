"""A cache's directory: its shelves, its quota, and what is removed when there is no room.

    DIR/.lock             held (flock) while somebody counts bytes, removes something or begins a file
    DIR/shelf-KEY/        the samples of one data set by one pipeline: a shelf. Inside:
        lock              held, shared, by each process that uses the shelf; its time of change is that of the last use
        about.json        what is in it, for people
        HEX.safetensors   a segment (csd_engine.cache.segments); with `.part` behind it while it is filled

Any other file there is somebody else's: it is neither counted nor removed.

Within a data set nothing is removed to make room. Each sample comes once an epoch, so what was used longest ago comes next,
and removing it would leave no hits at all (CoorDL, VLDB 2021). A fixed part of the samples stays instead. Whole shelves of
other data sets are removed, first those that saved the least time a byte and were not used for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from csd_engine.batchfile.publishing import PART_SUFFIX
from csd_engine.cache.segments import NAME, SegmentWriter, open_segment, read_head
from csd_engine.errors import CacheRefused, DamagedSegment
from csd_engine.machine.directory import Directory, distrusted
from csd_engine.machine.file_locks import fcntl

__all__ = ["SHELF", "ShelfFiles", "ShelfSummary", "Shelves"]

SHELF = re.compile(r"shelf-([0-9a-f]{32})")
_PART = re.compile(NAME.pattern + re.escape(PART_SUFFIX))
_LOCK, _ABOUT = "lock", "about.json"
_MOST_ABOUT_BYTES = 1 << 16
_LEFT_FREE = 20  # a 20th of the file system's bytes stays free
_HOUR_S = 3600.0

PathLike = Union[str, "os.PathLike[str]"]


class ShelfSummary(NamedTuple):
    """What a shelf holds.

    Attributes:
        key: 32 hex digits.
        about: what its first user wrote about it.
        samples, segments, bytes: in it; bytes with those of files that are being filled.
        seconds: the time that making its samples took, and that using them saves.
        used_s: when it was last opened, in seconds since 1970.
        in_use: a process has it open.
    """

    key: str
    about: Dict[str, Any]
    samples: int
    segments: int
    bytes: int
    seconds: float
    used_s: float
    in_use: bool

    def worth(self, now_s: float) -> float:
        """Return the seconds that a byte saves, less the longer it was not used."""
        return self.seconds / max(1, self.bytes) / (max(0.0, now_s - self.used_s) + _HOUR_S)


class ShelfFiles:
    """An open shelf's directory with its lock. `close` it."""

    def __init__(self, directory: Directory, lock: int) -> None:
        self.directory, self._lock = directory, lock

    def segments(self) -> List[str]:
        """Return the names of its segments, the oldest first. Raises OSError."""
        entries = []
        for name in self.directory.names():
            if NAME.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    entries.append((self.directory.status(name).st_mtime_ns, name))
        return [name for _, name in sorted(entries)]

    def close(self) -> None:
        """Give up the lock."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
            self.directory.close()


class Shelves:
    """A cache's directory. Any number of processes and threads may use it.

    Args:
        path: the directory; it is made if it is missing.
        quota_bytes: of all files of the cache.

    Raises:
        CacheRefused: it can't be made or opened, or another user may write there.
    """

    def __init__(self, path: PathLike, quota_bytes: int) -> None:
        self.path, self.quota_bytes = os.path.abspath(path), quota_bytes
        try:
            os.makedirs(self.path, 0o700, exist_ok=True)
            self._directory = Directory(os.path.realpath(self.path))
            why = distrusted(self._directory.status())
        except OSError as error:
            raise CacheRefused(
                f"the cache's directory {self.path} can't be used: {error.strerror}. Give another one, or correct this one."
            ) from None
        if why:
            raise CacheRefused(
                f"the cache's directory {self.path} can't be used: {why}, and could change what training gets. Give one of "
                "your own, and take that right away from all others (chmod go-w)."
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._directory.open(".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def open_shelf(self, key: str, about: Dict[str, Any]) -> ShelfFiles:
        """Open a shelf, and make it if it is missing.

        Args:
            key: 32 hex digits.
            about: what is in it, JSON data for people.

        Raises:
            CacheRefused: another user may write there.
            OSError: it can't be made or locked.
        """
        name = f"shelf-{key}"
        with self._locked():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._directory.descriptor)
            directory = self._directory.below(name)
            if why := distrusted(directory.status()):
                raise CacheRefused(f"the cache's directory {directory.path} can't be used: {why}. Remove it.")
            lock = directory.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                os.utime(lock)
                with contextlib.suppress(FileExistsError):
                    directory.write(_ABOUT, json.dumps(about))
            except OSError:
                os.close(lock)
                raise
        return ShelfFiles(directory, lock)

    def begin_segment(
        self, files: ShelfFiles, key: str, channels: int, wanted_bytes: int, least_bytes: int
    ) -> Optional[SegmentWriter]:
        """Begin a segment where there is room for it; else None.

        Args:
            files: of the shelf.
            key, channels: of the shelf.
            wanted_bytes: of the file at most.
            least_bytes: a smaller file is not worth beginning.

        Raises:
            OSError: it can't be made.
        """
        with self._locked():
            room = self._room(least_bytes)
            return None if room < least_bytes else SegmentWriter(files.directory, key, channels, min(room, wanted_bytes))

    def _room(self, least_bytes: int) -> int:
        """Return how many bytes a new file may have. Where that is less than this, other shelves are removed."""
        summaries = self._summaries()
        room = self.quota_bytes - sum(shelf.bytes for shelf in summaries)
        now_s = time.time()
        for shelf in sorted((shelf for shelf in summaries if not shelf.in_use), key=lambda shelf: shelf.worth(now_s)):
            if room >= least_bytes:
                break
            room += shelf.bytes if self._remove(shelf.key) else 0
        status = os.statvfs(self._directory.descriptor)
        return min(room, status.f_bavail * status.f_frsize - status.f_blocks * status.f_frsize // _LEFT_FREE)

    def summaries(self) -> List[ShelfSummary]:
        """Return all shelves, the last used first. Raises OSError."""
        with self._locked():
            return sorted(self._summaries(), key=lambda shelf: -shelf.used_s)

    def _summaries(self) -> List[ShelfSummary]:
        summaries = []
        for match in filter(None, map(SHELF.fullmatch, self._directory.names())):
            with contextlib.suppress(OSError):
                summaries.append(_summary(self._directory.below(match[0]), match[1]))
        return summaries

    def held_bytes(self) -> int:
        """Return the bytes of all files of the cache. It waits for no lock, and reads no file."""
        held = 0
        with contextlib.suppress(OSError):
            for shelf in filter(SHELF.fullmatch, self._directory.names()):
                with contextlib.suppress(OSError):  # removed meanwhile
                    directory = self._directory.below(shelf)
                    names = (name for name in directory.names() if NAME.fullmatch(name) or _PART.fullmatch(name))
                    held += sum(directory.status(name).st_size for name in names)
        return held

    def verify(self, key: str) -> Iterator[Tuple[str, int, str]]:
        """Read a whole shelf, file by file, and remove damaged files: their samples are made again.

        Yields:
            A file's name, its bytes, and what is wrong with it; "" if nothing is.

        Raises:
            OSError: there is no such shelf, or it can't be read.
        """
        directory = self._directory.below(f"shelf-{key}")
        for name in filter(NAME.fullmatch, directory.names()):
            size, why = 0, ""
            try:
                size = directory.status(name).st_size
                open_segment(directory, name, key).check()
            except FileNotFoundError:  # removed meanwhile
                continue
            except DamagedSegment as error:
                why = str(error)
            if why:
                directory.unlink(name)
            yield name, size, why

    def forget(self, key: str) -> bool:
        """Remove a shelf; False: it is in use, or there is none. Raises OSError."""
        with self._locked():
            return self._remove(key)

    def _remove(self, key: str) -> bool:
        try:
            directory = self._directory.below(f"shelf-{key}")
        except OSError:
            return False
        lock = _idle(directory, _LOCK)
        if lock is None:
            return False
        try:
            for name in directory.names():
                if name == _ABOUT or NAME.fullmatch(name) or _PART.fullmatch(name):
                    directory.unlink(name)
            directory.unlink(_LOCK)
            with contextlib.suppress(OSError):  # somebody else's files are in it
                os.rmdir(directory.name, dir_fd=self._directory.descriptor)
        finally:
            os.close(lock)
        return True


def _idle(directory: Directory, name: str) -> Optional[int]:
    """Return a lock on a file that nobody else has locked, as a descriptor; None: somebody has, or there is no such file."""
    descriptor = -1
    try:
        descriptor = directory.open(name, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return None


def _summary(directory: Directory, key: str) -> ShelfSummary:
    """Return what a shelf holds, and remove files that a writer left when it was killed. Raises OSError."""
    samples = segments = size = 0
    seconds = 0.0
    for name in directory.names():
        part = _PART.fullmatch(name) is not None
        if part and (dead := _idle(directory, name)) is not None:
            directory.unlink(name)
            os.close(dead)
        elif part:
            size += directory.status(name).st_size
        elif NAME.fullmatch(name):
            descriptor = directory.open(name, os.O_RDONLY)
            try:
                size += os.fstat(descriptor).st_size
                head = read_head(descriptor)
                samples, segments, seconds = samples + head.entries, segments + 1, seconds + head.seconds
            except DamagedSegment:  # whoever opens the shelf removes it
                pass
            finally:
                os.close(descriptor)
    lock = _idle(directory, _LOCK)
    if lock is not None:
        os.close(lock)
    used_s = directory.status(_LOCK).st_mtime
    return ShelfSummary(key, _about(directory), samples, segments, size, seconds, used_s, lock is None)


def _about(directory: Directory) -> Dict[str, Any]:
    try:
        with open(directory.open(_ABOUT, os.O_RDONLY), "rb") as stream:
            about = json.loads(stream.read(_MOST_ABOUT_BYTES).decode("ascii"))
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}
