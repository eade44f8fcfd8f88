"""`python -m csd_engine.tools.census ROOT`: which files lie below a directory, how large, and what is in them.

Two computers that should hold the same data set each take a census, in the same order. One of them reads the other's as a
stream, and compares while both go on. Neither list is ever held, only the names of one directory. A stream is zlib over
records, and whole if zlib says so. A record ends in NUL, since names may hold any other byte:

    ddlp census 3             the first record
    SIZE DIGEST PATH          one file (relative to the root); DIGEST is empty unless asked for with --verify
    !SIZE PATH                after the files: those changed last, newest first

Standard library only: it must run on a device on which nothing is installed yet.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import hashlib
import heapq
import itertools
import os
import stat
import sys
import time
import zlib
from typing import BinaryIO, Callable, Collection, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from csd_engine.data.safe_open import open_file
from csd_engine.errors import EngineError

__all__ = [
    "CensusBrokenOff", "CensusError", "CensusReader", "Entry", "Newest", "digests", "hashed", "sort_key", "walk",
    "write_census",
]  # fmt: skip

FIRST = b"ddlp census 3"
NEWEST = 16  # a census ends with so many files changed last: a change is most likely among them

# Instead of a size:
OUTSIDE = -1  # a link that leads out of the root: the engine won't read it
BROKEN = -2  # a link to nothing, or gone while the census was taken
UNREADABLE = -3  # a directory that this user may not list

_READ_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 16
_FLUSH_S = 1.0
_HASHED_AT_ONCE = 256  # files


class CensusError(EngineError):
    """A census cannot be taken or read; says where and why."""


class CensusBrokenOff(CensusError):
    """A census ends too soon; the way in which its writer ended tells why."""


class Entry(NamedTuple):
    """One file: path relative to the root, bytes (or OUTSIDE, BROKEN, UNREADABLE), mtime in ns (0: not known).

    The digest is 32 hex digits, b"" where it was not made, b"!" and errno where the file can't be read.
    """

    path: bytes
    size: int
    modified: int = 0
    digest: bytes = b""


def sort_key(path: bytes) -> bytes:
    """Return the key that orders paths: component by component, as `walk` finds them."""
    return path.replace(b"/", b"\0")


def _names(directory: bytes) -> List[bytes]:
    return sorted(os.listdir(directory))  # names alone: a million DirEntry objects would not fit a small board


def walk(root: str, skip: Collection[bytes] = (), confined: bool = True) -> Iterator[Entry]:
    """All regular files below `root`, in the order of `sort_key`.

    Links are followed; one that leads to a directory above itself is passed over. Memory holds the names of the
    directories on the way down.

    Args:
        root: a directory.
        skip: paths relative to it that don't belong to the data set (files, or directories with all in them).
        confined: follow no link that leads out of the root, as the engine does.

    Raises:
        CensusError: the root is no directory, or can't be listed.
    """
    top = os.path.realpath(os.fsencode(root))
    try:
        where = os.stat(top)
        names = _names(top)
    except OSError as error:
        raise CensusError(f"{root} can't be listed: {error.strerror}. Check the path and who may read it.") from None
    base = top.rstrip(b"/") + b"/"
    skip = {b"lost+found", *skip}  # ext4's own, which only root can list
    way: List[Tuple[bytes, Iterator[bytes], Tuple[int, int]]] = [(b"", iter(names), (where.st_dev, where.st_ino))]
    while way:
        prefix, left, _ = way[-1]
        name = next(left, None)
        if name is None:
            way.pop()
            continue
        path = prefix + name
        if path in skip:
            continue
        full = base + path
        try:
            status = os.lstat(full)
            if stat.S_ISLNK(status.st_mode):
                if confined and not (os.path.realpath(full) + b"/").startswith(base):
                    yield Entry(path, OUTSIDE)
                    continue
                status = os.stat(full)
        except OSError:
            yield Entry(path, BROKEN)
            continue
        if stat.S_ISREG(status.st_mode):
            yield Entry(path, status.st_size, status.st_mtime_ns)
        elif stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            if all(identity != above for _, _, above in way):
                try:
                    way.append((path + b"/", iter(_names(full)), identity))
                except OSError:
                    yield Entry(path, UNREADABLE)


def _digest_of(root: str, beneath: Optional[List[str]], path: bytes) -> bytes:
    """32 hex digits, or b"!" and errno."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        descriptor = open_file(os.path.join(root, os.fsdecode(path)), beneath).descriptor
        with open(descriptor, "rb", buffering=0) as stream:
            buffer = memoryview(bytearray(_READ_BYTES))
            while True:
                count = stream.readinto(buffer)
                if not count:
                    return digest.hexdigest().encode()
                digest.update(buffer[:count])
    except OSError as error:
        return b"!%d" % (error.errno or 0)
    except EngineError:
        return b"!1"


def digests(root: str, paths: Iterable[bytes], confined: bool = True) -> Iterator[bytes]:
    """Digest of each file (as `Entry.digest`), in turn; with `confined`, none that really lies outside `root`.

    They are read in as many threads as there are cores, as hashlib lets go of the GIL; a few at a time, so that neither names
    nor results pile up.
    """
    real, paths = os.path.realpath(root), iter(paths)
    digest_of = functools.partial(_digest_of, real, [real] if confined else None)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        while True:
            some = list(itertools.islice(paths, _HASHED_AT_ONCE))
            if not some:
                return
            yield from pool.map(digest_of, some)


def hashed(root: str, entries: Iterable[Entry], confined: bool = True) -> Iterator[Entry]:
    """The same entries with their digests."""
    ahead, behind = itertools.tee(entries)  # no further apart than `digests` reads ahead
    file_digests = digests(root, (entry.path for entry in ahead if entry.size >= 0), confined)
    for entry in behind:
        yield entry._replace(digest=next(file_digests)) if entry.size >= 0 else entry


class Newest:
    """Keeps the files changed last."""

    def __init__(self) -> None:
        self._heap: List[Tuple[int, bytes, int]] = []

    def add(self, entry: Entry) -> None:
        """Consider one more file."""
        if len(self._heap) < NEWEST:
            heapq.heappush(self._heap, (entry.modified, entry.path, entry.size))
        elif entry.modified > self._heap[0][0]:
            heapq.heapreplace(self._heap, (entry.modified, entry.path, entry.size))

    def entries(self) -> List[Entry]:
        """Newest first."""
        return [Entry(path, size, modified) for modified, path, size in sorted(self._heap, reverse=True)]


def write_census(entries: Iterable[Entry], out: BinaryIO) -> None:
    """Write a census as a stream. The file is flushed once a second or oftener, so that its reader can tell of progress."""
    pack, newest = zlib.compressobj(1), Newest()
    waiting, flushed = bytearray(FIRST + b"\0"), time.monotonic()
    for entry in entries:
        waiting += b"%d %s %s\0" % (entry.size, entry.digest, entry.path)
        if entry.size >= 0:
            newest.add(entry)
        if len(waiting) >= _CHUNK_BYTES or time.monotonic() - flushed > _FLUSH_S:
            out.write(pack.compress(bytes(waiting)) + pack.flush(zlib.Z_SYNC_FLUSH))
            out.flush()
            waiting.clear()
            flushed = time.monotonic()
    for entry in newest.entries():
        waiting += b"!%d %s\0" % (entry.size, entry.path)
    out.write(pack.compress(bytes(waiting)) + pack.flush())
    out.flush()


class CensusReader:
    """A census from its stream: iterate over it once; `newest` is known afterwards.

    Args:
        read: returns the next bytes of the stream, at most as many as asked for, none at its end.

    Raises (while iterating):
        CensusError: the stream is no census, is damaged, or breaks off.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.newest: List[Entry] = []
        self._read = read

    def _records(self) -> Iterator[bytes]:
        unzip = zlib.decompressobj()
        left = b""
        while not unzip.eof:
            chunk = unzip.unconsumed_tail or self._read(_CHUNK_BYTES)
            if not chunk:
                raise CensusBrokenOff("the census broke off. Look whether the connection or the device did, and try again.")
            *records, left = (left + unzip.decompress(chunk, _CHUNK_BYTES)).split(b"\0")
            yield from records

    def __iter__(self) -> Iterator[Entry]:
        try:
            yield from self._entries()
        except (zlib.error, ValueError) as error:
            raise CensusError(f"what came is no census: {error}. Do both sides run the same version?") from None

    def _entries(self) -> Iterator[Entry]:
        records = self._records()
        first = next(records, b"")
        if first != FIRST:
            raise ValueError(f"it begins with {first[:40]!r}")
        for record in records:
            if record.startswith(b"!"):
                size, path = record[1:].split(b" ", 1)
                self.newest.append(Entry(path, int(size)))
            else:
                size, file_digest, path = record.split(b" ", 2)
                yield Entry(path, int(size), 0, file_digest)


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m csd_engine.tools.census", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("root", help="the data set's directory")
    add("--verify", action="store_true", help="with a digest of every file's content")
    add("--skip", action="append", default=[], metavar="PATH", help="relative path to leave out; may be repeated")
    add("--digests", action="store_true", help="instead: a digest for each path that comes on standard input, NUL-ended")
    options = parser.parse_args(arguments)
    out = sys.stdout.buffer
    try:
        if options.digests:
            for digest in digests(options.root, sys.stdin.buffer.read().split(b"\0")[:-1]):
                out.write(digest + b"\0")
        else:
            entries = walk(options.root, {os.fsencode(path) for path in options.skip})
            write_census(hashed(options.root, entries) if options.verify else entries, out)
        out.flush()
    except CensusError as error:
        print(f"census: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
